"""Claims on one axis: the share of the paper's effect that was found, or of a gain that was kept, a row for each case."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from reports.claims import Case, Claim, Verdict
from reports.claims.judge import LEAST, MOST
from reports.markup import parts
from reports.quantities import part_text

WIDTH, ROW, TOP = 340, 30, 22
"""In units of the drawing, which is as wide as its column: on a phone one unit is one pixel."""
LINEAR, FROM, TO = 200.0, -100.0, 2500.0
"""Per cent: the axis is linear up to twice the paper's effect, logarithmic beyond, and cut at both ends."""
TICKS = (-100, 0, 50, 100, 200, 500, 2000)
KEPT_FROM, KEPT_TO, KEPT_TICKS = 80.0, 102.0, (80, 85, 90, 95, 100)
EDGE = 10


def place(percent: float) -> float:
    """Where a share of the paper's effect lies, from 0 to 1: three fifths of the axis are linear."""
    percent = min(max(percent, FROM), TO)
    if percent <= LINEAR:
        return 0.6 * (percent - FROM) / (LINEAR - FROM)
    return 0.6 + 0.4 * math.log(percent / LINEAR) / math.log(TO / LINEAR)


def kept_place(percent: float) -> float:
    """Where a kept share lies, from 0 to 1."""
    return (min(max(percent, KEPT_FROM), KEPT_TO) - KEPT_FROM) / (KEPT_TO - KEPT_FROM)


def forest(verdicts: Iterable[Verdict], name: str = "") -> str:
    """The plots of these claims' cases: shares of the paper's effects, and shares of gains kept; empty where none has a share."""
    cases = [(each, case) for each in verdicts for case in each.cases if case.part is not None]
    effects = [pair for pair in cases if not pair[0].claim.frozen and pair[0].claim.kind == "paper"]
    kept = [pair for pair in cases if pair[0].claim.frozen and pair[0].claim.kind == "paper"]
    words = (
        "In per cent, with 95 % intervals; 100 is the paper's effect, 0 is none. The tables have the claims for which the paper "
        "gives no number."
    )
    drawn = _plot(effects, words, f"Share of the paper's effect{name}", place, TICKS, (100 * LEAST, 100 * MOST))
    words = (
        "Share of the gain that is kept, in per cent, with 95 % intervals; at least 90 is asked, of some claims more."
    )
    return drawn + _plot(kept, words, f"Share of the gain that is kept{name}", kept_place, KEPT_TICKS, (90, KEPT_TO))


def _plot(
    cases: Sequence[tuple[Verdict, Case]], caption: str, title: str, at: object, ticks: Sequence[int], band: tuple
) -> str:
    if not cases:
        return ""

    def x(percent: float) -> float:
        return round(EDGE + (WIDTH - 2 * EDGE) * at(percent), 1)

    rows = []
    for count, (verdict, case) in enumerate(cases):
        middle, low, high = (x(100 * share) for share in case.part)
        label = " · ".join(filter(None, (verdict.claim.id, case.case)))
        text = f"{label}: {case.word}, {part_text(verdict.claim, case)}"
        rows.append({"y": TOP + ROW * count, "x": (low, middle, high), "word": case.word, "label": label, "text": text})
    axis = [(x(tick), f"{tick}".replace("-", "−")) for tick in ticks]
    found = Counter(row["word"] for row in rows)
    alt = f"{title}: of {len(rows)} cases {', '.join(f'{count} {word}' for word, count in found.items())}."
    size = WIDTH, TOP + ROW * len(rows) + 4
    return str(parts().forest(title, alt, caption, size, axis, [x(edge) for edge in band], rows))


def row_picture(claim: Claim, case: Case) -> str:
    """One case as a row without labels; empty without a share."""
    if case.part is None:
        return ""
    at = kept_place if claim.frozen else place
    width = 168
    low, middle, high, *band = (
        round(6 + (width - 12) * at(100 * share), 1)
        for share in (*sorted(case.part), *((1 - claim.share, 1.02) if claim.frozen else (LEAST, MOST)))
    )
    none = None if claim.frozen else round(6 + (width - 12) * at(0.0), 1)
    return parts().interval(part_text(claim, case), width, band, (low, middle, high), none, case.word)
