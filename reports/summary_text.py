"""*In short*: sentences with numbers about a page's claims, and why some failed; made from saved verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reports.claims import ELSEWHERE, HOLDS, OUT, Claim, counts, tally
from reports.markup import parts
from reports.quantities import Scale, measured_text, paper_text, rule_text, scale

if TYPE_CHECKING:
    from reports.claims import Case, Verdict

MOST = 2
"""Sentences about findings on a page whose claims have no `short` of their own."""
NOTHING = "Nothing has been judged yet: this page is of the profile {}; what is published is of the profile laptop."
REVERSED = str.maketrans("<>", "><")
FAILURES = ("not replicated", OUT, ELSEWHERE, "not kept", "failed")
NAMES = {
    "confirmatory": ("confirmatory claim of the paper", "confirmatory claims of the paper"),
    "paper": ("claim of the paper", "claims of the paper"),
    "promise": ("promise of ours", "promises of ours"),
    "check": ("check", "checks"),
}


def in_short(verdicts: Sequence[Verdict], profile: str) -> str:
    """The block as HTML: one line where nothing could be judged, empty for a page without claims."""
    if not verdicts:
        return ""
    if profile == "smoke" or all(verdict.verdict in ("not run", "refused") for verdict in verdicts):
        return parts().short((), (), (), [NOTHING.format(profile or "of a trial")])
    chosen = [verdict for verdict in verdicts if verdict.claim.short]
    found = [v for v in chosen or verdicts if v.counted in (*HOLDS, "direction only")]
    found = found if chosen else sorted(found, key=lambda v: v.claim.kind != "paper")[:MOST]
    undecided = [v for v in chosen if v.counted == "inconclusive" and v.detail]
    failed = failures(verdicts)
    if not (found or failed or undecided):  # then that nothing is decided is the answer
        found = list(verdicts[:MOST])
    counted = [(sum(each.values()), kind, each) for kind, each in _distinct(counts(verdicts)).items()]
    totals = [f"{number} {NAMES[kind][number > 1]}: {tally(each)}" for number, kind, each in counted]
    return parts().short(
        [(v, sentence(v)) for v in found + undecided], [(v, sentence(v), reason(v)) for v in failed], totals, ()
    )


def _distinct(kinds: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The counts without those of the papers' claims if all of these are confirmatory, and counted as such."""
    return {kind: found for kind, found in kinds.items() if kind != "paper" or found != kinds.get("confirmatory")}


def failures(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts that failed, or could not be judged under the paper's conditions."""
    return [verdict for verdict in verdicts if verdict.counted in FAILURES]


def sentence(verdict: Verdict) -> str:
    """A claim with its measured numbers: its own sentence filled in, or the claim followed by both numbers."""
    claim, cases = verdict.claim, _measured(verdict)
    if claim.short and cases:
        # Where all cases are inconclusive without a reason, their list would say nothing more.
        unlike = any(case.detail or case.verdict != "inconclusive" for case in verdict.cases)
        undecided = verdict.counted == "inconclusive" and verdict.detail and unlike
        text = claim.short.format(**placeholders(verdict)) + _reversed_pairs(verdict) + _required(verdict)
        return text + (f" Open: {verdict.detail}." if undecided else "")
    words, with_figure = [claim.sentence], [case for case in cases if case.figure is not None]
    for name, rows, number in (("Ours", cases, measured_text), ("The paper", with_figure, paper_text)):
        found = [f"{case.case}: " * (len(verdict.cases) > 1) + number(claim, case) for case in rows]
        words += [f"{name}: {'; '.join(found)}."] if found else []
    words += [f"But {verdict.detail}."] if verdict.detail and not cases else []
    return " ".join(words) + _required(verdict)


def _measured(verdict: Verdict) -> list[Case]:
    return [case for case in verdict.cases if case.ours is not None]


def _reversed_pairs(verdict: Verdict) -> str:
    """Of an order, the pairs that are shown to have the opposite order."""
    sign = verdict.claim.sign
    ends = [(case.case, case.high if sign > 0 else case.low) for case in verdict.cases]
    pairs = [pair.translate(REVERSED) for pair, end in ends if end is not None and sign * end < 0]
    return f" Shown the other way here: {'; '.join(pairs)}." if pairs and verdict.claim.effect == "order" else ""


def _required(verdict: Verdict) -> str:
    """What a failed promise or check requires, unless its sentence says it; a paper's number stands next to ours."""
    claim: Claim = verdict.claim
    if claim.kind == "paper" or verdict.counted not in FAILURES or "asked" in (claim.short or ""):
        return ""
    cases = {rule_text(claim, case): case.case for case in _measured(verdict)}
    rules = [text if len(cases) == 1 else f"{case}: {text}" for text, case in cases.items()]
    return f" Asked: {'; '.join(rules)}." if rules else ""


def placeholders(verdict: Verdict) -> dict[str, str]:
    """What replaces {ours}, {paper} and {interval} in a claim's `short`; of several cases the least and the greatest."""
    claim, cases = verdict.claim, _measured(verdict)
    figures = [case.figure for case in cases if case.figure is not None]
    written = scale(claim, max(cases, key=lambda case: abs(case.ours)))
    found = {"ours": _span([case.ours for case in cases], written), "paper": _span(figures, written), "interval": ""}
    if len(cases) == 1 and cases[0].low is not None and cases[0].high is not None:
        found["interval"] = f"[{written.plain(cases[0].low)}, {written.plain(cases[0].high)}]"
    return found


def _span(values: Sequence[float], written: Scale) -> str:
    ends = dict.fromkeys(written.plain(x) for x in ([min(values), max(values)] if values else []))
    return " to ".join(ends) + written.unit if ends else "–"


def reason(verdict: Verdict) -> str:
    """Why a claim failed, as far as that was tested: its first explanation. The claim's own entry has all of them."""
    for each in verdict.claim.explanations:
        return f"Tested: {each.changed}. Found: {each.found}."
    if verdict.counted in (OUT, ELSEWHERE):
        detail = next(case.detail for case in verdict.cases if case.verdict == verdict.counted)
        return f"{detail[:1].upper()}{detail[1:]}."
    return "Not explained yet."
