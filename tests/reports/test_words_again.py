"""The words a second time, from the saved runs by t intervals alone: nothing of the judge is used, and both must agree."""

import json
import math
from statistics import fmean, stdev

from scipy.stats import t

from lib import paths
from reports import claims


def word(claim, name, paper):
    """The word of a case that compares a subject with a reference."""
    rows = json.loads((paths.reference() / "claims" / f"{claim.id}.json").read_text())["results"]
    at = {
        n: n.replace("{case}", name)
        for n in (claim.metric, claim.subject, claim.reference, claim.frozen, claim.control)
        if n
    }
    of = lambda n: {r["seed"]: r[at[claim.metric]] for r in rows if r["subject"] == at[n]}  # noqa: E731
    theirs, sign = of(claim.reference), -1 if claim.relation == "<=" else 1

    def interval(mine):
        pairs = [(mine[s], theirs[s]) for s in mine if s in theirs]
        x = [sign * (math.log(a / b) if claim.effect == "ratio" else a - b) for a, b in pairs]
        half = float(t.ppf(0.975, len(x) - 1)) * stdev(x) / math.sqrt(len(x))
        return fmean(x) - half, fmean(x) + half

    low, high = interval(of(claim.subject))
    if claim.frozen:
        margin = claim.share * sign * (fmean(theirs.values()) - fmean(of(claim.frozen).values()))
        if claim.control and (planted := of(claim.control)) and interval(planted)[1] >= -margin:
            return "undecided"
        return "reproduced" if low > -margin else "contradicted" if high < -margin else "undecided"
    if isinstance(paper, float):
        e = sign * (math.log(paper) if claim.effect == "ratio" else paper)
        shown = "reproduced" if low >= e / 2 and high <= 2 * e else "other size"
        against = high < 0.1 * e or (low <= 0 and high < e / 2)
        return "contradicted" if against else shown if low > 0 else "undecided"
    edge = sign * (math.log(claim.margin) if claim.effect == "ratio" else claim.margin) if claim.margin else 0
    shown, against = "reproduced" if low > edge else "other size", high < 0 or (low <= 0 and high < edge)
    return "contradicted" if against else shown if low > 0 else "undecided"


def test_the_words_from_the_saved_runs_are_the_judges():
    seen = 0
    for verdict in claims.verdicts(paths.reference()):
        claim = verdict.claim
        if claim.kind != "paper" or claim.effect not in ("difference", "ratio") or claim.order or not verdict.cases:
            continue
        for case in verdict.cases:
            blind = "not shown to be better" in case.detail  # nothing can be lost
            blind |= "too few seeds" in case.detail  # whatever their interval says
            if case.word in ("calibrated", "refused") or case.ours is None or blind or claim.elsewhere:
                continue
            again = word(claim, case.case, case.paper)
            assert again == ("contradicted" if case.word == "not comparable" else case.word), (claim.id, case)
            seen += 1
    assert seen > 100
