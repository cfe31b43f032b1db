"""RayCluster with two workers and a server against two DistributedDataParallel processes, on one DLRM."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

import lib
from lib.data.batch import Batch
from lib.data.clicks import FIELD_SHIFT
from lib.models.ctr import TABLE
from lib.store.optim import Adagrad, Adam
from lib.workloads import Workload

STEPS, WARM_UP, PAIRS = 24, 4, 3


def measure() -> Iterator[dict[str, Any]]:
    """Both in turn, pair by pair; a step is one batch on each worker."""
    workload = dlrm()
    for protocol in ("sync", "async"):
        pairs = [(peer(workload), ours(workload, protocol)) for _ in range(PAIRS)]
        ratios = sorted(mine / other for other, mine in pairs)
        yield {
            "what": f"DLRM on ray, 2 workers and a server, {protocol}",
            "DDP samples/s": round(statistics.median(other for other, _ in pairs)),
            "ours samples/s": round(statistics.median(mine for _, mine in pairs)),
            "ratio": round(statistics.median(ratios), 3),
            "least": round(ratios[0], 3),
            "greatest": round(ratios[-1], 3),
        }


def dlrm() -> Workload:
    """26 tables x 16, MLP 512-256-1, batch 4096."""
    return lib.workloads.get(
        "ctr-synthetic",
        model="dlrm",
        fields=26,
        dim=16,
        hidden=(512, 256),
        dense_features=13,
        vocabulary=10_000,
        batch_size=4096,
        samples=2 * STEPS * 4096,
        evaluation_samples=1_000,
        dense_optimizer=Adam(lr=0.001),
        row_optimizer=Adagrad(lr=0.01),
    )


def ours(workload: Workload, protocol: str) -> float:
    """Samples per second once every process is warm: the rate over the steps after the first few."""
    run = lib.train(workload, protocol, lib.RayCluster(workers=2), save=False)
    ends = run.trace[run.trace["kind"] == "compute"]["end"].sort_values().to_numpy()
    return (len(ends) - 2 * WARM_UP) * workload.batch_size / (ends[-1] - ends[2 * WARM_UP - 1])


def peer(workload: Workload) -> float:
    """Samples per second of DistributedDataParallel over gloo, rows as a replicated dense parameter."""
    context = processes.get_context("spawn")
    rates = context.SimpleQueue()
    workers = processes.spawn(_ddp, args=(workload, _port(), rates), nprocs=2, join=False)
    while not workers.join():
        pass
    return rates.get()


class Whole(torch.nn.Module):
    """The model with its embedding tables as one parameter."""

    def __init__(self, workload: Workload):
        super().__init__()
        self.model = workload.model(0)
        self.rows = torch.nn.Parameter(torch.zeros(workload.fields * workload.vocabulary, workload.tables()[TABLE].dim))

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.model.loss(batch, self.model(batch, {TABLE: self.rows}))


def _ddp(rank: int, workload: Workload, port: int, rates) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    whole = DistributedDataParallel(Whole(workload))
    dense = torch.optim.Adam(whole.module.model.parameters(), lr=0.001)
    rows = torch.optim.Adagrad([whole.module.rows], lr=0.01)
    for step in range(STEPS):
        if step == WARM_UP:
            distributed.barrier()
            start = time.perf_counter()
        batch = workload.batch(0, 2 * step + rank).to(torch.device("cpu"))
        place = torch.from_numpy(_places(batch, workload.vocabulary))
        loss = whole(replace(batch, where={TABLE: place[batch.where[TABLE]]}))
        dense.zero_grad()
        rows.zero_grad()
        loss.backward()
        dense.step()
        rows.step()
    distributed.barrier()
    if rank == 0:
        rates.put(2 * (STEPS - WARM_UP) * workload.batch_size / (time.perf_counter() - start))
    distributed.destroy_process_group()


def _places(batch: Batch, vocabulary: int) -> np.ndarray:
    """Each unique id's row in the whole table: an ordinary embedding indexes an array, it does not hash."""
    ids = batch.ids[TABLE]
    return (ids >> FIELD_SHIFT) * vocabulary + (ids & ((1 << FIELD_SHIFT) - 1))


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
