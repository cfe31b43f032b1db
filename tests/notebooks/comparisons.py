"""Comparisons of made-up runs."""

from collections.abc import Mapping, Sequence

import pandas as pd

from notebooks.advisor.comparison import Comparison


def comparison(
    seconds: Mapping[str, Sequence[float]],
    metric: Mapping[str, Sequence[float]],
    speed: Mapping[str, float] | None = None,
    same: Mapping[str, str] | None = None,
) -> Comparison:
    """Each protocol has its seconds to the goal and its final metric on each seed, and its samples a second; in `same` it has the
    protocol whose runs are identical."""
    rows = [
        {"protocol": name, "seed": seed, "seconds": took[seed], "metric": metric[name][seed]}
        | {"digest": f"{(same or {}).get(name, name)} {seed}", "samples/s": (speed or {}).get(name, 1.0)}
        for seed in range(len(next(iter(seconds.values()))))
        for name, took in seconds.items()
    ]
    usual = {"rate": 1.0, "best": 1.0, "bytes/sample": 400.0, "age": 0.5}
    return Comparison(pd.DataFrame(rows).assign(**usual), "auc", 0.9)
