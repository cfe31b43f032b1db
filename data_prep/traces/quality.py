"""How well a slowdown describes a trace."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ks_2samp

from data_prep.traces.formats import Trace, hours
from data_prep.traces.lasting import autocorrelation, grid
from lib.cluster.slowdowns import Lognormal, Slowdown

CLOCK = 0.03
"""What a predicted throughput is off by at its best (`94_fidelity`)."""


def quality(slowdown: Slowdown, trace: Trace, seeds: int = 20) -> dict[str, float]:
    """The slowdown, played at the trace's own times for every worker, against the trace.

    ks: the distance of the two distributions of the factor, all workers together;
    ks_lognormal: the same for one independent lognormal with the trace's median and spread;
    q99: the factor's 99 % quantile in the trace, next to that of the slowdown (`q99_played`);
    steady: the largest relative error of a worker's median, mean over the seeds;
    pace: by how much the slowest worker of each step is off, over the mean of all, which is what keeping in step costs; and
    `pace_lognormal`, that of the one lognormal; a step is a sample of each worker, by their order;
    correlation_1, _5, _20: the factors' autocorrelation at so many steps in the trace, next to that of the slowdown
    (`..._played`); of log factors over their worker's (and hour's) mean, as both are measured alike.
    """
    table = trace.table
    played = np.stack([play(slowdown, trace, seed) for seed in range(seeds)])
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
        "q99": float(np.quantile(factors, 0.99)),
        "q99_played": float(np.quantile(played, 0.99)),
        "steady": float(np.abs(own.div(medians, axis=0) - 1).mean(axis=1).max()),
    }
    paced = _pace(factors, trace)
    alone = [play(Lognormal(sigma=float(logs.std())), trace, seed) for seed in range(min(seeds, 5))]
    result["pace"] = float(np.mean([_pace(each, trace) for each in played[:5]])) / paced - 1
    result["pace_lognormal"] = float(np.mean([_pace(each, trace) for each in alone])) / paced - 1
    real, model = _residual(factors, trace), [_residual(each, trace) for each in played[:5]]
    for lag in (1, 5, 20):
        result[f"correlation_{lag}"] = autocorrelation(real, lag)
        result[f"correlation_{lag}_played"] = float(np.mean([autocorrelation(each, lag) for each in model]))
    return {name: round(value, 4) for name, value in result.items()}


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest distance of two empirical distribution functions (Kolmogorov, Smirnov)."""
    return float(ks_2samp(one, other, method="asymp").statistic)


def play(slowdown: Slowdown, trace: Trace, seed: int) -> np.ndarray:
    """The factor of a short computation at each of the trace's moments."""
    short = 1e-3
    factors, times = np.empty(len(trace.table)), trace.table["time"].to_numpy()
    for worker, rows in trace.table.groupby("worker").indices.items():
        course = slowdown.sample_path(seed, f"worker{worker}", int(worker))
        factors[rows] = [course.stretch(time, short) / short for time in times[rows]]
    return factors


def better(slowdown: Slowdown, trace: Trace) -> tuple[Slowdown, tuple[str, ...]]:
    """The slowdown, or one lognormal where that is nearer to what keeping in step costs, and the other is off by more than the
    modelled clock; and remarks on it."""
    found = quality(slowdown, trace, seeds=3)
    own, alone = found["pace"], found["pace_lognormal"]
    if not abs(own) > max(CLOCK, abs(alone)):
        return slowdown, ()
    sigma = round(float(np.log(trace.table["factor"]).std()), 4)
    said = f"the slowest worker of a step would be off by {own:+.1%} with what was fitted, by {alone:+.1%} with one lognormal"
    return Lognormal(sigma=sigma), (f"{said}: this is the lognormal, which knows no worker that is slow for good",)


def _pace(factors: np.ndarray, trace: Trace) -> float:
    workers = trace.table["worker"]
    steps = pd.Series(factors, trace.table.index).groupby(trace.table.groupby("worker").cumcount())
    whole = steps.size() == workers.nunique()
    return float(steps.max()[whole].mean() / steps.mean()[whole].mean())


def _residual(factors: Any, trace: Trace) -> pd.DataFrame:
    """Log factors over the mean of their worker and hour, one column a worker, one row a step; nan where none was seen."""
    logs = np.log(pd.Series(np.asarray(factors), trace.table.index))
    if trace.daily:
        logs = logs - logs.groupby(hours(trace.table["time"])).transform("mean")
    logs = logs - logs.groupby(trace.table["worker"]).transform("mean")
    return grid(logs, trace)
