"""From a table of results to a verdict, by the rules that `reports.claims` states."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lib.errors import nearest
from lib.seeds import BLOCK, JUDGING, SEALED
from reports.claims.calibration import Calibration
from reports.claims.claim import BadClaim, Claim, Comparison
from reports.claims.effects import effects, lost, mean, per_seed
from reports.claims.statistics import LEVEL, beyond, interval, least

if TYPE_CHECKING:
    import pandas as pd

OUT, ELSEWHERE = "out of regime", "not reproducible here"
APART = 4.0
"""How many times larger or smaller than the paper's a figure of the regime may be."""
OUTCOMES = {
    "paper": ("replicated", "parity", "direction only", "inconclusive", ELSEWHERE, OUT, "not replicated"),
    "promise": ("kept", "inconclusive", "not kept"),
    "check": ("passed", "failed"),
}
"""By kind, the best first: of several cases the worst is the claim's verdict."""
HOLDS = ("replicated", "parity", "kept", "passed")
VERDICTS = (*dict.fromkeys(sum(OUTCOMES.values(), ())), "calibrated", "refused", "not run")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What one case of a claim came to."""

    case: str
    verdict: str
    paper: float | str | None = None
    ours: float | None = None
    low: float | None = None
    """The lower end of the interval, or of the range where every run is judged."""
    high: float | None = None
    near: float | None = None
    """The lower edge of what satisfies the rule; None where there is none."""
    far: float | None = None
    """The upper one."""
    p: float | None = None
    """Of the one-sided test that the verdict stands for."""
    n: int = 0
    """Seeds."""
    rests_on: float | None = None
    """How far the rule's boundary, or what was found, is from no effect, as a share of the reference."""
    detail: str = ""

    @property
    def least(self) -> float | None:
        """The smallest effect that so many seeds can tell, where their mean was judged."""
        return None if self.low is None or self.high is None else least((self.high - self.low) / 2, self.n)

    @property
    def figure(self) -> float | None:
        """The paper's number; None where it says it in words, or nothing."""
        return self.paper if isinstance(self.paper, (int, float)) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a claim came to, and how it was found."""

    claim: Claim
    verdict: str
    cases: tuple[Case, ...] = ()
    detail: str = ""
    profile: str = ""
    command: str = ""
    """What the runner was asked for, with any parameter that differs from the notebook's."""
    sealed: int | None = None
    """The block of sealed seeds that it was reached on, by its first."""
    standing: str | None = None
    """Of a paper's claim: the claim's own or, of a sealed run by a rule that had been committed, confirmatory."""
    changed: tuple[str, ...] = ()
    """What it rests on and is no longer what it was."""
    remarks: tuple[str, ...] = ()
    """What a reader of the verdict must know."""
    adjusted: float | None = None
    """Holm's p among all the judged claims of the paper."""

    @property
    def p(self) -> float | None:
        """The largest of the cases': all of them are claimed."""
        return max((case.p for case in self.cases if case.p is not None), default=None)

    @property
    def counted(self) -> str:
        """The verdict that counts: what a single test says may not hold among all of a paper's."""
        found = self.verdict in ("replicated", "parity", "direction only")
        return "inconclusive" if found and self.adjusted is not None and self.adjusted > LEVEL else self.verdict

    @property
    def text(self) -> str:
        return self.verdict if self.counted == self.verdict else f"{self.verdict}, after Holm {self.counted}"


