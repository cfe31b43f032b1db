"""How throughput grows with the trainers: along a line, and until where."""

from __future__ import annotations

import numpy as np
import pandas as pd


def straightness(data: pd.DataFrame) -> pd.DataFrame:
    """R^2 of a straight line through the examples per second over the trainers, for each protocol and seed."""
    return _each(data, lambda trainers, eps: {"r2": float(np.corrcoef(trainers, eps)[0, 1] ** 2)})


def bends(data: pd.DataFrame) -> pd.DataFrame:
    """The most examples per second, in trainers that are as fast as in the smallest crew."""
    return _each(data, lambda trainers, eps: {"bend": float(eps.max() / (eps[0] / trainers[0]))})


def _each(data: pd.DataFrame, found) -> pd.DataFrame:
    rows = []
    for (protocol, seed), group in data.sort_values("trainers").groupby(["protocol", "seed"], sort=False):
        rows.append({"subject": protocol, "seed": seed, **found(group["trainers"].to_numpy(), group["eps"].to_numpy())})
    return pd.DataFrame(rows)
