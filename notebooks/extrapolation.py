"""What is left of a loss when training goes on: read off the map that `02_regime` published.

A protocol's cost in a metric is the reader's own to measure; how it falls with the updates is taken from the map, whose ways
have rates that are tuned at each length. No family is asked for by name: the ways bracket what is left.
"""

import numpy as np
import pandas as pd

from lib import paths
from notebooks.advisor.comparison import Comparison
from reports.markup import rounded

UNKNOWN = "not known here"


def published_map() -> pd.DataFrame:
    return pd.read_csv(paths.reference() / "02_regime" / "map.csv")


def remaining_share(cells: pd.DataFrame, here: float, there: float) -> tuple[float, float] | None:
    """The least and the most of a loss after `here` updates that is left after `there`, over those ways of the map that lose
    measurably, between their lengths along straight lines in the logarithms. None where fewer than two reach as far."""
    shares = []
    for _, curve in cells[cells["low"] > 0].sort_values("updates").groupby("way"):
        if curve["updates"].iloc[0] <= here <= there <= curve["updates"].iloc[-1]:
            lost = np.interp(np.log([here, there]), *np.log(curve[["updates", "cost"]].to_numpy(float)).T)
            shares.append(float(np.exp(lost[1] - lost[0])))
    return (min(shares), max(shares)) if len(shares) > 1 else None


def extrapolate(found: Comparison, here: float, there: float, share: tuple[float, float] | None) -> pd.DataFrame:
    """For each protocol the difference in the metric from the first, in thousandths: as it was measured after `here` updates, and
    within what it is expected after `there`, where such a share of it is left."""
    rows = {}
    for row in found.summary().to_dict("records"):
        ends = [1e3 * row[name] for name in ("difference", "difference, low", "difference, high")]
        mean, low, high = (rounded(end, 2) for end in ends)
        reach = share and [
            rounded(of(end * part for part in share), 2) for of, end in zip((min, max), ends[1:], strict=True)
        ]
        rows[row["protocol"]] = {
            f"after {here:,.0f} updates": f"{mean} [{low}, {high}]",
            f"after {there:,.0f}": " to ".join(reach) if reach else UNKNOWN,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("protocol")
