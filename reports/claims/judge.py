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
from reports.claims.effects import effects, mean, per_seed, possible_loss
from reports.claims.statistics import LEVEL, interval, one_sided_p, smallest_effect

if TYPE_CHECKING:
    import pandas as pd

OUT, ELSEWHERE = "out of regime", "not reproducible here"
FAR = 4.0
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
    """One case's verdict, with the numbers that it rests on."""

    case: str
    verdict: str
    paper: float | str | None = None
    ours: float | None = None
    low: float | None = None
    """The lower end of the interval, or of the range where every run is judged."""
    high: float | None = None
    near: float | None = None
    """The lower edge of the range that satisfies the rule; None where it has none."""
    far: float | None = None
    """The upper edge."""
    p: float | None = None
    """Of the one-sided test that the verdict stands for."""
    n: int = 0
    """Seeds."""
    rests_on: float | None = None
    """How far the rule's boundary, or the effect itself, is from no effect, as a share of the reference."""
    detail: str = ""

    @property
    def least(self) -> float | None:
        """The smallest effect that so many seeds detect; None without an interval."""
        return None if self.low is None or self.high is None else smallest_effect((self.high - self.low) / 2, self.n)

    @property
    def figure(self) -> float | None:
        """The paper's number; None where it says it in words, or nothing."""
        return self.paper if isinstance(self.paper, (int, float)) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """A claim's verdict, and how it was reached."""

    claim: Claim
    verdict: str
    cases: tuple[Case, ...] = ()
    detail: str = ""
    profile: str = ""
    command: str = ""
    """The command that repeats it."""
    sealed: int | None = None
    """The first of the sealed seeds that it was reached on; None for other seeds."""
    standing: str | None = None
    """Of a paper's claim: the claim's own or, of a sealed run by a rule that had been committed, confirmatory."""
    changed: tuple[str, ...] = ()
    """What it rests on and has changed since."""
    remarks: tuple[str, ...] = ()
    """Sentences that a reader of the verdict must know."""
    adjusted: float | None = None
    """Holm's p among all the judged claims of the paper."""

    @property
    def p(self) -> float | None:
        """The largest p of the cases, since all of them are claimed."""
        return max((case.p for case in self.cases if case.p is not None), default=None)

    @property
    def counted(self) -> str:
        """The verdict after Holm's correction: a single test's finding may not hold among all of a paper's."""
        found = self.verdict in ("replicated", "parity", "direction only")
        return "inconclusive" if found and self.adjusted is not None and self.adjusted > LEVEL else self.verdict

    @property
    def text(self) -> str:
        return self.verdict if self.counted == self.verdict else f"{self.verdict}, after Holm {self.counted}"


