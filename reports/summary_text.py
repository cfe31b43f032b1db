"""*In short*: sentences with numbers about a page's claims, and why some failed; made from saved verdicts."""

from collections import Counter
from collections.abc import Sequence

from reports import runner
from reports.claims import AGAINST, PROVISIONAL, SHELF, Verdict, counts, published, tally
from reports.markup import parts
from reports.quantities import result_text

MOST = 3
"""Sentences about findings on a page."""
NOTHING = "Nothing has been judged yet: this page is of the profile {}; what is published is of the profile laptop."
PUBLISHED = (
    "Published (profile {profile}, commit {commit}); this page is of a short run, which judges nothing and whose numbers are "
    "next to the published ones under Verdicts:"
)
NONE_YET = "No claim has been judged at the laptop profile by these rules yet; `make reproduce PROFILE=laptop` does it."
SAID = {
    "reproduced": "are reproduced",
    "other size": "hold in direction but not in size",
    "mixed": "hold in some cases only",
    "contradicted": "are contradicted",
    "undecided": "are undecided",
}
NAMES = {"paper": "claims of the paper", "estimate": "estimates", "target": "targets of ours", "check": "checks"}


def in_short(verdicts: Sequence[Verdict], profile: str) -> str:
    """The block as HTML, for a short run with what is published; one line where nothing is, empty for a page without claims."""
    if not verdicts:
        return ""
    source = ""
    if profile == "smoke" or all(verdict.word in ("not run", "refused") for verdict in verdicts):
        if not (verdicts := published(verdicts[0].claim.notebook)):
            return parts().short((), (), (), NOTHING.format(profile or "of a trial"))
        source = PUBLISHED.format(profile=verdicts[0].profile, commit=verdicts[0].commit)
    failed = failures(verdicts)
    rest = sorted((v for v in verdicts if v not in failed), key=_papers_first)
    totals = [f"{NAMES[kind]}: {tally(found)}" for kind, found in counts(verdicts).items()]
    shown = [(v, sentence(v) + uncounted(v)) for v in rest[:MOST]]
    return parts().short(shown, [(v, sentence(v) + uncounted(v), reason(v)) for v in failed], totals, source=source)


def _papers_first(verdict: Verdict) -> bool:
    return verdict.claim.kind != "paper"


def failures(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts that failed, or that are not comparable; those of papers first."""
    return sorted((each for each in verdicts if each.word in (*AGAINST, SHELF)), key=_papers_first)


def sentence(verdict: Verdict) -> str:
    """A claim with what was found in each of its cases."""
    cases = [case for case in verdict.cases if case.ours is not None]
    several = len(verdict.cases) > 1
    found = "; ".join(f"{case.case}: " * several + result_text(verdict.claim, case) for case in cases)
    detail = f" But {verdict.detail}." if verdict.detail and not cases else ""
    return verdict.claim.sentence + (f" Found: {found}." if found else "") + detail


def reason(verdict: Verdict) -> str:
    """Why a claim failed, as far as that was tested: its first explanation. The claim's own entry has all of them."""
    for each in verdict.claim.explanations:
        return f"Tested: {each.changed}. Found: {each.found}."
    if verdict.word == SHELF:
        detail = next(case.detail for case in verdict.cases if case.word == SHELF)
        return f"{detail[:1].upper()}{detail[1:]}."
    return "Not explained yet."


def uncounted(verdict: Verdict) -> str:
    """What follows the word of a paper's claim that a formula gives."""
    return " (foreseen by a formula, not counted)" if verdict.claim.foreseen else ""


def judged_again(verdicts: Sequence[Verdict]) -> str:
    """How many of the counted claims have a rule that is younger than their runs, and where the earlier word is."""
    counted = [each for each in verdicts if each.counts]
    again = sum(bool(each.again) for each in counted)
    if not again:
        return ""
    some = "All" if again == len(counted) else f"{again} of the"
    return (
        f"{some} {len(counted)} claims were judged again: their rules have changed since their runs. The row of a claim links "
        "to its verdict of that day."
    )


def held(verdicts: Sequence[Verdict]) -> str:
    """How many of the papers' claims hold, in a sentence."""
    counted = [each for each in verdicts if each.counts]
    if not counted:
        return NONE_YET
    found = Counter(each.word for each in counted)
    judged = [each for each in counted if each.word != SHELF]
    again = sum(bool(each.again) for each in judged)
    younger = "which are" if again == len(judged) else f"{again} of which are"
    named = {paper.folder: paper.name for paper in runner.papers()}
    whose = dict.fromkeys(named.get(each.claim.folder, each.claim.folder) for each in judged if each.again)
    rules = f"today's rules, {younger} younger than the runs ({', '.join(whose)})" if again else "pre-registered rules"
    texts = dict(SAID)
    if alone := sum(any(PROVISIONAL in case.detail for case in each.cases) for each in counted):
        texts["reproduced"] += f" ({alone} provisionally: no damaged control run shows that a loss would be seen)"
    words = ", ".join(f"{found[word]} {text}" for word, text in texts.items() if found[word])
    text = f"We judged {len(judged)} of the papers' claims by {rules}: {words}."
    if found[SHELF]:
        text += f" {found[SHELF]} more are not comparable, since conditions differ."
    return text


def overview(verdicts: Sequence[Verdict]) -> str:
    """How many of the papers' claims hold, how many were judged again, and how many are not counted."""
    foreseen = sum(bool(uncounted(each)) for each in verdicts)
    more = f"{foreseen} more follow from a formula and are not counted." if foreseen else ""
    return " ".join(filter(None, (held(verdicts), judged_again(verdicts), more)))
