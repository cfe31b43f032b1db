"""A slowdown fitted to a trace.

The model of a worker's factor is: steady difference between workers x the hour of the day (where the trace has one) x
straggler periods (where there are any) x noise with the trace's own quantiles, correlated in time.

Periods have one factor where that leaves the trace its tail, else each draws its own. Where even that does not, they are left to
the noise, whose quantiles are the trace's own and whose correlation makes slow times last.

Why quantiles and no lognormal. The distance (KS) of the noise, workers' medians taken out, to the best lognormal and to
fifteen quantiles of its own: 0.043 and 0.019 in Alibaba's job 1, 0.052 and 0.039 in job 2 (whole numbers, which no
continuous distribution follows closer), 0.021 and 0.010 in ByteDance's job, 0.145 and 0.017 on the machines, whose
heavy tail is the reason to care. Quantiles are never worse, and cost nothing to draw from. What matters more than the
family is that workers differ for good and that noise lasts: `data_prep.traces.quality` gives both.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from data_prep.traces import lasting
from data_prep.traces.formats import Trace, hours
from data_prep.traces.periods import Periods, periods
from lib.cluster.slowdowns import Diurnal, Empirical, Product, Shared, Slowdown, Steady, Transient
from lib.errors import BadOption

TAILS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0)
"""Levels of quantiles that follow both tails closely enough for a straggler: a heavy one is no straight line from 0.99 on."""
LEVELS = (0.95, 0.99)
"""Levels at which periods must leave the factors' quantiles as they are."""
TAIL = 0.1
"""By what share these may be off."""
DRAWN = 50
"""Factors, at most, of which a period draws one."""
FEW = 10
"""Periods of which too little is known to trust their times."""
IN_USE = 0.1
"""Median share in use below which a machine counts as one that is not shared."""


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
        transient, remarks = _transient(factors / workers.map(usual), found, trace)
        if transient:
            steady, straggles = usual, found.inside
    noise = (factors / workers.map(steady))[~straggles]
    shares, seconds, doubts = lasting.exponentials(noise, trace)
    quantiles = tuple(np.round(np.quantile(noise, TAILS), 4).tolist())
    parts: list[Slowdown | None] = [
        Steady(factors=tuple(np.round(steady, 4).tolist())),
        Diurnal(curve=tuple(np.round(1 / curve, 4).tolist())) if trace.daily else None,
        transient,
        Empirical(quantiles=quantiles, levels=TAILS, seconds=seconds, shares=shares),
    ]
    return Fit(Product(parts=tuple(part for part in parts if part)), (*remarks, *doubts))


def fit_shared(trace: Trace) -> Shared:
    """Machines that others use too: the mean share in use in each hour, one concentration and one hold time.

    Machines that are not shared are left out. The concentration is the one whose variance, over all hours, is the
    trace's; the hold time is that of the triangle, the autocorrelation of what is drawn anew every `hold` seconds, which
    is nearest to the trace's over the first lags. The trace has faster and slower changes than any one hold time."""
    if not trace.daily:
        raise BadOption(f"{trace.name}: a trace of machines is needed, whose shares in use follow the time of day")
    in_use = 1 - 1 / trace.table["factor"]
    shared = in_use[in_use.groupby(trace.table["worker"]).transform("median") >= IN_USE]
    if shared.empty or shared.groupby(trace.table["worker"]).nunique().max() == 1:
        raise BadOption(
            f"{trace.name}: no machine in it is in use by others, to {IN_USE:.0%} or more and at times more than at others"
        )
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
        hold=trace.seconds(holds[errors.argmin()]),
    )


def _transient(noise: pd.Series, found: Periods, trace: Trace) -> tuple[Transient | None, list[str]]:
    """One factor for all periods, the one that loses as much time as they did; where that has not the trace's tail, one that
    each period draws: of the periods' own, or of all their samples', where slowness varies within a period too. None where
    even these, times the noise outside, have not the tail."""
    inside, usual = noise[found.inside], noise[~found.inside]
    number = (found.inside.ne(found.inside.groupby(trace.table["worker"]).shift())).cumsum()[found.inside]
    own = (1 / (1 / inside).groupby(number).mean()).to_numpy()
    of_all = np.quantile(inside, (np.arange(DRAWN) + 0.5) / DRAWN)
    of_periods = own if len(own) <= DRAWN else np.quantile(own, (np.arange(DRAWN) + 0.5) / DRAWN)
    told = "one straggler period" if found.count == 1 else f"{found.count} straggler periods"
    remarks = []
    if found.count < FEW:
        remarks.append(f"{told} in all: how long they last, and how often they come, is hardly known")
    for drawn in (np.array([1 / (1 / inside).mean()]), of_periods, of_all):
        off = _off(noise, usual, drawn, len(inside) / len(noise))
        if abs(off) <= TAIL:
            break
    else:
        return None, [
            f"{told}, whose slowness varies so much that one drawn for each would put the tail off by {off:+.0%}: "
            "they are left to the noise, which keeps the quantiles, but lasts less than the periods did"
        ]
    if drawn is of_all:
        remarks.append(
            f"each period draws its slowness from all samples of the {told}, to keep the tail, and holds it to its end; "
            "in the trace it varies within a period"
        )
    factors = tuple(np.round(np.sort(drawn), 4).tolist())
    times = {"mean_on": trace.seconds(found.mean_on, 4), "mean_off": trace.seconds(found.mean_off, 4)}
    return Transient(factor=factors if len(factors) > 1 else factors[0], **times), remarks


def _off(noise: pd.Series, usual: pd.Series, factors: np.ndarray, share: float) -> float:
    """By how much the worse of two quantiles is off, where that share of the noise is multiplied by one of the factors."""
    base = usual.quantile((np.arange(1_000) + 0.5) / 1_000).to_numpy()
    values = np.concatenate([base, np.outer(factors, base).ravel()])
    weights = np.repeat(
        [(1 - share) / base.size, share / base.size / factors.size], [base.size, base.size * factors.size]
    )
    order = values.argsort()
    places = np.searchsorted(np.cumsum(weights[order]), LEVELS).clip(max=values.size - 1)
    off = values[order][places] / noise.quantile(LEVELS).to_numpy() - 1
    return float(off[np.abs(off).argmax()])
