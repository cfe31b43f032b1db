"""From a table of results to a verdict, by the rules that `lib.reporting.claims` states."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lib.errors import nearest, unknown
from lib.reporting.claims.claim import BadClaim, Claim

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = ("replicated", "direction only", "not replicated", "inconclusive", "out of scale", "not run")
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    claim: Claim
    verdict: str
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    """Seeds that the interval is taken over."""
    detail: str = ""
    profile: str = ""
    command: str = ""
    """What the runner was asked for, with any parameter that differs from the notebook's."""
    changed: bool = False
    """The claim was changed after its run."""

    @property
    def text(self) -> str:
        return f"{self.verdict} (claim changed since its run)" if self.changed else self.verdict


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % t-interval (NaN for a single value)."""
    import numpy as np
    from scipy import stats

    values = np.asarray(list(values), dtype=float)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, math.nan, math.nan
    if (values == values[0]).all():  # equal numbers have no spread, whatever rounding makes of their mean
        return float(values[0]), float(values[0]), float(values[0])
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return mean, mean - half, mean + half


def judge(claim: Claim, results: pd.DataFrame, profile: str = "") -> Verdict:
    """The verdict on one claim from a table with a row for every run: subject, seed and the metrics."""
    needed = ["subject", "seed", claim.metric, *([claim.over] if claim.over else [])]
    for column in needed:
        if column not in results.columns:
            raise BadClaim(f"claim {claim.id!r}: the results have no column {column!r}; {nearest(column, results)}")
    numbers = _per_seed(claim, results, claim.subject)
    detail = []
    if claim.reference is not None:
        reference = _per_seed(claim, results, claim.reference)
        if alone := sorted(set(numbers) ^ set(reference)):
            detail.append(f"seeds without a partner left out: {', '.join(map(str, alone))}")
        shared = sorted(set(numbers) & set(reference))
        if claim.kind == "ratio":
            numbers = {seed: numbers[seed] / reference[seed] if reference[seed] else math.nan for seed in shared}
        else:
            numbers = {seed: numbers[seed] - reference[seed] for seed in shared}
    n = len(numbers)
    if infinite := [seed for seed, x in numbers.items() if not math.isfinite(x)]:
        detail.append(f"{claim.metric} is not finite or cannot be compared for seed {', '.join(map(str, infinite))}")
        verdict = "out of scale" if claim.relation == "report" else "inconclusive"
        return Verdict(claim=claim, verdict=verdict, n=n, detail="; ".join(detail), profile=profile)
    if not n:
        return Verdict(claim=claim, verdict="inconclusive", detail="; ".join(detail), profile=profile)

    ours, low, high = interval(numbers.values())
    if claim.kind == "bound":
        low, high = min(numbers.values()), max(numbers.values())
    elif n == 1 and claim.seeds == 1:
        low = high = ours
    verdict, why = _decide(claim, low, high, n)
    detail.append(why)
    finite = {name: None if math.isnan(end) else end for name, end in (("low", low), ("high", high))}
    return Verdict(
        claim=claim, verdict=verdict, ours=ours, **finite, n=n, detail="; ".join(filter(None, detail)), profile=profile
    )


def _per_seed(claim: Claim, results: pd.DataFrame, subject: str) -> dict[int, float]:
    """One number for every seed of the subject: its metric, or the metric's slope."""
    import numpy as np

    rows = results[results["subject"] == subject]
    if rows.empty:
        raise unknown(f"subject of claim {claim.id!r}:", subject, results["subject"].astype(str).unique())
    numbers = {}
    for seed, group in rows.groupby("seed"):
        y = group[claim.metric].to_numpy(dtype=float)
        if claim.kind != "trend":
            if len(y) > 1:
                raise BadClaim(f"claim {claim.id!r}: {len(y)} results of {subject!r} for seed {seed}; one is expected")
            numbers[int(seed)] = float(y[0])
            continue
        x = group[claim.over].to_numpy(dtype=float)
        if len(np.unique(x)) < 2:
            raise BadClaim(
                f"claim {claim.id!r}: a slope needs two values of {claim.over!r} for {subject!r}, seed {seed}"
            )
        x = x - x.mean()
        numbers[int(seed)] = float((x * (y - y.mean())).sum() / (x * x).sum())
    return numbers


def _decide(claim: Claim, low: float, high: float, n: int) -> tuple[str, str]:
    """The verdict on an interval, and why where that is not plain."""
    if claim.relation == "report":
        return "out of scale", "an absolute figure of other machines: both are shown, none is judged"
    assert claim.margin is not None
    above = claim.margin if claim.relation == ">=" else -math.inf
    below = claim.margin if claim.relation == "<=" else math.inf
    if claim.relation == "within":
        assert claim.centre is not None
        above, below = claim.centre - claim.margin, claim.centre + claim.margin

    if claim.kind == "bound" and (low < above or high > below):
        return "not replicated", "a run breaks the bound"
    if n < max(claim.seeds, 1):
        return "inconclusive", f"too few seeds: {n} of {claim.seeds}"
    if math.isnan(low):
        return "inconclusive", "too few seeds: no interval over 1"
    if above <= low and high <= below:
        return "replicated", ""
    if high >= above and low <= below:
        return "inconclusive", "the interval straddles the rule's boundary"
    neutral = claim.neutral
    if neutral is not None:
        aim = claim.centre if claim.relation == "within" else claim.margin
        upward = claim.relation != "<=" and aim > neutral and low > neutral
        downward = claim.relation != ">=" and aim < neutral and high < neutral
        if upward or downward:
            return "direction only", "the direction holds, the margin does not"
    return "not replicated", ""
