"""*In short*: what a page's claims came to, in sentences with numbers, and why what failed did; made from saved verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.claims import ELSEWHERE, HOLDS, OUT, counts, tally
from reports.markup import parts
from reports.quantities import asked, ours, papers, scale

if TYPE_CHECKING:
    from reports.claims import Verdict

MOST = 2
"""Sentences about what was found, where no claim says which of them are to stand here."""
NOTHING = "Nothing has been judged yet: this page is of the profile {}; what is published is of the profile laptop."
TURNED = str.maketrans("<>", "><")
MISSED = ("not replicated", OUT, ELSEWHERE, "not kept", "failed")
NAMES = {"paper": ("claim of the paper", "claims of the paper"), "promise": ("promise of ours", "promises of ours")}
NAMES["confirmatory"] = ("confirmatory claim of the paper", "confirmatory claims of the paper")
NAMES["check"] = ("check", "checks")


def in_short(verdicts: Sequence[Verdict], profile: str) -> str:
    """The block as HTML; one line where nothing could be judged, nothing for a page without claims."""
    if not verdicts:
        return ""
    if profile == "smoke" or all(verdict.verdict in ("not run", "refused") for verdict in verdicts):
        return parts().short((), (), (), [NOTHING.format(profile or "of a trial")])
    chosen = [verdict for verdict in verdicts if verdict.claim.short]
    settled = (*HOLDS, "direction only")
    found = [v for v in verdicts if v.counted in settled and (v.claim.short or not chosen)]
    found = found if chosen else sorted(found, key=lambda v: v.claim.kind != "paper")[:MOST]
    open_ = [v for v in chosen if v.counted == "inconclusive" and v.detail]  # what a page asks, and cannot tell
    failed = missed(verdicts)
    if not (found or failed or open_):  # then that nothing was settled is the answer
        found = list(verdicts[:MOST])
    counted = [(kind, of, sum(of.values())) for kind, of in _once(counts(verdicts)).items()]
    said = [f"{number} {NAMES[kind][number > 1]}: {tally(of)}" for kind, of, number in counted]
    return parts().short([(v, told(v)) for v in found + open_], [(v, told(v), why(v)) for v in failed], said, ())


def _once(kinds: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Without the papers' claims where all of them are confirmatory, and told."""
    return {kind: of for kind, of in kinds.items() if kind != "paper" or of != kinds.get("confirmatory")}


def missed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """What failed, or could not be judged where the paper is."""
    return [verdict for verdict in verdicts if verdict.counted in MISSED]


def told(verdict: Verdict) -> str:
    """A claim in a sentence with what was measured: its own sentence for it, or the claim and both numbers."""
    claim, cases = verdict.claim, [case for case in verdict.cases if case.ours is not None]
    if claim.short and cases:
        # Where every case is as open as the other there is no more to say.
        unlike = any(case.detail or case.verdict != "inconclusive" for case in verdict.cases)
        open_ = f" Open: {verdict.detail}." if verdict.counted == "inconclusive" and verdict.detail and unlike else ""
        return claim.short.format(**numbers(verdict)) + _reversed(verdict) + _asked(verdict) + open_
    words, told = [claim.sentence], [case for case in cases if case.figure is not None]
    for who, of, number in (("Ours", cases, ours), ("The paper", told, papers)):
        found = [f"{case.case}: " * (len(verdict.cases) > 1) + number(claim, case) for case in of]
        words += [f"{who}: {'; '.join(found)}."] if found else []
    words += [f"But {verdict.detail}."] if verdict.detail and not cases else []
    return " ".join(words) + _asked(verdict)


def _reversed(verdict: Verdict) -> str:
    """Of a claim that is an order, the pairs that are shown to stand the other way."""
    if verdict.claim.effect != "order":
        return ""
    ends = [(case.case, case.high if verdict.claim.sign > 0 else case.low) for case in verdict.cases]
    other = [pair.translate(TURNED) for pair, end in ends if end is not None and verdict.claim.sign * end < 0]
    return f" Shown the other way here: {'; '.join(other)}." if other else ""


def _asked(verdict: Verdict) -> str:
    """What a promise or a check that failed was to reach, unless its sentence says so; a paper's number stands beside ours."""
    claim = verdict.claim
    if claim.kind == "paper" or verdict.counted not in MISSED or "asked" in (claim.short or ""):
        return ""
    cases = {asked(claim, case): case.case for case in verdict.cases if case.ours is not None}
    told = [text if len(cases) == 1 else f"{case}: {text}" for text, case in cases.items()]
    return f" Asked: {'; '.join(told)}." if told else ""


def numbers(verdict: Verdict) -> dict[str, Any]:
    """What a claim's `short` is filled with: `ours`, `paper`, and `interval`; of several cases their least and greatest."""
    claim, cases = verdict.claim, [case for case in verdict.cases if case.ours is not None]
    papers = [case.figure for case in cases if case.figure is not None]
    of = scale(claim, max(cases, key=lambda case: abs(case.ours)))
    filled = {"ours": _spanned([case.ours for case in cases], of), "paper": _spanned(papers, of), "interval": ""}
    if len(cases) == 1 and cases[0].low is not None and cases[0].high is not None:
        filled["interval"] = f"[{of.plain(cases[0].low)}, {of.plain(cases[0].high)}]"
    return filled


def _spanned(values: Sequence[float], of: Any) -> str:
    told = list(dict.fromkeys(of.plain(x) for x in ([min(values), max(values)] if values else [])))
    return " to ".join(told) + of.unit if told else "–"


def why(verdict: Verdict) -> str:
    """Why it failed, as far as it was tested: the first explanation; the claim's own place has them all."""
    for each in verdict.claim.explanations:
        return f"Tested: {each.changed}. Found: {each.found}."
    if verdict.counted in (OUT, ELSEWHERE):  # which is why it cannot be judged here
        detail = next(case.detail for case in verdict.cases if case.verdict == verdict.counted)
        return f"{detail[:1].upper()}{detail[1:]}."
    return "Not explained yet."
