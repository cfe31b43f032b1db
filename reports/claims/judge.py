"""From a table of results to a verdict, by the rules that `reports.claims` states."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lib.errors import nearest
from lib.seeds import BLOCK, JUDGING, SEALED
from reports.claims.calibration import Calibration
from reports.claims.claim import BadClaim, Claim, Comparison
from reports.claims.effects import Rows, effects, mean, natural, per_seed, scaled
from reports.claims.statistics import MOST_SEEDS, interval, levels, one_sided_p, seeds_for, smallest_effect

if TYPE_CHECKING:
    import pandas as pd

REPRODUCED, OTHER_SIZE, MIXED = "reproduced", "other size", "mixed"
UNDECIDED, CONTRADICTED, SHELF = "undecided", "contradicted", "not comparable"
WORDS = {
    "paper": (REPRODUCED, OTHER_SIZE, MIXED, UNDECIDED, CONTRADICTED, SHELF),
    "estimate": ("estimate",),
    "target": ("met", "missed"),
    "check": ("passed", "failed"),
}
SHOWN = (REPRODUCED, OTHER_SIZE)
"""Of a case: the paper's direction is shown."""
AGAINST = (CONTRADICTED, "missed", "failed")
ALL_WORDS = (*sum(WORDS.values(), ()), "calibrated", "refused", "not run")
LEAST, MOST, HARDLY = 0.5, 2.0, 0.1
"""Shares of the paper's effect: a reproduced size lies between the first two, and below the third there is hardly an effect."""
FAR = 4.0
"""How many times larger or smaller than the paper's a figure of the regime may be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One case's verdict, with the numbers that it rests on."""

    case: str
    word: str
    paper: float | str | None = None
    ours: float | None = None
    low: float | None = None
    """The lower end of the interval, or of the range of the runs of a check."""
    high: float | None = None
    part: tuple[float, float, float] | None = None
    """The share of the paper's effect, or of an equivalence the share of the gain that is kept, with its interval."""
    p: float | None = None
    """Of the one-sided test that what is shown rests on."""
    n: int = 0
    """Seeds."""
    tells: float | None = None
    """The smallest effect that so many seeds tell nine times in ten, in the unit of `part`, otherwise in the effect's own."""
    needs: int | None = None
    """How many seeds find the effect that is sought nine times in ten: the paper's or, without a number, the measured one."""
    rests_on: float | None = None
    """How far the rule's edge, or the effect itself, is from no effect, as a share of the reference."""
    detail: str = ""

    @property
    def figure(self) -> float | None:
        """The paper's number; None where it says it in words, or nothing."""
        return self.paper if isinstance(self.paper, (int, float)) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """A claim's verdict, and how it was reached."""

    claim: Claim
    word: str
    cases: tuple[Case, ...] = ()
    detail: str = ""
    profile: str = ""
    command: str = ""
    """The command that repeats it."""
    commits: tuple[str, ...] = ()
    """Those of its runs' code."""
    sealed: int | None = None
    """The first of the sealed seeds that it was reached on; None for other seeds."""
    again: str = ""
    """The commit of the runs from which today's rule judged it again; empty where its rule is still that of its run."""
    changed: tuple[str, ...] = ()
    """What it rests on and has changed since."""
    remarks: tuple[str, ...] = ()
    """Sentences that a reader of the verdict must know."""

    @property
    def counts(self) -> bool:
        """Whether it is one of a paper's counted claims: of sealed seeds, and not foreseen by a formula."""
        return self.claim.kind == "paper" and not self.claim.foreseen and self.sealed is not None

    @property
    def commit(self) -> str:
        """The first of its commits, if any."""
        return self.commits[0][:10] if self.commits else ""

    @property
    def text(self) -> str:
        """The word, of a mixed verdict with the number of cases that are shown."""
        judged = [case for case in self.cases if case.word in WORDS["paper"]]
        shown = sum(case.word in SHOWN for case in judged)
        return f"{MIXED} ({shown} of {len(judged)})" if self.word == MIXED else self.word


