"""What virtual time costs: samples per wall second of a virtual cluster against a bare loop over the same model."""

from __future__ import annotations

import cProfile
import pstats
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import lib
from lib.models.flat import FlatModel
from lib.store.dense import DenseStore
from lib.store.table.table import Table
from lib.workloads import Workload

PAIRS = 5
HOME = Path(lib.__file__).parent


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
    seconds, run = timed(workload, "gba", 1_000)
    yield {
        "what": "1000 workers, gba, a million samples",
        "batch": 32,
        "virtual samples/s": round(1e6 / seconds),
        "wall s": seconds,
        "events/s": round(run.provenance["events"] / seconds),
    }
    yield from profile(replace(workload, samples=100_000))


def profile(workload: Workload) -> Iterator[dict[str, Any]]:
    """Where a thousand workers' wall time goes, by what the code belongs to."""
    profiler = cProfile.Profile()
    threading.setprofile(lambda *_: profiler.enable())  # the loop has a thread of its own
    try:
        timed(workload, "gba", 1_000)
    finally:
        threading.setprofile(None)
    shares: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(profiler).stats.items():
        shares[_owner(file, name)] += own
    for owner, seconds in shares.most_common():
        yield {"what": f"profile: {owner}", "batch": workload.batch_size, "share": round(seconds / shares.total(), 3)}


def _owner(file: str, name: str) -> str:
    """A package of ours, or a library; the loop's tasks step inside compiled code, under the context that runs them."""
    path = Path(file)
    if path.is_relative_to(HOME):
        return f"lib/{path.relative_to(HOME).parts[0].removesuffix('.py')}"
    if "asyncio" in path.parts or "Context" in name:
        return "asyncio"
    return next((library for library in ("torch", "numpy", "numba") if library in f"{file} {name}"), "python")


def wall(workload: Workload, protocol: str, workers: int) -> float:
    return timed(workload, protocol, workers)[0]


def timed(workload: Workload, protocol: str, workers: int) -> tuple[float, lib.Run]:
    """Seconds of a whole `lib.train`, evaluation and trace included, and its run."""
    start = time.perf_counter()
    run = lib.train(workload, protocol, lib.VirtualCluster(workers=workers, slowdown=0.6), save=False)
    return time.perf_counter() - start, run


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
            table.push(batch.ids[name], result.rows[name], index, distinct=True)
    return time.perf_counter() - start
