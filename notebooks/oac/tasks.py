"""OAC's two setups: what is trained, and a machine on which each stage of a batch lasts as long as the paper's sizes say.

A graph of ten thousand entities stands for Freebase86m's 86 million. A batch touches the same share of them as in the paper,
and so many triples to an entity give as many batches to an epoch. All speeds are smaller by as much as a batch's rows are, so
that a batch is read, sent, computed and written in the seconds that the paper's would take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lib import protocols, workloads
from lib.cluster.spec import Link, Work
from lib.cluster.virtual.cluster import VirtualCluster
from lib.protocols.rule import Rule
from lib.workloads import Workload
from notebooks import clusters

ENTITIES = 10_000

DEGREE = 4
"""Triples to an entity: Freebase86m has 338 million to 86."""

DIM = 50
"""Of an entity's vector, in both setups (Fig. 2)."""

WIDTH = 2 * DIM
"""Numbers of a row: Adagrad's state is part of a parameter's value, which is our choice; the paper does not name an optimiser."""

NEGATIVES = 1000
"""Of a batch of the paper's size, an estimate: Marius's usual number."""

MEMORY = 100e9 / 80
"""Bytes a second of the host's memory for each of its cores, an estimate. All of them read and write a batch together."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One of the paper's experiments, in its size and in ours."""

    name: str
    workload_name: str
    cores: int
    triples: int
    """Of a batch in the paper (Fig. 2)."""
    rows: int
    """That such a batch reads: 100 and 50 million parameters of 50 (Fig. 2)."""
    batch: int
    """Triples of a batch here."""
    negatives: int
    """Of a batch here: with its triples' ends, and their neighbours, the same share of all entities."""

    def workload(self, epochs: float, world: int, **options) -> Workload:
        size = {"entities": ENTITIES, "triples": DEGREE * ENTITIES, "dim": DIM}
        size |= {"batch_size": self.batch, "negatives": self.negatives, "samples": round(epochs * DEGREE * ENTITIES)}
        return workloads.get(self.workload_name, **size, world=world, **options)

    def cluster(self, task: Workload, memory: float = 1.0) -> VirtualCluster:
        """The paper's machine, smaller; with `memory` times the host's memory bandwidth."""
        here = clusters.oac(self.cores)
        device, less = here.worker.device, _bytes(task) / (4 * WIDTH * self.rows)
        host = memory * MEMORY * self.cores * less
        device = clusters.scaled(device, task.work().flops / self._work().flops, "flops")
        device = clusters.scaled(device, less, "memory", "pcie")
        link = Link(ends=("server0", "worker0"), bandwidth=device.pcie, latency=10e-6)
        server = replace(here.server, memory=host, core_memory=host)
        return replace(here, worker=replace(here.worker, device=device), server=server, links=(link,))

    def seconds(self, memory: float = 1.0) -> dict[str, float]:
        """How long each stage of a batch of the paper's size takes, and alone."""
        device, moved = clusters.oac(self.cores).worker.device, 4 * WIDTH * self.rows
        host = 2 * moved / (memory * MEMORY * self.cores)  # out of the table and into the batch, or back
        step = device.seconds(self._work()) + device.seconds(Work(bytes=3 * moved))
        way = moved / device.pcie
        return {"read": host, "transfer": way, "compute": step, "back": way, "write": host}

    def rule(self, mode: str, in_flight: int | None = None) -> Rule:
        """sequential, pipelined or oac; with as many readers, writers and places in queues as give each core a batch, or with
        so many batches in flight."""
        if mode == "sequential":
            return protocols.get(mode)
        each = dict.fromkeys(("readers", "writers", "queue"), self.cores // 4)
        return protocols.get(mode, **each, in_flight=in_flight or self.cores)

    def job(
        self, mode: str, seed: int, *, epochs: float, in_flight: int | None = None, memory: float = 1.0, **options
    ) -> dict[str, Any]:
        task = self.workload(epochs, seed, **options)
        made = {"workload": task, "protocol": self.rule(mode, in_flight), "cluster": self.cluster(task, memory)}
        return made | {"seed": seed, "trace": False}

    def _work(self) -> Work:
        """Of a step of the paper's size."""
        size = {"batch_size": self.triples, "negatives": NEGATIVES, "dim": DIM}
        return workloads.get(self.workload_name, **size).work()


SETUPS: Mapping[str, Setup] = {
    name: Setup(
        name=name, workload_name=graph, cores=cores, triples=triples, rows=rows, batch=batch, negatives=negatives
    )
    for name, graph, cores, triples, rows, batch, negatives in (
        ("setup 1", "freebase86m-graphsage", 80, 50_000, 2_000_000, 11, 7),
        ("setup 2", "freebase86m-distmult", 20, 500_000, 1_000_000, 45, 30),
    )
}


def _bytes(task: Workload) -> float:
    """Of a batch's rows with their state, on average over some."""
    widths = {name: 2 * spec.dim for name, spec in task.tables().items()}
    batches = (task.batch(0, index).ids for index in range(min(32, task.batches())))
    return 4 * float(np.mean([sum(widths[name] * ids.size for name, ids in batch.items()) for batch in batches]))
