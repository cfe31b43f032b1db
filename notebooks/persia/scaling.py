"""How Persia's modes grow with the GPUs, in timing runs."""

from __future__ import annotations

import pandas as pd

from lib.results.run import Run


def busy(run: Run) -> float:
    """The share of its time, from its first gradient to its last, in which a GPU computes gradients."""
    work = run.trace[run.trace["kind"] == "compute"].assign(computed=lambda t: t["end"] - t["start"])
    each = work.groupby("node", observed=True).agg({"computed": "sum", "start": "min", "end": "max"})
    return float((each["computed"] / (each["end"] - each["start"])).mean())


def efficiencies(data: pd.DataFrame) -> pd.DataFrame:
    """Of each mode and step from one crew to the next: its throughput over what the smaller one's would come to."""
    data = data.sort_values(["subject", "seed", "workers"])
    few = data.groupby(["subject", "seed"])[["workers", "qps"]].shift()
    efficiency = data["qps"] * few["workers"] / (few["qps"] * data["workers"])
    data = data.assign(efficiency=efficiency, few=few["workers"]).dropna(subset=["few"]).astype({"few": int})
    steps = data["subject"] + ", " + data["few"].astype(str) + " to " + data["workers"].astype(str)
    return data.assign(subject=steps)[["subject", "seed", "efficiency"]]
