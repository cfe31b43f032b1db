"""Claims on one axis: the share of the paper's effect that was found, or of a gain that was kept, a row for each case."""

import math
from collections import Counter
from collections.abc import Callable, Iterable

from reports.claims import Case, Claim, Verdict
from reports.claims.judge import LEAST, MOST
from reports.markup import parts
from reports.quantities import part_text

WIDTH, ROW, TOP, LONGEST = 680, 30, 42, 100
"""In units of the drawing, and the most letters of a label."""
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
    """An SVG file: shares of the paper's effects, then shares of gains that are kept; empty where no case has a share."""
    papers = [each for each in verdicts if each.claim.kind == "paper"]
    cases = [(each, case) for each in papers for case in each.cases if case.part is not None]
    groups = (
        (f"Share of the paper's effect{name}, in %", place, TICKS, (100 * LEAST, 100 * MOST), False),
        (f"Share of the gain that is kept{name}, in %", kept_place, KEPT_TICKS, (90, KEPT_TO), True),
    )
    plots, down = [], 0
    for title, at, ticks, band, kept in groups:
        rows = []
        for verdict, case in cases:
            if (verdict.claim.frozen is not None) == kept:
                label = " · ".join(filter(None, (verdict.claim.sentence, case.case if len(verdict.cases) > 1 else "")))
                text = f"{label}: {case.word}, {part_text(verdict.claim, case)}"
                ends = [_across(at, 100 * share) for share in sorted(case.part)]
                short = label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
                rows.append({"y": TOP + ROW * len(rows), "x": ends, "word": case.word, "label": short, "text": text})
        if rows:
            found = Counter(row["word"] for row in rows)
            alt = f"{title}: of {len(rows)} cases {', '.join(f'{count} {word}' for word, count in found.items())}."
            axis = [(_across(at, tick), f"{tick}".replace("-", "−")) for tick in ticks]
            height = TOP + ROW * len(rows) + 4
            edges = [_across(at, edge) for edge in band]
            plot = {"title": title, "alt": alt, "axis": axis, "band": edges, "rows": rows}
            plots.append(plot | {"down": down, "height": height})
            down += height + 14
    return str(parts().forest(plots, WIDTH, down)) if plots else ""


def _across(at: Callable[[float], float], percent: float) -> float:
    return round(EDGE + (WIDTH - 2 * EDGE) * at(percent), 1)


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
