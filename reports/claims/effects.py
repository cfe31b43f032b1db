"""What a table of results says of one case: a number for every seed, and what could have been lost."""

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
        of = f"claim {claim.id!r}: {subject!r}, seed {seed}"
        y = group[each.metric].to_numpy(dtype=float)
        if claim.effect != "slope":
            if len(y) > 1:
                raise BadClaim(f"{of}: one result is expected, not {len(y)}")
            numbers[int(seed)] = float(y[0])
            continue
        x = group[claim.over].to_numpy(dtype=float)
        if len(np.unique(x)) < 2:
            raise BadClaim(f"{of}: a slope needs two values of {claim.over!r}")
        x = x - x.mean()
        numbers[int(seed)] = float((x * (y - y.mean())).sum() / (x * x).sum())
    return numbers


def effects(claim: Claim, mine: dict[int, float], theirs: dict[int, float]) -> dict[int, float]:
    """The effect in every seed that both have; NaN where it cannot be taken."""
    if claim.effect in ("value", "slope"):
        return mine
    shared = sorted(mine.keys() & theirs.keys())
    if claim.effect == "ratio":
        return {seed: mine[seed] / theirs[seed] if theirs[seed] else math.nan for seed in shared}
    return {seed: mine[seed] - theirs[seed] for seed in shared}


def lost(claim: Claim, each: Comparison, results: pd.DataFrame) -> float:
    """What can be lost: by how much best is better than frozen, of the means; 0 for what is no parity."""
    if each.best is None:
        return 0.0
    best, frozen = (mean(per_seed(claim, each, results, name)) for name in (each.best, each.frozen))
    return claim.sign * (best - frozen)


def mean(numbers: dict[int, float]) -> float:
    return math.fsum(numbers.values()) / len(numbers) if numbers else math.nan
