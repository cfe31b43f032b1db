"""What virtual time costs: samples per wall second of a virtual cluster against a bare loop over the same model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

import lib
from lib.models.flat import FlatModel
from lib.store.dense import DenseStore
from lib.store.table import Table
from lib.workloads import Workload

PAIRS = 5


def measure() -> Iterator[dict[str, Any]]:
    """Bare loop and cluster in turn, pair by pair, since a machine's speed drifts; then a thousand workers once."""
    torch.set_num_threads(1)
    lib.train("ctr-synthetic", "async", "virtual", samples=2_000, save=False)  # what is imported late is not measured
    for batch_size in (32, 128, 512):
        workload = lib.workloads.get("ctr-synthetic", batch_size=batch_size, samples=1_500 * batch_size)
        for protocol in ("async", "gba", "sync"):
            pairs = [(bare(workload), wall(workload, protocol, 100)) for _ in range(PAIRS)]
            ratios = sorted(alone / modelled for alone, modelled in pairs)
            yield {
                "what": f"100 workers, {protocol}",
                "batch": batch_size,
                "bare samples/s": round(workload.samples / statistics.median(alone for alone, _ in pairs)),
                "virtual samples/s": round(workload.samples / statistics.median(modelled for _, modelled in pairs)),
                "ratio": round(statistics.median(ratios), 3),
                "least": round(ratios[0], 3),
                "greatest": round(ratios[-1], 3),
            }
    workload = lib.workloads.get("ctr-synthetic", batch_size=32, samples=1_000_000)
    seconds = wall(workload, "gba", 1_000)
    yield {
        "what": "1000 workers, gba, a million samples",
        "batch": 32,
        "virtual samples/s": round(1e6 / seconds),
        "wall s": seconds,
    }


def wall(workload: Workload, protocol: str, workers: int) -> float:
    """Seconds of a whole `lib.train`, evaluation and trace included."""
    start = time.perf_counter()
    lib.train(workload, protocol, lib.VirtualCluster(workers=workers, slowdown=0.6), save=False)
    return time.perf_counter() - start


def bare(workload: Workload, seed: int = 0) -> float:
    """Seconds of a serial loop over the same batches, model, store and optimisers, without evaluation."""
    start = time.perf_counter()
    model = FlatModel(workload.model(seed))
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
            table.push(batch.ids[name], result.rows[name], index)
    return time.perf_counter() - start
