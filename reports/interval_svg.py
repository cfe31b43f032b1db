"""One case of a verdict as a small picture: what satisfies the rule, what the paper says, what was found."""

from __future__ import annotations

from reports.claims import Case, Claim
from reports.markup import number, parts
from reports.quantities import papers, scale

WIDTH, EDGE = 168, 8


def drawn(claim: Claim, case: Case) -> str:
    """An inline SVG: interval or range as a line, its mean a mark, the paper's value hollow, the rule a band."""
    if case.ours is None:
        return ""
    ends = (case.ours, case.low, case.high, case.near, case.far, case.figure, claim.neutral)
    known = [x for x in ends if x is not None]
    least, most = min(known), max(known)
    scale = (WIDTH - 2 * EDGE) / ((most - least) or 1.0)

    def at(x: float | None, otherwise: float | None = None) -> float | None:
        return otherwise if x is None else round(EDGE + (x - least) * scale, 1)

    near, far, ours = at(case.near, 0), at(case.far, WIDTH), at(case.ours)
    low, high = at(case.low, ours), at(case.high, ours)
    marks = {"none": at(claim.neutral), "low": low, "high": high, "paper": at(case.figure)}
    return parts().interval(said(claim, case), WIDTH, near, round(max(far - near, 1), 1), ours, marks)


def said(claim: Claim, case: Case) -> str:
    """The same in words."""
    of = scale(claim, case)
    words = [f"ours {of.told(case.ours)}"]
    if case.n > 1 and case.low is not None:
        words.append(f"{'range' if claim.every else 'interval'} {of.plain(case.low)} to {of.told(case.high)}")
    if case.figure is not None:
        words.append(f"the paper {papers(claim, case)}")
    rule = (("from", case.near), ("to", case.far))
    edges = [f"{word} {number(of.factor * edge)}{of.unit}" for word, edge in rule if edge is not None]
    return ", ".join([*words, f"the rule {' '.join(edges)}"])