def judge(
    claim: Claim,
    results: pd.DataFrame | Rows,
    profile: str = "",
    calibrations: Sequence[Calibration] = (),
    again: str = "",
) -> Verdict:
    """Judge one claim by a row for every run: subject, seed and the metrics. `again` is the commit of runs of an older rule."""
    rows = results if isinstance(results, list) else results.to_dict("records")
    cases = tuple(_judge_case(claim, each, rows, calibrations, bool(again)) for each in claim.comparisons)
    details = [f"{case.case}: {case.detail}" if len(cases) > 1 else case.detail for case in cases if case.detail]
    unseen = claim.kind == "paper" and all(row["seed"] in SEALED for row in rows)
    sealed = int(min(row["seed"] for row in rows) // BLOCK * BLOCK) if unseen else None
    known = {"profile": profile, "sealed": sealed, "again": again}
    return Verdict(claim=claim, word=together([c.word for c in cases]), cases=cases, detail="; ".join(details), **known)


def together(words: Sequence[str]) -> str:
    """The word for a claim whose cases have these: never the worst case's, where others are shown."""
    found = {word for word in words if word != "calibrated"}
    if CONTRADICTED in found:  # what lies outside the paper's regime adds nothing to what contradicts it inside
        found.discard(SHELF)
    for word in ("refused", "failed", "missed", SHELF):
        if word in found:
            return word
    if len(found) == 1:
        return found.pop()
    if not found:
        return "refused"
    if found <= {*SHOWN}:
        return OTHER_SIZE
    return MIXED if found & {*SHOWN} else CONTRADICTED


def _judge_case(
    claim: Claim, each: Comparison, rows: Rows, calibrations: Sequence[Calibration], provisional: bool
) -> Case:
    """Judge one case, or say why it may not be judged; a provisional judgement does without a planted control."""
    names = {"case": each.case, "paper": each.paper}
    if fitted := [record for record in calibrations if record.covers(each)]:
        why = "; ".join(f"{record.constant} was fitted to {record.fitted_to}" for record in fitted)
        return Case(**names, word="calibrated", detail=why)
    mine, theirs = (per_seed(claim, each, rows, name) for name in (each.subject, each.reference))
    if problem := _problem(claim, each, rows, provisional):
        return Case(**names, word="refused", detail=problem)
    by_seed = effects(claim, mine, theirs)
    seeds = len(mine.keys() | theirs.keys())
    numbers = [scaled(claim, x) for x in by_seed.values()]
    details = [f"compared on the {len(by_seed)} of {seeds} seeds that both have"] if len(by_seed) < seeds else []
    elsewhere = [f"the paper's figure rests on {claim.elsewhere}"] if claim.elsewhere else []
    if infinite := sum(not math.isfinite(x) for x in numbers):
        details.append(f"{each.metric} was not measured, or cannot be compared, on {infinite} of {len(by_seed)} seeds")
    if infinite or not by_seed:
        word = {"paper": UNDECIDED, "target": "missed", "check": "failed"}.get(claim.kind, "refused")
        word = SHELF if claim.elsewhere else word
        return Case(**names, word=word, n=len(by_seed), detail="; ".join(details + elsewhere))
    level = levels(claim.looks)[sum(len(numbers) >= look for look in claim.looks[1:])]
    middle, *ends = interval(numbers, level)
    ends = [min(numbers), max(numbers)] if claim.kind == "check" else [x for x in ends if math.isfinite(x)]
    ours, *around = (natural(claim, x) for x in (middle, *ends))
    known = {"ours": ours, "n": len(numbers), "rests_on": _decisive_share(claim, ours, abs(mean(theirs)))}
    known |= dict(zip(("low", "high"), sorted(around), strict=True)) if around else {}
    found: dict[str, Any] = {}
    if len(numbers) < claim.looks[0] and claim.kind != "check":
        details.append(f"too few seeds: {len(numbers)} of {claim.looks[0]}")
        word = UNDECIDED if claim.kind == "paper" else "refused"
    elif claim.kind in ("target", "check") and not claim.frozen:
        word = _in_band(claim, around or [ours])
    else:
        shared = claim, each, numbers, level
        found = _equivalence(*shared, rows, theirs) if claim.frozen else _effect(*shared)
        word = found.pop("word")
    outside = outside_regime(claim, each, rows)
    if outside and word == CONTRADICTED:
        word = SHELF
        details.append(f"outside the paper's regime: {'; '.join(outside)}")
    if claim.elsewhere:
        word, found = SHELF, {name: value for name, value in found.items() if name in ("part", "tells")}
    details += [*elsewhere, found.pop("detail", "")]
    return Case(**names, **known, **found, word=word, detail="; ".join(filter(None, details)))


def _edge(claim: Claim) -> float:
    """The rule's edge on the scale of `scaled`: no effect, or the margin."""
    return scaled(claim, claim.margin) if isinstance(claim.margin, (int, float)) else 0.0


def _in_band(claim: Claim, ends: list[float]) -> str:
    """Whether the interval of a target, or every run of a check, lies where the rule says."""
    met, missed = WORDS[claim.kind]
    low, high = claim.edges[0], claim.edges[-1]
    if claim.relation != "within":
        low, high = (low, math.inf) if claim.sign > 0 else (-math.inf, high)
    return met if all(low <= x <= high for x in ends) else missed


def _effect(claim: Claim, each: Comparison, numbers: list[float], level: float) -> dict[str, Any]:
    """The word of a case with the share that it rests on, its p, and what its seeds tell."""
    spread, edge = _spread(numbers), _edge(claim)
    middle, low, high = interval(numbers, level)
    unit, part = 1.0, None
    if isinstance(each.paper, (int, float)) and not claim.order:
        unit = scaled(claim, each.paper)
        part = middle / unit, low / unit, high / unit
        word, detail = word_of_share(*part), ""
        needs = seeds_for(spread, LEAST * unit, level)
        if word == OTHER_SIZE:
            detail = "smaller" if part[2] < LEAST else "larger" if part[1] > MOST else "the size is open"
    else:
        word, detail = _word_of_edge(claim, low, high, edge)
        needs = seeds_for(spread, abs(middle - edge), level)
    found = {"part": part, "tells": smallest_effect(spread, len(numbers), level) / unit}
    if claim.kind == "estimate":
        beyond = f"{natural(claim, high):.2g}".replace("-", "−")
        excluded = f"an effect beyond {beyond}, in the paper's direction, is excluded"
        return found | {"word": "estimate", "detail": excluded if low <= 0 else ""}
    if word == UNDECIDED:
        detail = _seeds(needs, "as large as the paper's" if part else "as measured")
    p = one_sided_p(numbers, 0.0 if word != REPRODUCED or part else edge, 1)
    return found | {"word": word, "needs": needs, "detail": detail, "p": p}


def word_of_share(middle: float, low: float, high: float) -> str:
    """The word for a share of the paper's effect with this interval."""
    if low > 0 and low >= LEAST and high <= MOST:
        return REPRODUCED
    if high < HARDLY or (low <= 0 and high < LEAST):
        return CONTRADICTED
    return OTHER_SIZE if low > 0 else UNDECIDED


def _word_of_edge(claim: Claim, low: float, high: float, edge: float) -> tuple[str, str]:
    """The word where the paper has no number, and why the size is another."""
    if low > edge:
        return REPRODUCED, ""
    if claim.effect == "value":
        return (CONTRADICTED if high < edge else UNDECIDED), ""
    if low > 0:
        return OTHER_SIZE, "smaller than the margin" if high < edge else "the size is open"
    return (CONTRADICTED if high < 0 or (edge > 0 and high < edge) else UNDECIDED), ""


def _equivalence(
    claim: Claim, each: Comparison, numbers: list[float], level: float, rows: Rows, theirs: dict[int, float]
) -> dict[str, Any]:
    """Whether the subject keeps enough of what the reference gains over a frozen model, and the control does not."""
    frozen = per_seed(claim, each, rows, each.frozen)
    gain = claim.sign * (mean(theirs) - mean(frozen))
    gains = [claim.sign * (theirs[seed] - frozen[seed]) for seed in theirs.keys() & frozen.keys()]
    if not gain > 0 or (len(gains) > 1 and not interval(gains)[1] > 0):
        why = f"{each.reference} is not shown to be better than {each.frozen}, so nothing can be lost"
        return {"word": UNDECIDED if claim.kind == "paper" else "missed", "detail": why}

    def kept(values: list[float]) -> tuple[float, float, float]:
        middle, low, high = interval(values, level)
        return 1 + middle / gain, 1 + low / gain, 1 + high / gain

    part, rule, spread = kept(numbers), 1 - claim.share, _spread(numbers)
    found = {"part": part, "tells": smallest_effect(spread, len(numbers), level) / gain}
    enough = part[1] > rule
    worse = "measurably worse" if part[2] < 1 else ""
    lost = scaled(claim, each.paper) if isinstance(each.paper, (int, float)) else 0.0
    if worse and lost < 0:
        size = sorted(gain * (x - 1) / lost for x in part)
        worse += f": its loss is {size[1]:.2g} times the paper's [{size[0]:.2g}, {size[2]:.2g}]"
    if claim.kind != "paper":
        word = "estimate" if claim.kind == "estimate" else WORDS[claim.kind][not enough]
        return found | {"word": word, "detail": worse}
    margin = claim.share * gain
    room = margin + min(lost, 0.0) if margin + lost > 0 else margin
    found |= {"p": one_sided_p(numbers, -margin, 1), "needs": seeds_for(spread, room, level)}
    if not enough:
        if part[2] < rule:
            return found | {"word": CONTRADICTED, "detail": worse}
        return found | {"word": UNDECIDED, "detail": _seeds(found["needs"], "the paper's")}
    text = PROVISIONAL
    if any(row["subject"] == each.control for row in rows):
        controls = effects(claim, per_seed(claim, each, rows, each.control), theirs)
        middle, low, high = kept([scaled(claim, x) for x in controls.values()])
        text = f"the planted control keeps {100 * middle:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        if not high < rule:
            text += " and is not shown beyond the margin, so these runs cannot tell"
            return found | {"word": UNDECIDED, "detail": text}
    return found | {"word": REPRODUCED, "detail": "; ".join(filter(None, (worse, text)))}


PROVISIONAL = "provisional: its runs had no planted control"


def _seeds(needs: int, effect: str) -> str:
    if needs < MOST_SEEDS:
        return f"about {needs} seeds would decide, if the effect is {effect}"
    return "no number of seeds decides"


def _spread(numbers: list[float]) -> float:
    middle = fmean(numbers)
    return math.sqrt(math.fsum((x - middle) ** 2 for x in numbers) / max(1, len(numbers) - 1))


def outside_regime(claim: Claim, each: Comparison, rows: Rows) -> list[str]:
    """The figures of the claim's regime that differ by more than `FAR` times from the paper's, in words."""
    found = []
    for column, paper in claim.regime.items():
        theirs = paper.get(each.case) if isinstance(paper, dict) else paper
        if theirs is None:
            continue
        if not any(column in row for row in rows):
            known = dict.fromkeys(name for row in rows for name in row)
            raise BadClaim(f"claim {claim.id!r}: the results have no column {column!r}; {nearest(column, known)}")
        names = each.dial or (each.subject,)
        mine = [row[column] for row in rows if row["subject"] in names and row.get(column) is not None]
        ours = fmean(mine) if mine else math.nan
        if differs(ours, theirs):  # shown with one digit more than the paper's if that has a fraction
            places = len(f"{theirs:.10f}".rstrip("0").partition(".")[2])
            both = f"{ours:,.{places + (places > 0)}f} in these runs and {theirs:,.{places}f} in the paper"
            found.append(f"{column} is {both.replace('-', '−')}")
    return found


def differs(ours: float, theirs: float) -> bool:
    """Whether two figures differ by more than `FAR` times; NaN differs from everything."""
    least, most = sorted((abs(ours), abs(theirs)))
    return not most <= FAR * least


def _problem(claim: Claim, each: Comparison, rows: Rows, provisional: bool) -> str:
    """Why the results cannot be judged; empty if they can."""
    wanted, present = [each.frozen] if provisional else [each.frozen, each.control], {row["subject"] for row in rows}
    if missing := [name for name in wanted if name and name not in present]:
        return f"the results have no {' and no '.join(missing)}, without which an equivalence means nothing"
    seeds = {row["seed"] for row in rows if row["subject"] in each.subjects}
    allowed = SEALED if all(seed in SEALED for seed in seeds) else JUDGING
    foreign = ", ".join(str(seed) for seed in sorted(seeds) if seed not in allowed)
    if claim.kind == "paper" and foreign:
        return f"seed {foreign} served for tuning or a pilot; verdicts are reached on {JUDGING.start} and above"
    return ""


def _decisive_share(claim: Claim, ours: float, level: float) -> float | None:
    """How far the rule is from no effect or, where it is not, the effect itself; as a share of the reference."""
    if claim.effect == "value":
        return None
    distance = abs(natural(claim, _edge(claim)) - claim.neutral) or abs(ours - claim.neutral)
    if claim.effect == "ratio":
        return distance
    return distance / level if level > 0 else None