def judge(claim: Claim, results: pd.DataFrame, profile: str = "", calibrations: Sequence[Calibration] = ()) -> Verdict:
    """Judge one claim by a table with a row for every run: subject, seed and the metrics."""
    cases = [_judge_case(claim, each, results, calibrations) for each in claim.comparisons]
    if claim.elsewhere:
        detail = f"the paper's figure rests on {claim.elsewhere}"
        cases = [dataclasses.replace(case, verdict=ELSEWHERE, p=None, detail=detail) for case in cases]
    found = {case.verdict for case in cases}
    worst_first = ("refused", *reversed(OUTCOMES[claim.kind]))
    verdict = next((each for each in worst_first if each in found), "refused")
    detail = cases[0].detail
    if len(cases) > 1:
        details = [f"{case.case}: {case.detail if case.verdict in HOLDS else case.verdict}" for case in cases]
        detail = "; ".join(each for each in details if not each.endswith(": "))
    unseen = claim.kind == "paper" and all(seed in SEALED for seed in results["seed"])
    sealed = int(min(results["seed"]) // BLOCK * BLOCK) if unseen else None
    return Verdict(claim=claim, verdict=verdict, cases=tuple(cases), detail=detail, profile=profile, sealed=sealed)


def _judge_case(claim: Claim, each: Comparison, results: pd.DataFrame, calibrations: Sequence[Calibration]) -> Case:
    """Judge one case, or say why it may not be judged."""
    names = {"case": each.case, "paper": each.paper}
    if fitted := [record for record in calibrations if record.covers(each)]:
        why = "; ".join(f"{record.constant} was fitted to {record.fitted_to}" for record in fitted)
        return Case(**names, verdict="calibrated", detail=why)
    mine, theirs = (per_seed(claim, each, results, name) for name in (each.subject, each.reference))
    if problem := _problem(claim, each, results):
        return Case(**names, verdict="refused", detail=problem)
    by_seed = effects(claim, mine, theirs)
    seeds = len(mine.keys() | theirs.keys())
    details = [f"compared on the {len(by_seed)} of {seeds} seeds that both have"] if len(by_seed) < seeds else []
    infinite = [seed for seed, x in by_seed.items() if not math.isfinite(x)]
    if infinite:
        details.append(
            f"{each.metric} was not measured, or cannot be compared, on {len(infinite)} of {len(by_seed)} seeds"
        )
    if infinite or not by_seed:
        verdict = "failed" if claim.kind == "check" else "inconclusive"
        return Case(**names, verdict=verdict, n=len(by_seed), p=1.0, detail="; ".join(details))
    numbers = list(by_seed.values())
    near, far = claim.band(each.paper, possible_loss(claim, each, results))
    verdict, p, why = decide(claim, numbers, near, far)
    if each.loser and verdict in HOLDS:
        losers = effects(claim, per_seed(claim, each, results, each.loser), theirs)
        misses = one_sided_p(list(losers.values()), near if claim.sign > 0 else far, -claim.sign)
        p = max(p, misses)
        if misses > LEVEL:
            name = " ".join(word for word in each.loser.split() if word not in each.subject.split()) or each.loser
            why = f"{name}, which loses in the paper, is not shown to lose more than the margin here, so these runs cannot tell"
            verdict = "inconclusive"
    outside = outside_regime(claim, each, results)
    if outside and verdict == "not replicated":
        predicted = claim.foretold.get(each.case)
        verdict = OUT if predicted is None or near <= predicted <= far else verdict
        trend = "no trend towards it was given" if predicted is None else f"there its trend foretells {predicted:g}"
        details.append(f"outside the paper's regime: {'; '.join(outside)}; {trend}")
    ours, low, high = interval(numbers)
    if claim.every:
        low, high = min(numbers), max(numbers)
    known = {"ours": ours, "low": low, "high": high, "near": near, "far": far}
    known = {name: value if math.isfinite(value) else None for name, value in known.items()}
    known["rests_on"] = _decisive_share(claim, ours, near if claim.sign > 0 else far, abs(mean(theirs)))
    return Case(**names, **known, verdict=verdict, p=p, n=len(numbers), detail="; ".join(filter(None, (*details, why))))


def outside_regime(claim: Claim, each: Comparison, results: pd.DataFrame) -> list[str]:
    """The figures of the claim's regime that differ by more than `FAR` times from the paper's, in words."""
    found = []
    for column, paper in claim.regime.items():
        theirs = paper.get(each.case) if isinstance(paper, dict) else paper
        if theirs is None:
            continue
        if column not in results.columns:
            raise BadClaim(f"claim {claim.id!r}: the results have no column {column!r}; {nearest(column, results)}")
        ours = float(results.loc[results["subject"] == each.subject, column].mean())
        if differs(ours, theirs):
            found.append(f"{column} is {_both(ours, theirs)}")
    return found


def _both(here: float, paper: float) -> str:
    """Both figures as text: the paper's with its own digits, ours with one more if the paper's has a fraction."""
    places = len(f"{paper:.10f}".rstrip("0").partition(".")[2])
    ours = f"{here:,.{places + (places > 0)}f}"
    return f"{ours} here and {paper:,.{places}f} in the paper".replace("-", "−")


def differs(ours: float, theirs: float) -> bool:
    """Whether two figures differ by more than `FAR` times; NaN differs from everything."""
    least, most = sorted((abs(ours), abs(theirs)))
    return not most <= FAR * least


def _problem(claim: Claim, each: Comparison, results: pd.DataFrame) -> str:
    """Why the results cannot be judged; empty if they can."""
    missing = [name for name in (each.best, each.frozen, each.loser) if name and name not in set(results["subject"])]
    if missing:
        return f"the results have no {' and no '.join(missing)}, so nobody knows what can be lost"
    seeds = results.loc[results["subject"].isin(each.subjects), "seed"]
    allowed = SEALED if all(seed in SEALED for seed in seeds) else JUDGING
    foreign = ", ".join(str(seed) for seed in sorted(set(seeds)) if seed not in allowed)
    if claim.kind == "paper" and foreign:
        return f"seed {foreign} served for tuning or a pilot; verdicts are reached on {JUDGING.start} and above"
    if each.best and not possible_loss(claim, each, results) > 0:
        return f"{each.best} is no better than {each.frozen}, so nothing can be lost"
    return ""


def decide(claim: Claim, numbers: list[float], near: float, far: float) -> tuple[str, float | None, str]:
    """The verdict on a case's numbers, the p of its test, and a reason where the verdict alone does not say it."""
    few = f"too few seeds: {len(numbers)} of {claim.seeds}" if len(numbers) < claim.seeds else ""
    if claim.every:
        if not all(near <= x <= far for x in numbers):
            return OUTCOMES[claim.kind][-1], None, "a run breaks the rule"
        return "inconclusive" if few else OUTCOMES[claim.kind][0], None, few
    edges = [(edge, sign) for edge, sign in ((near, 1), (far, -1)) if math.isfinite(edge)]
    rule = max(one_sided_p(numbers, edge, sign) for edge, sign in edges)
    if few:
        return "inconclusive", rule, few
    misses = min(one_sided_p(numbers, edge, -sign) for edge, sign in edges) <= LEVEL
    yes, no = {"paper": ("replicated", "not replicated"), "promise": ("kept", "not kept")}[claim.kind]
    unless = no if misses else "inconclusive"
    if claim.relation == "parity":
        worse = one_sided_p(numbers, 0.0, -claim.sign) <= LEVEL
        yes = "parity" if claim.kind == "paper" else yes
        return yes if rule <= LEVEL else unless, rule, "measurably worse" if worse else ""
    if rule <= LEVEL or claim.kind == "promise" or claim.neutral is None:
        return yes if rule <= LEVEL else unless, rule, ""
    direction = one_sided_p(numbers, claim.neutral, claim.sign)
    if direction <= LEVEL:
        return "direction only", direction, "the size is another" if misses else "the size is open"
    return unless, direction, ""


def _decisive_share(claim: Claim, ours: float, edge: float, level: float) -> float | None:
    """How far the rule is from no effect or, where it is not, the effect itself; as a share of the reference."""
    if claim.neutral is None:
        return None
    distance = abs(edge - claim.neutral) or abs(ours - claim.neutral)
    if claim.effect == "ratio":
        return distance
    return distance / level if level > 0 else None
