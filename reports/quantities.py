"""Numbers for reading: a unit, as many digits as the interval carries, small differences in thousandths, ratios as 2.6×."""

import dataclasses
import math
from collections.abc import Iterable

from reports.claims import Case, Claim
from reports.markup import number, rounded, words

UNITS = {"auc": "AUC", "ne": "NE", "mrr": "MRR", "logloss": "log loss", "qps": "samples/s"}
"""By a metric's first word."""
SMALL = ("AUC", "NE", "MRR", "log loss")
"""Units whose differences below a tenth are written in thousandths."""
PERCENT = ("error", "share")
"""Metrics that are written in per cent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """The factor, digits and unit with which all numbers of one case are written."""

    factor: float = 1.0
    decimals: int = 0
    unit: str = ""
    """Begins with a space where it stands once after all numbers: ` AUC`; × follows each number."""

    def plain(self, x: float) -> str:
        """A number as text, without its unit."""
        return rounded(self.factor * x, self.decimals)

    def text(self, x: float) -> str:
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
    """The scale of a case's numbers, the paper's among them."""
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
    places = decimals([factor * x for x in numbers], factor * half if half else None)
    while places < 6 and any(_hides_edge(x, case, Scale(factor=factor, decimals=places)) for x in numbers):
        places += 1
    return Scale(factor=factor, decimals=places, unit=unit)


def _hides_edge(x: float, case: Case, scale: Scale) -> bool:
    """Whether a number beyond the rule's edge would be written as the edge itself."""
    low, high = case.near is not None and x < case.near, case.far is not None and x > case.far
    return (low and scale.plain(x) == scale.plain(case.near)) or (high and scale.plain(x) == scale.plain(case.far))


def measured_text(claim: Claim, case: Case) -> str:
    """The measured mean with its interval, or with the range of the runs where every run is judged."""
    if case.ours is None:
        return "–"
    written = scale(claim, case)
    if case.low is None or case.high is None or case.low == case.high:
        return written.text(case.ours)
    ends = f"{written.plain(case.low)}, {written.plain(case.high)}"
    spread = f" (range {ends})" if claim.every else f" [{ends}]"
    return written.text(case.ours) + spread if written.unit == "×" else written.plain(case.ours) + spread + written.unit


def paper_text(claim: Claim, case: Case) -> str:
    """The paper's figure of the case, a number in the scale of ours."""
    if case.figure is None:
        return case.paper or "–"
    written = scale(claim, case)
    number = written.factor * case.figure
    return rounded(number, decimals([number])) + written.unit


def rule_text(claim: Claim, case: Case) -> str:
    """The range that satisfies the rule: at least, at most, or from a number to another."""
    written = scale(claim, case)
    near, far = (None if edge is None else number(written.factor * edge) for edge in (case.near, case.far))
    text = f"{near} to {far}" if None not in (near, far) else f"at least {near}" if far is None else f"at most {far}"
    return text if text.endswith(" 0") else text + written.unit


def seeds_text(claim: Claim, case: Case) -> str:
    """The number of seeds and, of a paper's claim, the smallest effect that they detect and the rule's edge."""
    if claim.kind != "paper" or case.least is None:
        return str(case.n)
    written, edge = scale(claim, case), case.near if claim.sign > 0 else case.far
    least = written.factor * case.least
    margin = "" if edge is None else f", margin {rounded(written.factor * edge, decimals([written.factor * edge]))}"
    return f"{case.n}: tell {rounded(least, decimals([], least))}{margin}{written.unit}"


def column(numbers: Iterable[float | None]) -> list[str]:
    """A column's numbers as texts, rounded to the same digit: the fourth of the largest, or the last that is not 0 in all."""
    numbers = [math.nan if x is None else float(x) for x in numbers]
    finite = [x for x in numbers if math.isfinite(x)]
    largest = max(map(abs, finite), default=0.0)
    places = min(6, max(0, 3 - math.floor(math.log10(largest)))) if largest else 0
    while places and all(round(x, places) == round(x, places - 1) for x in finite):
        places -= 1
    return [rounded(x, places) for x in numbers]


def plus_minus(mean: float, half: float) -> str:
    """A mean and half of its interval as text: 0.731 ± 0.003."""
    if not math.isfinite(half):
        return rounded(mean, decimals([mean]) + 1)
    if abs(half) <= 1e-9 * abs(mean):  # equal but for rounding
        return rounded(mean, decimals([round(mean, 9)]))
    places = decimals([mean], half)
    return f"{rounded(mean, places)} ± {rounded(half, places)}"


def label(name: str, seconds: str = "virtual") -> str:
    """A column's name as a heading or axis label; `time` becomes virtual or wall seconds."""
    return f"{seconds} seconds" if name == "time" else words()["labels"].get(name, name.replace("_", " "))
