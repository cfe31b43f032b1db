"""From a table of results to one case's numbers: the effect of every seed, and the largest possible loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lib.errors import nearest, unknown
from reports.claims.claim import BadClaim, Claim, Comparison

if TYPE_CHECKING:
    import pandas as pd


def per_seed(claim: Claim, each: Comparison, results: pd.DataFrame, subject: str | None) -> dict[int, float]:
    """One number for every seed of the subject: its metric, or the metric's slope."""
    import numpy as np

    if subject is None:
        return {}
    for column in filter(None, ("subject", "seed", each.metric, claim.over)):
        if column not in results.columns:
            raise BadClaim(f"claim {claim.id!r}: the results have no column {column!r}; {nearest(column, results)}")
    rows = results[results["subject"] == subject]
    if rows.empty:
        raise unknown(f"subject of claim {claim.id!r}:", subject, results["subject"].astype(str).unique())
    numbers = {}
    for seed, group in rows.groupby("seed"):
        place = f"claim {claim.id!r}: {subject!r}, seed {seed}"
        y = group[each.metric].to_numpy(dtype=float)
        if claim.effect != "slope":
            if len(y) > 1:
                raise BadClaim(f"{place}: one result is expected, not {len(y)}")
            numbers[int(seed)] = float(y[0])
            continue
        x = group[claim.over].to_numpy(dtype=float)
        if len(np.unique(x)) < 2:
            raise BadClaim(f"{place}: a slope needs two values of {claim.over!r}")
        x = x - x.mean()
        numbers[int(seed)] = float((x * (y - y.mean())).sum() / (x * x).sum())
    return numbers


def effects(claim: Claim, mine: dict[int, float], theirs: dict[int, float]) -> dict[int, float]:
    """The effect for every seed that both have; NaN for a ratio to 0."""
    if claim.effect in ("value", "slope"):
        return mine
    shared = sorted(mine.keys() & theirs.keys())
    if claim.effect == "ratio":
        return {seed: mine[seed] / theirs[seed] if theirs[seed] else math.nan for seed in shared}
    return {seed: mine[seed] - theirs[seed] for seed in shared}


def possible_loss(claim: Claim, each: Comparison, results: pd.DataFrame) -> float:
    """By how much the mean of `best` is better than that of `frozen`; 0 for a claim that is no parity."""
    if each.best is None:
        return 0.0
    best, frozen = (mean(per_seed(claim, each, results, name)) for name in (each.best, each.frozen))
    return claim.sign * (best - frozen)


def mean(numbers: dict[int, float]) -> float:
    return math.fsum(numbers.values()) / len(numbers) if numbers else math.nan
