"""Numbers for reading: a unit, as many digits as the interval carries, small differences in thousandths, ratios as 2.6×."""

import math
from collections.abc import Iterable

from reports.claims import Case, Claim
from reports.markup import number, rounded, words

UNITS = {"auc": "AUC", "ne": "NE", "mrr": "MRR", "logloss": "log loss", "qps": "samples/s"}
"""By a metric's first word."""
MANY = 10
"""So many times the paper's effect, or more, are written as times and not in per cent."""
SMALL = ("AUC", "NE", "MRR", "log loss")
"""Units whose differences below a tenth are written in thousandths."""
PERCENT = ("error", "share")
"""Metrics that are written in per cent."""


def decimals(numbers: Iterable[float | None], half: float | None = None) -> int:
    """Digits after the point: to the first digit of the interval's half, to its second where that is a 1, and to the sixth of the
    largest number at most; without an interval three digits of the largest number, and none where all are whole."""
    numbers = [x for x in numbers if x is not None and math.isfinite(x)]
    if half and math.isfinite(half):
        place = math.floor(math.log10(half))
        largest = max(map(abs, numbers), default=0.0)
        return min((half / 10**place < 2) - place, 5 - math.floor(math.log10(largest)) if largest else math.inf)
    if all(x == int(x) for x in numbers):
        return 0
    return max(0, 2 - math.floor(math.log10(max(map(abs, numbers)))))


def scale(claim: Claim, case: Case) -> tuple[float, int, str]:
    """The factor, digits and unit of a case's numbers, the paper's among them. A unit that stands once after all numbers begins
    with a space; × follows each number."""
    numbers = [x for x in (case.ours, case.low, case.high, case.figure) if x is not None]
    half = (case.high - case.low) / 2 if case.low is not None and case.high is not None else None
    factor, unit = 1.0, UNITS.get(claim.metric.split("_")[0], "")
    if claim.effect in ("ratio", "slope"):
        unit = "×" if claim.effect == "ratio" else ""
    elif claim.metric in PERCENT and claim.effect == "value":
        factor, unit = 100.0, " %"
    elif unit in SMALL and claim.effect != "value" and 0 < max(map(abs, numbers), default=0.0) < 0.1:
        factor, unit = 1000.0, f" × 10⁻³ {unit}"
    else:
        unit = f" {unit}" if unit else ""
    numbers = [factor * x for x in numbers]
    pairs = [(x, factor * edge) for x in numbers for edge in claim.edges]  # what is beyond an edge is not written as it
    return factor, _keep_apart(pairs, decimals(numbers, factor * half if half else None)), unit


def _keep_apart(pairs: Iterable[tuple[float, float]], places: int) -> int:
    """At least so many digits after the point, six at most, that no number is written as the other one of its pair."""
    pairs = [(one, other) for one, other in pairs if one != other]
    while places < 6 and any(rounded(one, places) == rounded(other, places) for one, other in pairs):
        places += 1
    return places


def measured_text(claim: Claim, case: Case) -> str:
    """The measured mean with its interval, or with the range of the runs of a check."""
    if case.ours is None:
        return "–"
    factor, places, unit = scale(claim, case)
    ours, *ends = (rounded(factor * x, places) for x in (case.ours, case.low, case.high) if x is not None)
    turned = ""
    if case.ours < 0 and claim.effect == "value" and claim.metric in (below := words()["below_zero"]):
        turned = f" ({below[claim.metric]})"
    if not ends or case.low == case.high:
        return ours + unit + turned
    spread = f" (range {', '.join(ends)})" if claim.kind == "check" else f" [{', '.join(ends)}]"
    return ours + (unit + spread if unit == "×" else spread + unit) + turned


def paper_text(claim: Claim, case: Case) -> str:
    """The paper's figure of the case, a number in the scale of ours."""
    if case.figure is None:
        return case.paper or "–"
    factor, _, unit = scale(claim, case)
    number = factor * case.figure
    ratio = [(number, 1.0)] if unit == "×" else []  # one that is not 1 is not written as 1
    return rounded(number, _keep_apart(ratio, decimals([number]))) + unit


def part_text(claim: Claim, case: Case) -> str:
    """The share that a case is judged by: of the paper's effect, or of the gain that an equivalence keeps."""
    if case.part is None:
        return ""
    many = not claim.frozen and abs(case.part[0]) >= MANY
    middle, low, high = (x if many else 100 * x for x in case.part)
    places = min(decimals([], (high - low) / 2), 1) if high > low else 0
    middle, low, high = (rounded(x, places) for x in (middle, low, high))
    if claim.frozen:
        return f"keeps {middle} % [{low}, {high}] of the gain (rule: {100 * (1 - claim.share):g} %)"
    return f"{middle} {'times' if many else '%'} [{low}, {high}] {'' if many else 'of '}the paper's effect"


def result_text(claim: Claim, case: Case) -> str:
    """The share with the measured number and the paper's behind it."""
    numbers = measured_text(claim, case) + (f"; paper: {paper_text(claim, case)}" if case.figure is not None else "")
    return f"{part} ({numbers})" if (part := part_text(claim, case)) else numbers


def seeds_text(claim: Claim, case: Case) -> str:
    """The number of seeds and, where they were tested, the smallest effect that they detect nine times in ten."""
    if case.tells is None or not math.isfinite(case.tells):
        return str(case.n)
    share = case.part is not None or claim.effect == "ratio"  # a ratio's effects are logarithms
    return f"{case.n}: detect {f'{100 * case.tells:.2g} %' if share else number(float(f'{case.tells:.2g}'))}"


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
