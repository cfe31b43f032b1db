"""Which embedding server has how much to do where rows are placed as Persia placed them first, and as it does now.

How busy the paper's servers are and how unlike its feature groups, it does not say; both are estimates of ours. What is real are
the ids: groups of unlike vocabularies, of which a sample has unlike numbers of ids, by Zipf's law.
"""

from dataclasses import replace

import numpy as np

from lib import Lognormal, Node, RowStore, Run, Workload, streams, workloads
from notebooks import clusters, loads, study
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
"""Sigma of the logarithm of how many ids of a group a sample has."""
MOST = 30
"""Ids of a group that a sample has."""
PREDICTED_FROM = 16
"""Batches by whose ids the work of each server is predicted."""


def workload(seed: int, batch: int, steps: int, width: int) -> Workload:
    """Steps of each GPU, with so many samples; `width` of the network's widest layer. Groups are drawn anew for each seed."""
    groups = loads.fields(streams.stream(seed, "groups"), GROUPS, SIZES, POOLING, MOST)
    size = {"dim": 16, "hidden": tuple(width >> layer for layer in range(5)), "evaluation_samples": 100}
    samples = {"batch_size": batch, "samples": batch * tasks.GPUS * steps}
    return workloads.get("criteo-ffnn", fields=GROUPS, **groups, **size, **samples, world=seed)


def distinct_ids(task: Workload, seed: int) -> list[dict[str, np.ndarray]]:
    """The distinct ids of the first batches, which servers look up."""
    return [task.batch(seed, index, task.batch_size).ids for index in range(PREDICTED_FROM)]


def requests(placement: str, servers: int, seed: int, task: Workload) -> np.ndarray:
    """Rows that the first batches request from each server, by ids and placement alone."""
    batches = distinct_ids(task, seed)
    placed = loads.place(PLACEMENTS[placement], servers, loads.costs(task, batches))
    return loads.look_ups(placed, servers, batches)


def predict(work: np.ndarray) -> dict[str, float]:
    """The busiest server's work over the mean, and throughput over the GPUs' own, which set the pace until a server is full."""
    uneven = loads.imbalance(work)
    return {"imbalance": uneven, "pace": min(1.0, 1 / (loads.LOAD * uneven))}


def free_job(seed: int, **shape: int) -> dict:
    """A timing run of the hybrid on the paper's servers, which have far more to spare than they need: the GPUs' own pace."""
    cluster = replace(clusters.persia(tasks.GPUS), slowdown=Lognormal(sigma=0.05))  # the spread: estimate
    return study.job(workload(seed, **shape), tasks.MODES["hybrid"], cluster, seed, trace=True, gradients=False)


def job(placement: str, servers: int, seed: int, pace: float, **shape: int) -> dict:
    """The same run on servers that are all together a quarter faster than so many samples a second need."""
    base = free_job(seed, **shape)
    task, cluster = base["workload"], base["cluster"]
    rows = np.mean([sum(ids.size for ids in each.values()) for each in distinct_ids(task, seed)])
    moved = 5 * 4 * task.dim * rows  # of a batch: read twice, and three times for an update, as a server counts it
    each = moved * pace / task.batch_size / loads.LOAD / servers
    server = Node(cores=8, core_memory=each / 8, bandwidth=cluster.server.bandwidth)
    store = RowStore(placement=PLACEMENTS[placement])
    return base | {"cluster": replace(cluster, servers=servers, server=server), "store": store}


def late_pace(run: Run) -> float:
    """Samples per second between half and nine tenths of the samples: before, what GPUs have read ahead hides a full server."""
    history = run.history.dropna(subset=["step"])[["time", "samples"]].to_numpy()
    first, last = (history[(history[:, 1] >= share * history[-1, 1]).argmax()] for share in (0.5, 0.9))
    return float((last - first)[1] / (last - first)[0])


def figures(placement: str, servers: int, seed: int, run: Run, pace: float, **shape: int) -> dict[str, float]:
    """The measured load of a run's servers, and the predicted one.

    `busiest`: the share of the time in which the busiest server's cores work; `queue`: look-ups under way at once, of all GPUs'.
    """
    work, pulls = loads.measured(run), run.trace[run.trace["kind"] == "pull"]
    ahead = predict(requests(placement, servers, seed, workload(seed, **shape)))
    return {
        "qps": late_pace(run),
        "pace": late_pace(run) / pace,
        "imbalance": loads.imbalance(work),
        "busiest": float(work.max()),
        "queue": float((pulls["end"] - pulls["start"]).sum() / run.summary["virtual_seconds"]),
        **{f"{name} foretold": value for name, value in ahead.items()},
    }
