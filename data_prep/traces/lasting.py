"""How long what slows a worker lasts: the autocorrelation of a trace's values, and the sum of exponentials nearest to it."""

import math
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.special import ndtri

from data_prep.traces.formats import Trace

LAGS = 20
"""Lags, in the trace's steps, that the correlation is fitted to."""
LEAST_LAGS = 4
"""With fewer, two exponentials cannot be distinguished."""


def grid(values: pd.Series, trace: Trace) -> pd.DataFrame:
    """One column a worker, one row a step; nan where none was seen."""
    seen = trace.table.loc[values.index]
    step = np.floor(seen["time"] / trace.step + 1e-6).astype(int)  # 29 * 0.005 / 0.005 is less than 29
    long = pd.DataFrame({"step": step, "worker": seen["worker"], "value": values}).drop_duplicates(["step", "worker"])
    wide = long.pivot(index="step", columns="worker", values="value")
    return wide.reindex(range(wide.index[0], wide.index[-1] + 1))


def autocorrelation(grid: pd.DataFrame, lag: int) -> float:
    """Over all pairs of samples that many steps apart, nan where there are none; the mean is taken as 0."""
    values = grid.to_numpy()
    pairs, squares = values[:-lag] * values[lag:], values * values
    if np.isnan(pairs).all() or not np.nansum(squares) > 0:
        return math.nan
    return float(np.nanmean(pairs) / np.nanmean(squares))


def exponentials(noise: pd.Series, trace: Trace) -> tuple[tuple[float, ...], tuple[float, ...], list[str]]:
    """(shares, seconds, remarks) of two exponentials: least squares over the lags of the noise's normal scores, by trying all
    pairs of a grid of times. Two, since every sample has a fast and a slow part that one exponential cannot both follow.
    No share is negative, and together they are at most 1; a remark says where nothing of that form comes near."""
    if noise.min() == noise.max():
        return (), (), []
    scores = grid(pd.Series(ndtri((noise.rank() - 0.5) / len(noise)), noise.index), trace)
    lags = np.arange(1, min(LAGS, len(scores) // 2) + 1)
    measured = np.array([autocorrelation(scores, lag) for lag in lags])
    lags, measured = lags[np.isfinite(measured)], measured[np.isfinite(measured)]
    if lags.size < LEAST_LAGS:
        return (
            (),
            (),
            [f"the trace is too short to tell how long its noise lasts ({lags.size} lags): taken as independent"],
        )
    times = np.geomspace(0.5, 4 * LAGS, 45)  # slower than that, it could not be distinguished from a steady difference
    # A worker's level was taken out, and with it the mean of what lasts: of a correlation rho, (rho - v) / (1 - v) is left.
    level = np.array([_of_mean(time, int(scores.count().median())) for time in times])[:, None]
    shapes = np.exp(-lags / times[:, None]) - level * (1 - measured)
    best = min(
        (_nearest(shapes[[fast, slow]], measured, (fast, slow)) for fast, slow in combinations(range(times.size), 2)),
        key=lambda tried: tried[0],
    )
    _, shares, chosen = best
    off = np.abs(shares @ shapes[list(chosen)] - measured)
    worst = int(off.argmax())
    remarks = []
    if off[worst] > 0.1:
        remarks.append(
            f"no sum of exponentials follows how the noise lasts: {lags[worst]} steps apart its correlation is "
            f"{measured[worst]:.2f}, the fit's {shares @ shapes[list(chosen), worst]:.2f}"
        )
    kept = [place for place, share in enumerate(np.round(shares, 3)) if share > 0]
    seconds = tuple(trace.seconds(steps) for steps in times[list(chosen)][kept])
    return tuple(np.round(shares[kept], 3).tolist()), seconds, remarks


def _of_mean(time: float, count: int) -> float:
    """The variance of the mean of that many samples, of variance 1, whose correlation falls to 1/e in `time` steps."""
    lags = np.arange(1, count)
    return float((1 + 2 * ((1 - lags / count) * np.exp(-lags / time)).sum()) / count)


def _nearest(
    shapes: np.ndarray, measured: np.ndarray, chosen: tuple[int, int]
) -> tuple[float, np.ndarray, tuple[int, int]]:
    """(error, shares, chosen): the best shares among those that are not negative and at most 1 together."""
    free = np.linalg.lstsq(shapes.T, measured)[0]
    tried = [free] if (free >= 0).all() and free.sum() <= 1 else _edges(shapes, measured)
    errors = [((shares @ shapes - measured) ** 2).sum() for shares in tried]
    best = int(np.argmin(errors))
    return errors[best], tried[best], chosen


def _edges(shapes: np.ndarray, measured: np.ndarray) -> list[np.ndarray]:
    """The best points on the three sides of the triangle of shares."""
    sides = [
        (np.zeros(2), np.array([1.0, 0])),
        (np.zeros(2), np.array([0, 1.0])),
        (np.array([0, 1.0]), np.array([1.0, -1])),
    ]
    found = []
    for start, way in sides:
        along = way @ shapes
        found.append(start + way * np.clip(along @ (measured - start @ shapes) / (along @ along), 0, 1))
    return found
