"""A slowdown fitted to a trace, and how well any slowdown describes one.

The model of a worker's factor is: steady difference between workers x the hour of the day (where the trace has one) x
straggler periods (where there are any) x noise with the trace's own quantiles, correlated in time.

A straggler period of one or two samples is taken for noise.

Why quantiles and no lognormal. The distance (KS) of the noise, workers' medians taken out, to the best lognormal and to
fifteen quantiles of its own: 0.043 and 0.019 in Alibaba's job 1, 0.052 and 0.039 in job 2 (whole numbers, which no
continuous distribution follows closer), 0.021 and 0.010 in ByteDance's job, 0.145 and 0.017 on the machines, whose
heavy tail is the reason to care. Quantiles are never worse, and cost nothing to draw from. What matters more than the
family is that workers differ for good and that noise lasts: `quality` gives both.
"""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.cluster.slowdowns.base import Slowdown
from lib.cluster.slowdowns.batchwise import TAILS, Empirical, Steady
from lib.cluster.slowdowns.product import Product
from lib.cluster.slowdowns.shared_machines import Shared
from lib.cluster.slowdowns.timed import Day, Transient
from lib.cluster.slowdowns.traces import Trace, hours, read_trace
from lib.errors import BadOption

STRAGGLES = 1.25
"""Times a worker's own median from which a sample belongs to a straggler period."""
SAMPLES = 3
"""Such samples that make a period, at most `CALM` samples apart; fewer are noise."""
CALM = 6
LAGS = 20
"""Lags, in the trace's steps, that the correlation is fitted to."""
IN_USE = 0.1
"""Median share in use below which a machine counts as one that nobody shares."""


def from_trace(path: str | Path, format: str, gap: float | None = None) -> Slowdown:
    """The slowdown fitted to a trace; see `lib.cluster.slowdowns.traces` for the formats, `read_trace` for `gap`."""
    return fit(read_trace(path, format, gap))


def fit(trace: Trace) -> Product:
    """The model above, rounded to four decimals; times are the trace's seconds."""
    factors, workers = trace.table["factor"], trace.table["worker"]
    curve = np.ones(24)
    if trace.daily:
        # Steady differences first: not every machine was seen in every hour.
        own = factors.groupby(workers).median()
        level = factors / workers.map(own / own.median())
        curve = level.groupby(hours(trace.table["time"])).median().reindex(range(24)).to_numpy()
        factors = factors / curve[hours(trace.table["time"])]
    steady = factors.groupby(workers).median()
    straggles = pd.Series(False, factors.index) if trace.daily else _periods(factors / workers.map(steady), trace)
    steady = factors[~straggles].groupby(workers).median()  # without them a straggler's own median is its usual one
    noise = factors / workers.map(steady)
    parts: list[Slowdown] = [Steady(factors=tuple(np.round(steady, 4).tolist()))]
    if trace.daily:
        parts.append(Day(curve=tuple(np.round(1 / curve, 4).tolist())))
    if straggles.any():
        parts.append(_transient(noise, straggles, trace))
        noise = noise[~straggles]
    shares, seconds = _correlation(noise, trace)
    parts.append(
        Empirical(
            quantiles=tuple(np.round(np.quantile(noise, TAILS), 4).tolist()),
            levels=TAILS,
            seconds=seconds,
            shares=shares,
        )
    )
    return Product(parts=tuple(parts))


def fit_shared(trace: Trace) -> Shared:
    """Machines that others use too: the mean share in use in each hour, one concentration and one hold time.

    Machines that nobody else uses are left out. The concentration is the one whose variance, over all hours, is the
    trace's; the hold time is that of the triangle, the autocorrelation of what is drawn anew every `hold` seconds, which
    is nearest to the trace's over the first lags. The trace has faster and slower changes than any one hold time."""
    if not trace.daily:
        raise BadOption(f"{trace.name}: a trace of machines is needed, whose shares in use follow the time of day")
    in_use = 1 - 1 / trace.table["factor"]
    shared = in_use[in_use.groupby(trace.table["worker"]).transform("median") >= IN_USE]
    by_hour = shared.groupby(hours(trace.table.loc[shared.index, "time"]))
    mean = by_hour.transform("mean")
    rest = shared - mean
    grid = _grid(rest, trace)
    lags = np.arange(1, LAGS + 1)
    measured = np.array([_autocorrelation(grid, lag) for lag in lags])
    holds = np.arange(1.0, 2 * LAGS + 0.05, 0.1)
    errors = ((np.maximum(0, 1 - lags / holds[:, None]) - measured) ** 2).sum(1)
    return Shared(
        curve=tuple(by_hour.mean().round(4).tolist()),
        concentration=round(float((mean * (1 - mean)).mean() / (rest**2).mean() - 1), 2),
        hold=round(float(holds[errors.argmin()] * trace.step), 1),
    )


