"""A rule is tried before it judges, on numbers with the spread of a pilot or of a published verdict, and as many seeds as judge.

Their mean is moved to the paper's own effect, and then the rule must say *replicated* or *parity*; and to the control's, where
it must not. What so many seeds can tell must be smaller than what decides: how far the paper's effect is from the rule's nearest
edge, or a parity's margin. A case without a number of the paper is tried on its control and margin alone. What fails one of the
three has a rule, seeds or an experiment to be mended.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import norm

from reports.claims.calibration import Calibration
from reports.claims.claim import Claim, Comparison
from reports.claims.effects import effects, mean, per_seed, possible_loss
from reports.claims.judge import HOLDS, decide
from reports.claims.statistics import interval, smallest_effect

if TYPE_CHECKING:
    import pandas as pd

TRIALS = ("paper", "control", "smallest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failed:
    """A trial that a case's rule does not stand."""

    case: str
    trial: str
    """Which of `TRIALS`: the paper's number, the control, or the smallest effect that can be told."""
    why: str


def as_many(numbers: list[float], count: int) -> list[float]:
    """These, or where a pilot had fewer seeds than judge, so many of the same mean and deviation: a normal sample's quantiles."""
    if not 1 < len(numbers) < count:
        return numbers
    scores = norm.ppf((np.arange(count) + 0.5) / count)
    return (np.mean(numbers) + np.std(numbers, ddof=1) * scores / scores.std(ddof=1)).tolist()


def tried(claim: Claim, results: pd.DataFrame, calibrations: Sequence[Calibration] = ()) -> list[Failed]:
    """Which of the trials a paper's claim fails with a pilot's results; nothing of what was fitted, or is not judged here."""
    judged = [each for each in claim.comparisons if not any(record.covers(each) for record in calibrations)]
    return [failed for each in judged if not claim.elsewhere for failed in _tried(claim, each, results)]


def _tried(claim: Claim, each: Comparison, results: pd.DataFrame) -> Iterator[Failed]:
    mine, theirs = (per_seed(claim, each, results, name) for name in (each.subject, each.reference))
    numbers = as_many(list(effects(claim, mine, theirs).values()), claim.seeds)
    near, far = claim.band(each.paper, possible_loss(claim, each, results))
    unit = abs(mean(theirs)) if claim.shares else 1.0
    numeric = isinstance(each.paper, (int, float))
    paper = float(each.paper) if numeric else unit * claim.papers.get(each.case, math.nan)
    control = claim.control.get(each.case) if isinstance(claim.control, dict) else claim.control
    middle, low, _ = interval(numbers)
    if control is None and claim.effect == "order":
        control = -abs(middle if math.isnan(paper) else paper) * claim.sign
    elif control is None:
        control = None if claim.relation == "parity" else claim.neutral
    else:
        control *= unit

    def verdict(effect: float) -> str:
        return decide(claim, [effect + (x - middle) for x in numbers], near, far)[0]

    if not math.isnan(paper) and (found := verdict(paper)) not in HOLDS:
        yield Failed(case=each.case, trial="paper", why=f"its own {paper:.4g} would be {found}")
    if control is None:
        yield Failed(case=each.case, trial="control", why="what it is against is not said")
    elif (found := verdict(control)) in HOLDS:
        yield Failed(case=each.case, trial="control", why=f"its {control:.4g} would be {found}")
    known = 0.0 if math.isnan(paper) and claim.relation == "parity" else paper
    room = min(abs(known - edge) for edge in (near, far) if math.isfinite(edge))
    if (
        tells := smallest_effect(middle - low, len(numbers))
    ) > room:  # a case without a number has no room that is known
        yield Failed(
            case=each.case, trial="smallest", why=f"{len(numbers)} seeds tell {tells:.2g}, and {room:.2g} decides"
        )
