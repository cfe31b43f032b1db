"""Numbers for reading: a unit, as many digits as the interval carries, small differences in thousandths, ratios as 2.6×."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from reports.claims import Case, Claim
from reports.markup import number, rounded, words

UNITS = {"auc": "AUC", "ne": "NE", "mrr": "MRR", "logloss": "log loss", "qps": "samples/s"}
"""By a metric's first word."""
SMALL = ("AUC", "NE", "MRR", "log loss")
"""What is told in thousandths where it differs by less than a tenth."""
PERCENT = ("error", "share")
"""Metrics that are told in per cent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How the numbers of one case are written, all alike."""

    factor: float = 1.0
    decimals: int = 0
    unit: str = ""
    """What follows each number without a space: ×; what stands once after all of them has one: ` AUC`."""

    def plain(self, x: float) -> str:
        """A number without its unit."""
        return rounded(self.factor * x, self.decimals)

    def told(self, x: float) -> str:
        return self.plain(x) + self.unit


def decimals(numbers: Iterable[float | None], half: float | None = None) -> int:
    """Digits after the point: to the first digit of the interval's half, to its second where that is a 1; without an interval
    three digits of the largest number, and none where all are whole."""
    numbers = [x for x in numbers if x is not None and math.isfinite(x)]
    if half and math.isfinite(half):
        place = math.floor(math.log10(half))
        return (half / 10**place < 2) - place
    if all(x == int(x) for x in numbers):
        return 0
    return max(0, 2 - math.floor(math.log10(max(map(abs, numbers)))))


def scale(claim: Claim, case: Case) -> Scale:
    """How a case's numbers are written, the paper's among them."""
    numbers = [x for x in (case.ours, case.low, case.high, case.figure) if x is not None]
    half = (case.high - case.low) / 2 if case.low is not None and case.high is not None else None
    factor, unit = 1.0, UNITS.get(claim.metric.split("_")[0], "")
    largest = max(map(abs, numbers), default=0.0)
    if claim.effect in ("ratio", "slope"):
        unit = "×" if claim.effect == "ratio" else ""
    elif claim.metric in PERCENT and claim.effect == "value":
        factor, unit = 100.0, " %"
    elif unit in SMALL and claim.effect != "value" and 0 < largest < 0.1:
        factor, unit = 1000.0, f" × 10⁻³ {unit}"
    else:
        unit = f" {unit}" if unit else ""
    given = [factor * x for x in numbers]
    places = decimals(given, factor * half if half else None)
    while places < 6 and any(_hides(x, case, Scale(factor=factor, decimals=places)) for x in numbers):
        places += 1
    return Scale(factor=factor, decimals=places, unit=unit)


def _hides(x: float, case: Case, of: Scale) -> bool:
    """Whether a number that is out of bounds is written as the bound itself."""
    low, high = case.near is not None and x < case.near, case.far is not None and x > case.far
    return (low and of.plain(x) == of.plain(case.near)) or (high and of.plain(x) == of.plain(case.far))


def ours(claim: Claim, case: Case) -> str:
    """What was found: the mean with its interval, or with the range of the runs where each of them is judged."""
    if case.ours is None:
        return "–"
    of = scale(claim, case)
    if case.low is None or case.high is None or case.low == case.high:
        return of.told(case.ours)
    ends = f"{of.plain(case.low)}, {of.plain(case.high)}"
    spread = f" (range {ends})" if claim.every else f" [{ends}]"
    return of.told(case.ours) + spread if of.unit == "×" else of.plain(case.ours) + spread + of.unit


def papers(claim: Claim, case: Case) -> str:
    """What the paper says of the case, a number as ours are written."""
    if case.figure is None:
        return case.paper or "–"
    of = scale(claim, case)
    number = of.factor * case.figure
    return rounded(number, decimals([number])) + of.unit


def asked(claim: Claim, case: Case) -> str:
    """What satisfies the rule: at least, at most, or between."""
    of = scale(claim, case)
    near, far = (None if edge is None else number(of.factor * edge) for edge in (case.near, case.far))
    words = f"{near} to {far}" if None not in (near, far) else f"at least {near}" if far is None else f"at most {far}"
    return words if words.endswith(" 0") else words + of.unit


def tells(claim: Claim, case: Case) -> str:
    """Its seeds and, of a paper's claim, the smallest effect that they can tell beside the rule's edge."""
    if claim.kind != "paper" or case.least is None:
        return str(case.n)
    of, edge = scale(claim, case), case.near if claim.sign > 0 else case.far
    told, edge = (None if x is None else of.factor * x for x in (case.least, edge))
    margin = "" if edge is None else f", margin {rounded(edge, decimals([edge]))}"
    return f"{case.n}: tell {rounded(told, decimals([], told))}{margin}{of.unit}"


def column(numbers: Iterable[float | None]) -> list[str]:
    """A column's numbers, all to the same digit: the fourth of the largest, or the last that is no zero in all."""
    numbers = [math.nan if x is None else float(x) for x in numbers]
    finite = [x for x in numbers if math.isfinite(x)]
    largest = max(map(abs, finite), default=0.0)
    places = min(6, max(0, 3 - math.floor(math.log10(largest)))) if largest else 0
    while places and all(round(x, places) == round(x, places - 1) for x in finite):
        places -= 1
    return [rounded(x, places) for x in numbers]


def within(mean: float, half: float) -> str:
    """A mean and half its interval."""
    if not math.isfinite(half):
        return rounded(mean, decimals([mean]) + 1)
    if abs(half) <= 1e-9 * abs(mean):  # equal but for rounding
        return rounded(mean, decimals([round(mean, 9)]))
    places = decimals([mean], half)
    return f"{rounded(mean, places)} ± {rounded(half, places)}"


def label(name: str, seconds: str = "virtual") -> str:
    """A column's name as a heading or beside an axis; time says which seconds it counts."""
    return f"{seconds} seconds" if name == "time" else words()["labels"].get(name, name.replace("_", " "))
