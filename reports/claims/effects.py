"""From results to one case's numbers: the effect of every seed, and what the reference gains over a frozen model."""

import math
from collections.abc import Mapping
from statistics import fmean, linear_regression
from typing import Any

from lib.errors import nearest, unknown
from reports.claims.claim import BadClaim, Claim, Comparison

Rows = list[Mapping[str, Any]]
"""A mapping for every run: subject, seed and the metrics."""


def per_seed(claim: Claim, each: Comparison, rows: Rows, subject: str | None) -> dict[int, float]:
    """One number for every seed of the subject: its metric, or the metric's slope over a column or a dial."""
    if subject is None and not isinstance(claim.over, dict):
        return {}
    columns = dict.fromkeys(name for row in rows for name in row)
    over = claim.over if isinstance(claim.over, str) else None
    for column in filter(None, ("subject", "seed", each.metric, over)):
        if column not in columns:
            raise BadClaim(f"claim {claim.id!r}: the results have no column {column!r}; {nearest(column, columns)}")
    dial = claim.over if isinstance(claim.over, dict) else {subject: None}
    known = dict.fromkeys(str(row["subject"]) for row in rows)
    if missing := [name for name in dial if name not in known]:
        raise unknown(f"subject of claim {claim.id!r}:", str(missing[0]), known)
    points: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row["subject"] in dial:
            x = float(row[over]) if over else dial[row["subject"]]
            y = math.nan if row.get(each.metric) is None else float(row[each.metric])
            points.setdefault(int(row["seed"]), []).append((x, y))
    numbers = {}
    for seed, found in points.items():
        place = f"claim {claim.id!r}: {subject or 'its dial'!r}, seed {seed}"
        if claim.effect == "slope":
            if len({x for x, _ in found}) < 2:
                raise BadClaim(f"{place}: a slope needs two values of {over or 'its dial'!r}")
            numbers[seed] = linear_regression(*zip(*found, strict=True)).slope
        elif len(found) > 1:
            raise BadClaim(f"{place}: one result is expected, not {len(found)}")
        else:
            numbers[seed] = found[0][1]
    return numbers


def effects(claim: Claim, mine: dict[int, float], theirs: dict[int, float]) -> dict[int, float]:
    """The effect for every seed that both have; NaN for a ratio to 0."""
    if claim.effect in ("value", "slope"):
        return mine
    shared = sorted(mine.keys() & theirs.keys())
    if claim.effect == "ratio":
        return {seed: mine[seed] / theirs[seed] if theirs[seed] else math.nan for seed in shared}
    return {seed: mine[seed] - theirs[seed] for seed in shared}


def scaled(claim: Claim, x: float) -> float:
    """An effect from no effect on, upwards where the claim says so; of a ratio its logarithm."""
    if claim.effect == "ratio":
        return claim.sign * math.log(x) if 0 < x < math.inf else math.nan
    return claim.sign * x


def natural(claim: Claim, x: float) -> float:
    """The effect of which `scaled` makes this."""
    return math.exp(claim.sign * x) if claim.effect == "ratio" else claim.sign * x


def mean(numbers: Mapping[int, float]) -> float:
    return fmean(numbers.values()) if numbers else math.nan
