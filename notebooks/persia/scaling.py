"""How Persia's modes grow with the GPUs, and beside each other, in timing runs."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lib.results.run import Run


def speeds(places: Sequence[tuple], names: Sequence[str], runs: Sequence[Run]) -> pd.DataFrame:
    """A row for each run, with its samples per second."""
    data = pd.DataFrame(places, columns=list(names)).assign(qps=[run.steady_qps for run in runs])
    return data.assign(subject=data["task"] + ", " + data["protocol"])


def busy(run: Run) -> float:
    """The share of its time, from its first gradient to its last, in which a GPU computes gradients."""
    work = run.trace[run.trace["kind"] == "compute"].groupby("node", observed=True)
    spans = work["end"].max() - work["start"].min()
    computed = work.apply(lambda one: (one["end"] - one["start"]).sum(), include_groups=False)
    return float((computed / spans).mean())


def efficiencies(data: pd.DataFrame) -> pd.DataFrame:
    """Of each mode and step from one crew to the next: its throughput over what the smaller one's would come to."""
    rows = []
    for (subject, seed), group in data.sort_values("workers").groupby(["subject", "seed"], sort=False):
        crews, qps = group["workers"].tolist(), group["qps"].tolist()
        for few, many, before, after in zip(crews, crews[1:], qps, qps[1:], strict=False):
            efficiency = after * few / (before * many)
            rows.append({"subject": f"{subject}, {few} to {many}", "seed": seed, "efficiency": efficiency})
    return pd.DataFrame(rows)


def over(data: pd.DataFrame, base: str, by: Sequence[str]) -> pd.DataFrame:
    """Throughput over the `base` protocol's at the same place."""
    keys = [*by, "seed"]
    there = data[data["protocol"] == base].set_index(keys)["qps"]
    found = data.set_index(keys)["qps"] / there.reindex(pd.MultiIndex.from_frame(data[keys])).to_numpy()
    return data.assign(**{f"over {base}": found.to_numpy()})
