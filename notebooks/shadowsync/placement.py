"""Embedding servers under a placement: many tables of unlike cost, servers that have little to spare, and how even their work is.

How many tables a model has is the paper's ("hundreds", Sec. 3.1); how large they are, how many ids of each a sample has, and how
much faster the servers are than they need to be, are estimates of ours.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lib import Node, VirtualCluster, Workload, streams
from lib.drivers.plan import PROFILED
from lib.store.rows import pack_groups
from lib.tasks.clicks_stream import FIELD_SHIFT
from notebooks import loads
from notebooks.shadowsync import tasks

PLACEMENTS = ("uniform", "by-group", "by-cost")

FREE = "never full"
"""Packed by cost, on servers that look up 1000x as fast: nothing waits for them."""

TRAINERS = 4

SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)
"""Vocabularies, of which a table has one by chance."""

POOLING = 1.3
"""Sigma of the logarithm of how many ids of a table a sample has."""

MOST = 100
"""Ids of a table that a sample has."""

LATER = range(1000, 1064)
"""Batches that no profiling pass has seen."""


def workload(seed: int, tables: int, samples: int = LATER.stop * tasks.BATCH) -> Workload:
    """A DLRM over so many tables, drawn anew for each seed."""
    fields = loads.fields(streams.stream(seed, "tables"), tables, SIZES, POOLING, MOST)
    return tasks.workload(samples, fields=tables, evaluation_samples=100, world=seed, **fields)


def job(protocol: str, servers: int, seed: int, *, tables: int, each: int) -> dict:
    """A timing run of S-EASGD in which each thread makes so many steps, under a placement."""
    rule = tasks.rule("s-easgd")
    task = workload(seed, tables, each * TRAINERS * rule.worker_threads * tasks.BATCH)
    store = replace(tasks.STORE, placement=_placed(protocol))
    machines = cluster(task, servers, 1000.0 if protocol == FREE else 1.0)
    return tasks.timing(task, rule, machines, seed) | {"store": store}


def cluster(task: Workload, servers: int, faster: float = 1.0) -> VirtualCluster:
    """The paper's trainers, and embedding servers that are all together a quarter faster than the trainers' pace needs, or even
    so many times that."""
    base = tasks.cluster(task, TRAINERS)
    row = 4 * next(iter(task.tables().values())).dim
    step = 5 * row * tasks.BATCH * sum(task.pooling)  # read twice, and three times for an update, as a server counts it
    needed = step * TRAINERS * tasks.STEPS / servers
    embedding = Node(cores=8, core_memory=faster * needed / loads.LOAD / 8, bandwidth=base.server.bandwidth)
    return replace(base, servers=servers, nodes={f"server{each}": embedding for each in range(servers)})


def predicted_imbalance(placement: str, servers: int, seed: int, tables: int) -> float:
    """The imbalance that a run's profiling pass predicts."""
    costs = _profile(workload(seed, tables), seed, range(PROFILED))
    placed = loads.place(_placed(placement), servers, costs)
    return loads.imbalance(placed.shard_loads(costs))


def later_imbalance(batches: int, servers: int, seed: int, tables: int, pooling: str) -> float:
    """The imbalance of later batches where that many were profiled, and rows are summed by the "server" or the "worker"."""
    task = workload(seed, tables)
    placed = pack_groups(_profile(task, seed, range(batches), pooling), servers, shift=FIELD_SHIFT)
    return loads.imbalance(loads.look_ups(placed, servers, _looked_up(task, seed, LATER, pooling)))


def reader_job(milliseconds: float, readers: int, seed: int, *, each: int) -> dict:
    """A timing run of S-EASGD in which a sample costs a core so many milliseconds to read, a reader's or, without any, the
    trainer's; either way a batch is made ahead for each thread."""
    base = tasks.speed_job(tasks.rule("s-easgd"), TRAINERS, seed, each=each)
    cluster = base["cluster"]
    slow = {role: replace(getattr(cluster, role), reading=milliseconds / 1e3) for role in ("worker", "server")}
    return base | {"cluster": replace(cluster, **slow), "reader_nodes": readers, "prefetch": 1}


def _placed(protocol: str) -> str:
    return "by-cost" if protocol == FREE else protocol


def _profile(task: Workload, seed: int, batches: range, pooling: str = "server") -> dict[str, float]:
    return loads.costs(task, _looked_up(task, seed, batches, pooling))


def _looked_up(task: Workload, seed: int, batches: range, pooling: str) -> Iterator[dict[str, np.ndarray]]:
    """Table -> ids: every entry where servers sum, each once a batch where workers do."""
    for batch in (task.batch(seed, index, tasks.BATCH) for index in batches):
        each = pooling == "server"
        yield {table: ids[batch.where[table].ravel()] if each else ids for table, ids in batch.ids.items()}
