"""A slowdown fitted to a trace.

The model of a worker's factor is: steady difference between workers x the hour of the day (where the trace has one) x
straggler periods (where there are any) x noise with the trace's own quantiles, correlated in time.

Periods are kept only where one factor for all of them leaves the trace its tail. Where the slowness within them varies more
than that, they are left to the noise, whose quantiles are the trace's own and whose correlation makes slow times last.

Why quantiles and no lognormal. The distance (KS) of the noise, workers' medians taken out, to the best lognormal and to
fifteen quantiles of its own: 0.043 and 0.019 in Alibaba's job 1, 0.052 and 0.039 in job 2 (whole numbers, which no
continuous distribution follows closer), 0.021 and 0.010 in ByteDance's job, 0.145 and 0.017 on the machines, whose
heavy tail is the reason to care. Quantiles are never worse, and cost nothing to draw from. What matters more than the
family is that workers differ for good and that noise lasts: `data_prep.traces.quality` gives both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from data_prep.traces import lasting
from data_prep.traces.formats import Trace, hours
from data_prep.traces.periods import Periods, periods
from lib.cluster.slowdowns import Day, Empirical, Product, Shared, Slowdown, Steady, Transient
from lib.cluster.slowdowns.batchwise import TAILS
from lib.errors import BadOption

TAIL = {0.95: 0.1, 0.99: 0.1}
"""Quantiles of the factors that periods must leave as they are, and by what share they may be off."""
FEW = 10
"""Periods of which too little is known to trust their times."""
IN_USE = 0.1
"""Median share in use below which a machine counts as one that nobody shares."""


class Fit(NamedTuple):
    """What a trace was fitted by."""

    slowdown: Slowdown
    remarks: tuple[str, ...]
    """What the slowdown does not follow, and what is hardly known; one sentence each."""


def fit(trace: Trace) -> Fit:
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
    transient, straggles, remarks = None, np.zeros(len(factors), bool), []
    if not trace.daily and (found := periods(factors / workers.map(steady), workers)):
        usual = (
            factors[~found.inside].groupby(workers).median()
        )  # without periods a straggler's median is its usual one
        transient, remarks = _transient(factors / workers.map(usual), found, trace.step)
        if transient:
            steady, straggles = usual, found.inside
    noise = (factors / workers.map(steady))[~straggles]
    shares, seconds, doubts = lasting.exponentials(noise, trace)
    quantiles = tuple(np.round(np.quantile(noise, TAILS), 4).tolist())
    parts: list[Slowdown | None] = [
        Steady(factors=tuple(np.round(steady, 4).tolist())),
        Day(curve=tuple(np.round(1 / curve, 4).tolist())) if trace.daily else None,
        transient,
        Empirical(quantiles=quantiles, levels=TAILS, seconds=seconds, shares=shares),
    ]
    return Fit(Product(parts=tuple(part for part in parts if part)), (*remarks, *doubts))


def fit_shared(trace: Trace) -> Shared:
    """Machines that others use too: the mean share in use in each hour, one concentration and one hold time.

    Machines that nobody else uses are left out. The concentration is the one whose variance, over all hours, is the
    trace's; the hold time is that of the triangle, the autocorrelation of what is drawn anew every `hold` seconds, which
    is nearest to the trace's over the first lags. The trace has faster and slower changes than any one hold time."""
    if not trace.daily:
        raise BadOption(f"{trace.name}: a trace of machines is needed, whose shares in use follow the time of day")
    in_use = 1 - 1 / trace.table["factor"]
    shared = in_use[in_use.groupby(trace.table["worker"]).transform("median") >= IN_USE]
    if shared.empty or shared.groupby(trace.table["worker"]).nunique().max() == 1:
        raise BadOption(f"{trace.name}: no machine in it is in use by others, to {IN_USE:.0%} or more and at times more than at others")
    by_hour = shared.groupby(hours(trace.table.loc[shared.index, "time"]))
    mean = by_hour.transform("mean")
    rest = shared - mean
    grid = lasting.grid(rest, trace)
    lags = np.arange(1, lasting.LAGS + 1)
    measured = np.array([lasting.autocorrelation(grid, lag) for lag in lags])
    holds = np.arange(1.0, 2 * lasting.LAGS + 0.05, 0.1)
    errors = ((np.maximum(0, 1 - lags / holds[:, None]) - measured) ** 2).sum(1)
    return Shared(
        curve=tuple(by_hour.mean().round(4).tolist()),
        concentration=round(float((mean * (1 - mean)).mean() / (rest**2).mean() - 1), 2),
        hold=round(float(holds[errors.argmin()] * trace.step), 1),
    )


def _transient(noise: pd.Series, found: Periods, step: float) -> tuple[Transient | None, list[str]]:
    """The factor is the one that loses as much time as the periods did. None where that factor, times the noise outside, has
    not the trace's tail."""
    inside, usual = noise[found.inside], noise[~found.inside]
    factor = float(1 / (1 / inside).mean())
    told = "one straggler period" if found.count == 1 else f"{found.count} straggler periods"
    for level, most in TAIL.items():
        off = _mixed(usual, factor, len(inside) / len(noise), level) / noise.quantile(level) - 1
        if abs(off) > most:
            return None, [
                f"{told}, whose slowness varies so much that one factor ({factor:.3g}) would put the {level:.0%} quantile off by "
                f"{off:+.0%}: they are left to the noise, which keeps the quantiles, but lasts less than the periods did"
            ]
    few = [f"{told} in all: how long they last, and how often they come, is hardly known"] if found.count < FEW else []
    times = {"mean_on": found.mean_on * step, "mean_off": found.mean_off * step}
    return Transient(factor=round(factor, 4), **{name: round(float(value), 4) for name, value in times.items()}), few


def _mixed(usual: pd.Series, factor: float, share: float, level: float) -> float:
    """The quantile of noise that is multiplied by `factor` in that share of the samples."""
    values = np.concatenate([usual, usual * factor])
    weights = np.repeat([1 - share, share], len(usual)) / len(usual)
    order = values.argsort()
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), level)])
