"""GBA's Tables 5.2 and 5.3: how unequal the workers are, which is fitted to one figure of each table, and what else they show."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from lib import Run, Uplink, VirtualCluster
from notebooks import study

TABLE = pd.DataFrame.from_dict(study.paper_table("gba", "table 5.2"), orient="index")
"""The paper's Tab. 5.2, in thousands of samples a second."""

SIGMA = 0.9
"""Spread of a batch's slowdown in Tab. 5.2: where Sync has 1436 / 3253 of Async's throughput on Criteo, see `fitted`. All
pages have it but Figure 1's, whose machines are a trace's."""

LOCAL = (78, 90, 99)
"""A worker under Async at Tab. 5.3's three times of day, as it is printed, in thousands of samples a second."""

INSIDE = {"async": LOCAL, "gba": (74, 87, 98)}
"""And under GBA."""

AGES = {"gba": ((0.21, 11), (0.15, 11), (0.12, 9)), "bsp": ((2.61, 12), (1.92, 12), (1.62, 10))}
"""Tab. 5.3's staleness at those times, the mean and the maximum."""

STATUS = {
    time: math.sqrt(SIGMA**2 + 2 * math.log(LOCAL[1] / local))
    for time, local in zip(("busy", "normal", "quiet"), LOCAL, strict=True)
}
"""The spreads at those times, by Async's column alone: a batch takes exp(sigma^2 / 2) times its time on average, and a worker of
the normal time trains as much as one of Tab. 5.2."""


def fit_sigma(ratios: Mapping[float, float], wanted: float) -> float:
    """The spread at which Sync has `wanted` of Async's throughput, given what it has at some spreads: log-linear between two."""
    logs = {math.log(share): sigma for sigma, share in ratios.items()}
    return float(np.interp(math.log(wanted), sorted(logs), [logs[x] for x in sorted(logs)]))


def rows_on_workers(cluster: VirtualCluster) -> VirtualCluster:
    """The cluster with its rows partitioned over the workers' machines, as Sync by all-reduce has them (Sec. 3.1): each machine
    has a worker and a server behind one interface, so that rows and their gradients travel from all to all."""
    machines = [(f"worker{rank}", f"server{rank}") for rank in range(cluster.workers)]
    uplinks = tuple(Uplink(nodes=nodes, bandwidth=cluster.worker.bandwidth) for nodes in machines)
    return replace(cluster, servers=cluster.workers, uplinks=uplinks)


def lags(run: Run, **case) -> dict[str, float]:
    """Mean and maximum of the steps by which a worker is behind the fastest when it finishes one. The mean leaves out the
    first quarter of the batches, before any worker waits."""
    done = run.trace[run.trace["kind"] == "compute"].sort_values("end")
    own = done.groupby("node", observed=True).cumcount() + 1
    lags = (own.cummax() - own).to_numpy()
    return {"mean": float(lags[len(lags) // 4 :].mean()), "max": int(lags.max())}


def slow_quarter(run: Run, **case) -> dict[str, float]:
    """Of the quarter of workers with the fewest gradients: the share of their gradients that is used, how old these are, the same
    of the other workers, and the one share over the other."""
    table = pd.DataFrame.from_dict(run.summary["by_worker"], "index").sort_values("gradients", kind="stable")
    table["used"] = 1 - (table["decayed"] + table["dropped"]) / table["gradients"]
    slow, others = (part.mean() for part in (table[: len(table) // 4], table[len(table) // 4 :]))
    found = {"slow: used": slow["used"], "others: used": others["used"]}
    ages = {"slow: age": slow["staleness"], "others: age": others["staleness"]}
    return found | ages | {"slow_used": slow["used"] / others["used"]}
