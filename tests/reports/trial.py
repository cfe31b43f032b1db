"""A rule is tried before it judges, on numbers with the spread of a pilot or of a published verdict, and as many seeds as judge.

Their mean is moved to the paper's own effect, and then the rule must say *reproduced*; and to what a broken mode has, where it
must not: no effect (a frozen model, a shuffled protocol), a value's own broken figure, for an equivalence the planted control's
two margins and the frozen model's whole gain. The seeds must suffice to find the paper's effect nine times in ten. What fails
has a rule, seeds or an experiment to be improved.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import norm

from lib.seeds import JUDGING
from reports.claims import REPRODUCED, judge
from reports.claims.calibration import Calibration
from reports.claims.claim import Claim, Comparison
from reports.claims.effects import effects, mean, natural, per_seed, scaled

TRIALS = ("paper", "broken", "seeds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """A trial that a case's rule does not stand."""

    case: str
    trial: str
    """Which of `TRIALS`: the paper's number, a broken mode, or the number of seeds."""
    why: str


def as_many(numbers: list[float], count: int) -> list[float]:
    """These, or where a pilot had fewer seeds than judge, so many of the same mean and deviation: a normal sample's quantiles."""
    if not 1 < len(numbers) < count:
        return numbers
    scores = norm.ppf((np.arange(count) + 0.5) / count)
    return (np.mean(numbers) + np.std(numbers, ddof=1) * scores / scores.std(ddof=1)).tolist()


def tried(claim: Claim, rows: list[dict[str, Any]], calibrations: Sequence[Calibration] = ()) -> list[Failed]:
    """Which of the trials a paper's claim fails with a pilot's results; nothing of what was fitted, or is not comparable."""
    judged = [each for each in claim.comparisons if not any(record.covers(each) for record in calibrations)]
    return [failed for each in judged if not claim.elsewhere for failed in _tried(claim, each, rows)]


def _tried(claim: Claim, each: Comparison, rows: list[dict[str, Any]]) -> Iterator[Failed]:
    mine, theirs = (per_seed(claim, each, rows, name) for name in (each.subject, each.reference))
    numbers = as_many([scaled(claim, x) for x in effects(claim, mine, theirs).values()], claim.looks[-1])
    spread = [x - math.fsum(numbers) / len(numbers) for x in numbers]
    gain = 0.0
    if claim.frozen:
        gain = abs(mean(theirs) - mean(per_seed(claim, each, rows, each.frozen)))
    has_number = isinstance(each.paper, (int, float))
    paper = scaled(claim, each.paper) if has_number else 0.0
    if has_number or claim.frozen:
        case = planted(claim, each, spread, paper, gain)
        if case.word != REPRODUCED:
            yield Failed(case=each.case, trial="paper", why=f"its own {natural(claim, paper):.4g} would be {case.word}")
        if (case.needs or 0) > claim.looks[-1]:
            yield Failed(case=each.case, trial="seeds", why=f"it has {claim.looks[-1]} seeds and needs {case.needs}")
    broken = [-2 * claim.share * gain, -gain] if claim.frozen else [0.0]
    broken = [scaled(claim, claim.broken)] if claim.broken is not None else broken
    for effect in broken:
        if planted(claim, each, spread, effect, gain).word == REPRODUCED:
            yield Failed(case=each.case, trial="broken", why=f"{natural(claim, effect):.4g} would be reproduced")


def planted(claim: Claim, each: Comparison, spread: Sequence[float], effect: float, gain: float) -> Any:
    """The case judged on results in which each seed has this effect plus its own part of the spread."""
    rows = []

    def add(name: str, seed: int, value: float, **more: float) -> None:
        rows.append({"subject": name, "seed": JUDGING.start + seed, each.metric: value, **more, **regime})

    regime = {name: at.get(each.case, 1.0) if isinstance(at, dict) else at for name, at in claim.regime.items()}
    for seed, rest in enumerate(spread):
        x = natural(claim, effect + rest)
        if claim.effect == "slope":
            for name, place in (claim.over if isinstance(claim.over, dict) else {each.subject: 0.0}).items():
                add(name, seed, x * place, **({claim.over: 0.0} if isinstance(claim.over, str) else {}))
            if isinstance(claim.over, str):
                add(each.subject, seed, x, **{claim.over: 1.0})
            continue
        add(each.subject, seed, x if claim.effect in ("value", "ratio") else 1.0 + x)
        if each.reference:
            add(each.reference, seed, 1.0)
        if each.frozen:
            add(each.frozen, seed, 1.0 - claim.sign * gain)
        if each.control:
            add(each.control, seed, 1.0 + claim.sign * (rest - 2 * claim.share * gain))
    (case,) = judge(_alone(claim, each), rows).cases
    return case


def _alone(claim: Claim, each: Comparison) -> Claim:
    """The claim with this case only."""
    pair = (each.subject, each.reference)
    changes = {"order": pair, "cases": {}} if claim.order else {"cases": {each.case: each.paper}}
    regime = {
        name: {each.case: at[each.case]} if isinstance(at, dict) and each.case in at else at
        for name, at in claim.regime.items()
        if not isinstance(at, dict) or each.case in at
    }
    return dataclasses.replace(claim, **changes, regime=regime)
