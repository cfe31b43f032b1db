"""How throughput grows with the trainers: along a line, and until where."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lib.results.run import Run


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


def speed(run: Run, size: int) -> dict[str, float]:
    """Examples per second, and the sync gap: counted, and by the paper's formula (Sec. 4.1.1), steps over the copies of `size`
    bytes that the sync servers' traffic holds: of what they take alone, or of what they take and give. The paper does not say
    which it counts."""
    moved, steps = run.summary["bytes_by_kind"], run.summary["issued"]
    taken, given = (moved.get(kind, 0) for kind in ("mix dense", "mix answers"))
    ways = {"taken": taken, "taken and given": taken + given}
    found = {"eps": run.steady_qps, "gap": run.summary["sync_gap"]}
    return found | {way: steps * size / of if of else float("nan") for way, of in ways.items()}