def quality(slowdown: Slowdown, trace: Trace, seeds: int = 20) -> dict[str, float]:
    """The slowdown, played at the trace's own times for every worker, against the trace.

    ks: the largest distance of the two distributions of the factor (Kolmogorov, Smirnov), all workers together;
    ks_lognormal: the same for one independent lognormal with the trace's median and spread;
    steady: the largest relative error of a worker's median, mean over the seeds;
    correlation_1, _5, _20: the factors' autocorrelation at so many steps in the trace, beside that of the slowdown
    (`..._played`); of log factors over their worker's (and hour's) mean, as both are measured alike.
    """
    table = trace.table
    played = np.stack([_play(slowdown, table, seed) for seed in range(seeds)])
    factors = table["factor"].to_numpy()
    logs = np.log(factors)
    rng = np.random.default_rng(0)
    lognormal = np.exp(np.median(logs) + logs.std() * rng.standard_normal(200_000))
    medians = table["factor"].groupby(table["worker"]).median()
    own = pd.DataFrame(played.T).groupby(table["worker"]).median()
    result = {
        "samples": len(table),
        "workers": table["worker"].nunique(),
        "ks": distance(factors, played.ravel()),
        "ks_lognormal": distance(factors, lognormal),
        "steady": float(np.abs(own.div(medians, axis=0) - 1).mean(axis=1).max()),
    }
    real, model = _residual(factors, trace), [_residual(each, trace) for each in played[:5]]
    for lag in (1, 5, 20):
        result[f"correlation_{lag}"] = _autocorrelation(real, lag)
        result[f"correlation_{lag}_played"] = float(np.mean([_autocorrelation(each, lag) for each in model]))
    return {name: round(value, 4) for name, value in result.items()}


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest distance of two empirical distribution functions."""
    one, other = np.sort(one), np.sort(other)
    at = np.concatenate([one, other])
    below = [np.searchsorted(each, at, side="right") / each.size for each in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def _play(slowdown: Slowdown, table: pd.DataFrame, seed: int) -> np.ndarray:
    """The factor of a short computation at each of the trace's moments."""
    short = 1e-3
    factors = np.empty(len(table))
    for worker, rows in table.groupby("worker").indices.items():
        course = slowdown.course(seed, f"worker{worker}", int(worker))
        times = table["time"].to_numpy()[rows]
        factors[rows] = [course.stretch(time, short) / short for time in times]
    return factors


def _residual(factors: Any, trace: Trace) -> pd.DataFrame:
    """Log factors over the mean of their worker and hour, one column a worker, one row a step; nan where none was seen."""
    logs = np.log(pd.Series(np.asarray(factors), trace.table.index))
    if trace.daily:
        logs = logs - logs.groupby(hours(trace.table["time"])).transform("mean")
    logs = logs - logs.groupby(trace.table["worker"]).transform("mean")
    return _grid(logs, trace)


def _grid(values: pd.Series, trace: Trace) -> pd.DataFrame:
    seen = trace.table.loc[values.index]
    step = np.floor(seen["time"] / trace.step).astype(int)
    long = pd.DataFrame({"step": step, "worker": seen["worker"], "value": values}).drop_duplicates(["step", "worker"])
    wide = long.pivot(index="step", columns="worker", values="value")
    return wide.reindex(range(wide.index[0], wide.index[-1] + 1))


def _autocorrelation(grid: pd.DataFrame, lag: int) -> float:
    """Over all pairs of samples that many steps apart, nan where there are none; the mean is taken as 0."""
    values = grid.to_numpy()
    pairs, squares = values[:-lag] * values[lag:], values * values
    if np.isnan(pairs).all() or not np.nansum(squares) > 0:
        return math.nan
    return float(np.nanmean(pairs) / np.nanmean(squares))


def _correlation(noise: pd.Series, trace: Trace) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(shares, seconds) of two exponentials: least squares over the lags of the noise's normal scores, by trying all pairs
    of a grid of times. Two, since every sample has a fast and a slow part that one exponential cannot both follow."""
    ranks = (noise.rank() - 0.5) / len(noise)
    grid = _grid(pd.Series(_normal_quantile(ranks.to_numpy()), noise.index), trace)
    lags = np.arange(1, min(LAGS, len(grid) // 2) + 1)
    measured = np.array([_autocorrelation(grid, lag) for lag in lags])
    lags, measured = lags[np.isfinite(measured)], measured[np.isfinite(measured)]
    if lags.size < 4:  # too short, or all the same
        return (), ()
    times = np.geomspace(0.5, 2 * LAGS, 40)  # slower than that, it could not be told from a steady difference
    shapes = np.exp(-lags / times[:, None])
    best = (math.inf, (), ())
    for fast, slow in combinations(range(times.size), 2):
        shares = np.linalg.lstsq(shapes[[fast, slow]].T, measured)[0]
        error = ((shares @ shapes[[fast, slow]] - measured) ** 2).sum()
        if (shares >= 0).all() and shares.sum() <= 1 and error < best[0]:
            best = (
                error,
                tuple(np.round(shares, 3).tolist()),
                tuple(np.round(times[[fast, slow]] * trace.step, 1).tolist()),
            )
    return best[1], best[2]


def _normal_quantile(levels: np.ndarray) -> np.ndarray:
    """The standard normal's quantiles, by interpolation of its distribution: exact to 1e-5 between 1e-9 and 1 - 1e-9."""
    z = np.linspace(-6, 6, 24_001)
    return np.interp(levels, [0.5 * math.erfc(-each / math.sqrt(2)) for each in z], z)


def _periods(noise: pd.Series, trace: Trace) -> pd.Series:
    """Which samples lie in a straggler period."""
    inside = pd.Series(False, noise.index)
    for _, mine in noise.groupby(trace.table["worker"]):
        slow = np.flatnonzero(mine.to_numpy() > STRAGGLES)
        for period in np.split(slow, np.flatnonzero(np.diff(slow) > CALM) + 1):
            if period.size >= SAMPLES:
                inside[mine.index[period[0] : period[-1] + 1]] = True
    return inside


def _transient(noise: pd.Series, periods: pd.Series, trace: Trace) -> Transient:
    """Exponential times by maximum likelihood; the factor is the one that loses as much time as the periods did."""
    begins = periods & ~periods.groupby(trace.table["worker"]).shift(fill_value=False)
    count = int(begins.sum())
    seconds = trace.step * periods.sum()
    return Transient(
        mean_on=round(float(seconds / count), 4),
        mean_off=round(float((trace.step * len(noise) - seconds) / count), 4),
        factor=round(float(1 / (1 / noise[periods]).mean()), 4),
    )
