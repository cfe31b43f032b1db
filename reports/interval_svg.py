"""One case of a verdict as a small picture: the range that satisfies the rule, the paper's figure, and the measured interval."""

from reports.claims import Case, Claim
from reports.markup import number, parts
from reports.quantities import paper_text, scale

WIDTH, EDGE = 168, 8


def interval_svg(claim: Claim, case: Case) -> str:
    """Draw an interval or range as a line, its mean as a mark, the paper's value as a hollow mark, the rule as a band."""
    if case.ours is None:
        return ""
    ends = (case.ours, case.low, case.high, case.near, case.far, case.figure, claim.neutral)
    known = [x for x in ends if x is not None]
    least, most = min(known), max(known)
    points = (WIDTH - 2 * EDGE) / ((most - least) or 1.0)

    def place(x: float | None, default: float | None = None) -> float | None:
        return default if x is None else round(EDGE + (x - least) * points, 1)

    near, far, ours = place(case.near, 0), place(case.far, WIDTH), place(case.ours)
    low, high = place(case.low, ours), place(case.high, ours)
    marks = {"none": place(claim.neutral), "low": low, "high": high, "paper": place(case.figure)}
    return parts().interval(description(claim, case), WIDTH, near, round(max(far - near, 1), 1), ours, marks)


def description(claim: Claim, case: Case) -> str:
    """The picture in words."""
    written = scale(claim, case)
    words = [f"ours {written.text(case.ours)}"]
    if case.n > 1 and case.low is not None:
        words.append(f"{'range' if claim.every else 'interval'} {written.plain(case.low)} to {written.text(case.high)}")
    if case.figure is not None:
        words.append(f"the paper {paper_text(claim, case)}")
    rule = (("from", case.near), ("to", case.far))
    edges = [f"{word} {number(written.factor * edge)}{written.unit}" for word, edge in rule if edge is not None]
    return ", ".join([*words, f"the rule {' '.join(edges)}"])
