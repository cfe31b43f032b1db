"""Claims on one axis: the share of the paper's effect that was found, or of a gain that was kept, a row for each case."""

import math
from collections.abc import Iterable
from typing import Any

from reports.claims import Case, Claim, Verdict
from reports.claims.judge import LEAST, MOST
from reports.markup import parts
from reports.quantities import part_text

LINEAR, FROM, TO = 200.0, -100.0, 2500.0
"""Per cent: the axis is linear up to twice the paper's effect, logarithmic beyond, and cut at both ends."""
KEPT_FROM, KEPT_TO = 80.0, 102.0
WIDTH = 168


def place(percent: float) -> float:
    """Where a share of the paper's effect lies, from 0 to 1: three fifths of the axis are linear."""
    percent = min(max(percent, FROM), TO)
    if percent <= LINEAR:
        return 0.6 * (percent - FROM) / (LINEAR - FROM)
    return 0.6 + 0.4 * math.log(percent / LINEAR) / math.log(TO / LINEAR)


def kept_place(percent: float) -> float:
    """Where a kept share lies, from 0 to 1."""
    return (min(max(percent, KEPT_FROM), KEPT_TO) - KEPT_FROM) / (KEPT_TO - KEPT_FROM)


def effects(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """A row for each case of a paper's claim whose effect is a share of the paper's, or that keeps a share of a gain."""
    return [
        {
            "claim": each.claim,
            "word": case.word,
            "case": case.case if len(each.cases) > 1 else "",
            "picture": row_picture(each.claim, case),
            "text": part_text(each.claim, case),
        }
        for each in verdicts
        for case in each.cases
        if case.part is not None and each.claim.kind == "paper"
    ]


def forest(verdicts: Iterable[Verdict]) -> str:
    """The rows of effects as an SVG file; empty without a row."""
    rows = effects(verdicts)
    return str(parts().forest(rows)) if rows else ""


def row_picture(claim: Claim, case: Case) -> str:
    """One case as a row without labels; empty without a share."""
    if case.part is None:
        return ""
    at, band = (kept_place, (1 - claim.share, 1.02)) if claim.frozen else (place, (LEAST, MOST))
    shares = (*sorted(case.part), *band, 0.0)
    low, middle, high, left, right, none = (round(6 + (WIDTH - 12) * at(100 * share), 1) for share in shares)
    x, none = (low, middle, high), None if claim.frozen else none
    return parts().interval(part_text(claim, case), WIDTH, (left, right), x, none, case.word)
