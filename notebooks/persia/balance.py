"""Which embedding server has how much to do where rows are placed as Persia placed them first, and as it does now.

How busy the paper's servers are and how unlike its feature groups, it does not say; both are estimates of ours. What is real are
the ids: groups of unlike vocabularies, of which a sample has unlike numbers of ids, by Zipf's law.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lib import workloads
from lib.cluster.slowdowns import Lognormal
from lib.cluster.spec import Node
from lib.data.clicks import FIELD_SHIFT
from lib.results.run import Run
from lib.store.placement import look_up_costs
from lib.store.spec import RowStore
from lib.streams import stream
from lib.workloads import Workload
from notebooks import clusters
from notebooks.persia import tasks

PLACEMENTS = {
    "feature groups": "by-group",
    "packed groups": "by-cost",
    "global hash": "hashed",
    "uniform shuffle": "uniform",
}
"""In the paper's words -> as `store.placement`. Packing groups by a profile of their cost is ShadowSync's way (its Sec. 3.1)."""

GROUPS = 26
SIZES = (100, 1_000, 10_000, 100_000)
"""Vocabularies, of which a group has one by chance."""
POOLING = 1.0
"""Sigma of the logarithm of how many ids of a group a sample has, whose median is 2."""
MOST = 30
"""Ids of a group that a sample has."""
LOAD = 0.8
"""How busy servers are where their work is even and no GPU ever waits."""
FORETOLD = 16
"""Batches by whose ids the work of each server is foretold."""


def workload(seed: int, batch: int, steps: int, width: int) -> Workload:
    """Steps of each GPU, with so many samples; `width` of the network's widest layer. Groups are drawn anew for each seed."""
    draws = stream(seed, "groups")
    pooling = np.clip(2 * np.exp(POOLING * draws.standard_normal(GROUPS)), 1, MOST).astype(int)
    return workloads.get(
        "criteo-ffnn",
        fields=GROUPS,
        vocabularies=tuple(draws.choice(SIZES, GROUPS).tolist()),
        pooling=tuple(pooling.tolist()),
        dim=16,
        hidden=tuple(width >> layer for layer in range(5)),
        batch_size=batch,
        samples=batch * tasks.GPUS * steps,
        world=seed,
        evaluation_samples=100,
    )


def asked(task: Workload, seed: int, batches: range) -> list[dict[str, np.ndarray]]:
    """The distinct ids of batches, which is what servers are asked for."""
    return [task.batch(seed, index, task.batch_size).ids for index in batches]


def requests(placement: str, servers: int, seed: int, task: Workload) -> np.ndarray:
    """Rows that each server is asked for in the first batches, from ids and the placement alone."""
    batches = asked(task, seed, range(FORETOLD))
    widths = {name: spec.dim for name, spec in task.tables().items()}

    def costs():
        return look_up_costs(batches, widths, shift=FIELD_SHIFT)

    there = RowStore(placement=PLACEMENTS[placement]).place(servers, shift=FIELD_SHIFT, costs=costs)
    work = np.zeros(servers)
    for batch in batches:
        for table, ids in batch.items():
            work += np.bincount(there.owner(table, ids), minlength=servers)
    return work


def foretold(work: np.ndarray) -> dict[str, float]:
    """The busiest server's work over the mean, and throughput over the GPUs' own, which set the pace until a server is full."""
    uneven = float(work.max() / work.mean())
    return {"imbalance": uneven, "pace": min(1.0, 1 / (LOAD * uneven))}


def free(seed: int, *, batch: int, steps: int, width: int) -> dict[str, Any]:
    """A timing run of the hybrid on the paper's servers, which have far more to spare than they need: the GPUs' own pace."""
    task = workload(seed, batch, steps, width)
    spread = Lognormal(sigma=0.05)  # estimate
    there = replace(clusters.persia(tasks.GPUS), slowdown=spread)
    return {"workload": task, "protocol": tasks.MODES["hybrid"], "cluster": there, "seed": seed, "gradients": False}


def job(placement: str, servers: int, seed: int, pace: float, **shape: int) -> dict[str, Any]:
    """The same run on servers that are all together a quarter faster than so many samples a second need."""
    made = free(seed, **shape)
    task, here = made["workload"], made["cluster"]
    rows = np.mean([sum(ids.size for ids in each.values()) for each in asked(task, seed, range(FORETOLD))])
    moved = (
        5 * 4 * task.dim * rows
    )  # bytes of a batch: read twice, and three times for an update, as a server counts it
    each = moved * pace / task.batch_size / LOAD / servers
    server = Node(cores=8, core_memory=each / 8, bandwidth=here.server.bandwidth)
    store = RowStore(placement=PLACEMENTS[placement])
    return made | {"cluster": replace(here, servers=servers, server=server), "store": store}


def late(run: Run) -> float:
    """Samples per second between half and nine tenths of the samples: before, what GPUs have read ahead hides a full server."""
    history = run.history.dropna(subset=["step"])
    time, samples = history["time"].to_numpy(), history["samples"].to_numpy()
    first, last = (int((samples >= share * samples[-1]).argmax()) for share in (0.5, 0.9))
    return float((samples[last] - samples[first]) / (time[last] - time[first]))


def told(placement: str, servers: int, seed: int, run: Run, pace: float, **shape: int) -> dict[str, float]:
    """What a run shows of its servers, and what was foretold.

    `busiest`: the share of the time in which the busiest server's cores work; `queue`: look-ups under way at once, of all GPUs'.
    """
    work = run.usage.loc[run.usage["name"].str.startswith("server"), "computed"].to_numpy()
    pulls = run.trace[run.trace["kind"] == "pull"]
    ahead = foretold(requests(placement, servers, seed, workload(seed, **shape)))
    return {
        "qps": late(run),
        "pace": late(run) / pace,
        "pace foretold": ahead["pace"],
        "imbalance": float(work.max() / work.mean()),
        "imbalance foretold": ahead["imbalance"],
        "busiest": float(work.max()),
        "queue": float((pulls["end"] - pulls["start"]).sum() / run.summary["virtual_seconds"]),
    }
