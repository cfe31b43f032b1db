"""What virtual time costs: the wall seconds of a virtual cluster against those of a bare loop over the same model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import lib
from lib.models.flat import FlatModel
from lib.store.dense import DenseStore
from lib.store.table.table import Table
from lib.workloads import Workload
from notebooks.bench.pairs import against, at_most, seconds_of

PAIRS = 5


def measure() -> Iterator[dict[str, Any]]:
    """Bare loop and cluster in turn, pair by pair, since a machine's speed drifts; then a thousand workers once."""
    torch.set_num_threads(1)
    lib.train("ctr-synthetic", "async", "virtual", samples=2_000, save=False)  # what is imported late is not measured
    for batch_size in (32, 128, 512):
        workload = lib.workloads.get("ctr-synthetic", batch_size=batch_size, samples=1_500 * batch_size)
        for protocol in ("async", "gba", "sync"):
            works = partial(bare, workload), partial(modelled, workload, protocol, 100)
            pairs = [tuple(map(seconds_of, works)) for _ in range(PAIRS)]
            where = {"what": f"100 workers, {protocol}", "peer": "bare loop", "batch": batch_size}
            yield where | against(0.75, pairs, workload.samples, "samples/s")
    workload = lib.workloads.get("ctr-synthetic", batch_size=32, samples=1_000_000)
    seconds = seconds_of(partial(modelled, workload, "gba", 1_000))
    yield {"what": "seconds of a million samples on 1000 workers, gba", "batch": 32} | at_most(300, seconds)


def modelled(workload: Workload, protocol: str, workers: int) -> None:
    """A whole `lib.train`, evaluation and trace included."""
    lib.train(workload, protocol, lib.VirtualCluster(workers=workers, slowdown=0.6), save=False)


def bare(workload: Workload, seed: int = 0) -> None:
    """A serial loop over the same batches, model, store and optimisers, without evaluation."""
    model = FlatModel(workload.model(seed), pooling=workload.bags())
    dense = DenseStore(model.vector, workload.dense_optimizer)
    tables = {
        name: Table(spec.dim, workload.row_optimizer, seed=seed, scale=spec.scale)
        for name, spec in workload.tables().items()
    }
    for index in range(workload.batches()):
        batch = workload.batch(seed, index)
        model.load(dense.values)
        result = model.step(batch, {name: table.pull(batch.ids[name]) for name, table in tables.items()})
        dense.apply(result.dense)
        for name, table in tables.items():
            table.push(batch.ids[name], result.rows[name], index, distinct=True)