def judge(claim: Claim, results: pd.DataFrame, profile: str = "", calibrations: Sequence[Calibration] = ()) -> Verdict:
    """The verdict on one claim from a table with a row for every run: subject, seed and the metrics."""
    cases = [_case(claim, each, results, calibrations) for each in claim.comparisons]
    if claim.elsewhere:
        told = f"the paper's figure rests on {claim.elsewhere}"
        cases = [dataclasses.replace(case, verdict=ELSEWHERE, p=None, detail=told) for case in cases]
    found = {case.verdict for case in cases}
    worst_first = ("refused", *reversed(OUTCOMES[claim.kind]))
    verdict = next((each for each in worst_first if each in found), "refused")
    detail = cases[0].detail
    if len(cases) > 1:
        told = [f"{case.case}: {case.detail if case.verdict in HOLDS else case.verdict}" for case in cases]
        detail = "; ".join(each for each in told if not each.endswith(": "))
    unseen = claim.kind == "paper" and all(seed in SEALED for seed in results["seed"])
    sealed = int(min(results["seed"]) // BLOCK * BLOCK) if unseen else None
    return Verdict(claim=claim, verdict=verdict, cases=tuple(cases), detail=detail, profile=profile, sealed=sealed)


def _case(claim: Claim, each: Comparison, results: pd.DataFrame, calibrations: Sequence[Calibration]) -> Case:
    """One case: whether it may be judged, its numbers, and what they say."""
    told = {"case": each.case, "paper": each.paper}
    if fitted := [record for record in calibrations if record.covers(each)]:
        why = "; ".join(f"{record.constant} was fitted to {record.fitted_to}" for record in fitted)
        return Case(**told, verdict="calibrated", detail=why)
    mine, theirs = (per_seed(claim, each, results, name) for name in (each.subject, each.reference))
    if problem := _unfit(claim, each, results):
        return Case(**told, verdict="refused", detail=problem)
    by_seed = effects(claim, mine, theirs)
    of = len(mine.keys() | theirs.keys())
    details = [f"compared on the {len(by_seed)} of {of} seeds that both have"] if len(by_seed) < of else []
    infinite = [seed for seed, x in by_seed.items() if not math.isfinite(x)]
    if infinite:
        details.append(
            f"{each.metric} was not measured, or cannot be compared, on {len(infinite)} of {len(by_seed)} seeds"
        )
    if infinite or not by_seed:
        verdict = "failed" if claim.kind == "check" else "inconclusive"
        return Case(**told, verdict=verdict, n=len(by_seed), p=1.0, detail="; ".join(details))
    numbers = list(by_seed.values())
    near, far = claim.band(each.paper, lost(claim, each, results))
    verdict, p, why = decide(claim, numbers, near, far)
    if each.loser and verdict in HOLDS:
        missed = _missed(claim, each, results, theirs, near if claim.sign > 0 else far)
        p = max(p, missed)
        if missed > LEVEL:
            who = " ".join(word for word in each.loser.split() if word not in each.subject.split()) or each.loser
            why = f"{who}, which loses in the paper, is not shown to lose more than the margin here, so these runs cannot tell"
            verdict = "inconclusive"
    marked = apart(claim, each, results)
    if marked and verdict == "not replicated":
        there = claim.foretold.get(each.case)
        verdict = OUT if there is None or near <= there <= far else verdict
        trend = "no trend towards it was given" if there is None else f"there its trend foretells {there:g}"
        details.append(f"outside the paper's regime: {'; '.join(marked)}; {trend}")
    ours, low, high = interval(numbers)
    if claim.every:
        low, high = min(numbers), max(numbers)
    known = {"ours": ours, "low": low, "high": high, "near": near, "far": far}
    known = {name: value if math.isfinite(value) else None for name, value in known.items()}
    known["rests_on"] = _rests_on(claim, ours, near if claim.sign > 0 else far, abs(mean(theirs)))
    return Case(**told, **known, verdict=verdict, p=p, n=len(numbers), detail="; ".join(filter(None, (*details, why))))


def _missed(claim: Claim, each: Comparison, results: pd.DataFrame, theirs: dict[int, float], edge: float) -> float:
    """p of the test that the mode that loses in the paper misses the margin here."""
    return beyond(list(effects(claim, per_seed(claim, each, results, each.loser), theirs).values()), edge, -claim.sign)


def apart(claim: Claim, each: Comparison, results: pd.DataFrame) -> list[str]:
    """What of the regime that can decide a case is more than `APART` times larger or smaller here than in the paper."""
    said = []
    for column, paper in claim.regime.items():
        there = paper.get(each.case) if isinstance(paper, dict) else paper
        if there is None:
            continue
        if column not in results.columns:
            raise BadClaim(f"claim {claim.id!r}: the results have no column {column!r}; {nearest(column, results)}")
        here = float(results.loc[results["subject"] == each.subject, column].mean())
        if strays(here, there):
            said.append(f"{column} is {_beside(here, there)}")
    return said


def _beside(here: float, paper: float) -> str:
    """Both, the paper's as it has it, ours to a digit more where that has any after the point."""
    places = len(f"{paper:.10f}".rstrip("0").partition(".")[2])
    ours = f"{here:,.{places + (places > 0)}f}"
    return f"{ours} here and {paper:,.{places}f} in the paper".replace("-", "−")


def strays(here: float, there: float) -> bool:
    """Whether two figures are more than `APART` times apart; what is not known is."""
    least, most = sorted((abs(here), abs(there)))
    return not most <= APART * least


def _unfit(claim: Claim, each: Comparison, results: pd.DataFrame) -> str:
    """Why the results cannot be a verdict's."""
    missing = [name for name in (each.best, each.frozen, each.loser) if name and name not in set(results["subject"])]
    if missing:
        return f"the results have no {' and no '.join(missing)}, so nobody knows what can be lost"
    seeds = results.loc[results["subject"].isin(each.subjects), "seed"]
    kept = SEALED if all(seed in SEALED for seed in seeds) else JUDGING
    foreign = ", ".join(str(seed) for seed in sorted(set(seeds)) if seed not in kept)
    if claim.kind == "paper" and foreign:
        return f"seed {foreign} served for tuning or a pilot; verdicts are reached on {JUDGING.start} and above"
    if each.best and not lost(claim, each, results) > 0:
        return f"{each.best} is no better than {each.frozen}, so nothing can be lost"
    return ""


def decide(claim: Claim, numbers: list[float], near: float, far: float) -> tuple[str, float | None, str]:
    """The verdict on a case's numbers, the p that it stands for, and why where that is not plain."""
    few = f"too few seeds: {len(numbers)} of {claim.seeds}" if len(numbers) < claim.seeds else ""
    if claim.every:
        if not all(near <= x <= far for x in numbers):
            return OUTCOMES[claim.kind][-1], None, "a run breaks the rule"
        return "inconclusive" if few else OUTCOMES[claim.kind][0], None, few
    edges = [(edge, sign) for edge, sign in ((near, 1), (far, -1)) if math.isfinite(edge)]
    rule = max(beyond(numbers, edge, sign) for edge, sign in edges)
    if few:
        return "inconclusive", rule, few
    misses = min(beyond(numbers, edge, -sign) for edge, sign in edges) <= LEVEL
    yes, no = {"paper": ("replicated", "not replicated"), "promise": ("kept", "not kept")}[claim.kind]
    unless = no if misses else "inconclusive"
    if claim.relation == "parity":
        worse = beyond(numbers, 0.0, -claim.sign) <= LEVEL
        yes = "parity" if claim.kind == "paper" else yes
        return yes if rule <= LEVEL else unless, rule, "measurably worse" if worse else ""
    if rule <= LEVEL or claim.kind == "promise" or claim.neutral is None:
        return yes if rule <= LEVEL else unless, rule, ""
    direction = beyond(numbers, claim.neutral, claim.sign)
    if direction <= LEVEL:
        return "direction only", direction, "the size is another" if misses else "the size is open"
    return unless, direction, ""


def _rests_on(claim: Claim, ours: float, edge: float, level: float) -> float | None:
    """The share of the reference that decides: the rule's own distance from no effect or, where it has none, what was found."""
    if claim.neutral is None:
        return None
    apart = abs(edge - claim.neutral) or abs(ours - claim.neutral)
    if claim.effect == "ratio":
        return apart
    return apart / level if level > 0 else None
