"""OAC's two setups: what is trained, and a machine on which each stage of a batch lasts as long as the paper's sizes say.

A graph of ten thousand entities stands for Freebase86m's 86 million. A batch touches the same share of them as in the paper,
and so many triples to an entity give as many batches to an epoch. All speeds are smaller by as much as a batch's rows are, so
that a batch is read, sent, computed and written in the seconds that the paper's would take.

How fast the machine is the paper does not say; its seconds do. Setup 1's are met in two ways, by a slow host and by a slow
device (`HOST`, `DEVICE`), and what either predicts for setup 2 was not fitted. Click models run on the same machines, beyond the
paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib import Adagrad, Link, Rule, VirtualCluster, Work, Workload, protocols, workloads
from notebooks import clusters, setting, study

ENTITIES = 10_000

DEGREE = 4
"""Triples to an entity: Freebase86m has 338 million to 86."""

DIM = 50
"""Of an entity's vector, in both setups (Fig. 2)."""

NEGATIVES = 1000
"""Of a batch of the paper's size, an estimate: Marius's usual number."""

SYNC, PIPELINED = 0.205, 0.107
"""Seconds of a batch of setup 1, one after another and with OAC: 12,500 and 6,500 over 60,945 batches (Fig. 2a)."""


class Machine(NamedTuple):
    """What decides how long the stages of a batch last."""

    memory: float
    """Bytes a second of the host's memory, of which all batches that are read and written have a share."""
    pcie: float
    """Bytes a second each way."""
    device: float = 1.0
    """Times the operations a second that are estimated of a V100."""
    width: int = DIM
    """Numbers of a row that travel."""


HOST = Machine(memory=14.95e9, pcie=8.74e9)
"""The host is the longest stage. Reading and writing last 107 ms, and the way there and back what the estimated step leaves of
the other 98."""
DEVICE = Machine(memory=51.1e9, pcie=12e9, device=0.0453)
"""The device is. A step lasts 107 ms, and the host what PCIe leaves of the other 98."""
ESTIMATED = Machine(memory=100e9, pcie=12e9, width=2 * DIM)
"""Of data sheets, with Adagrad's state on its way with each value. Its 133 ms of PCIe and a stage of 107 are more than 205
together, so it is not the paper's machine."""
MACHINES: Mapping[str, Machine] = {"host": HOST, "device": DEVICE, "estimated": ESTIMATED}


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
        """So many epochs of a small graph; at full the paper's ten of a graph of Freebase86m's shape, or of a folder's."""
        if setting.is_full():
            return setting.workload(self.workload_name, "oac", self.name, world=world)
        size = {"entities": ENTITIES, "triples": DEGREE * ENTITIES, "dim": DIM}
        size |= {"batch_size": self.batch, "negatives": self.negatives, "samples": round(epochs * DEGREE * ENTITIES)}
        return workloads.get(self.workload_name, **size, world=world, **options)

    def cluster(self, task: Workload, machine: Machine = HOST) -> VirtualCluster:
        """The paper's machine, smaller."""
        paper = clusters.oac(self.cores)
        less = _bytes(task) / (4 * machine.width * self.rows)
        device = clusters.scale(paper.worker.device, machine.device * task.work().flops / self._work().flops, "flops")
        device = replace(clusters.scale(device, less, "memory"), pcie=less * machine.pcie)
        link = Link(ends=("server0", "worker0"), bandwidth=device.pcie, latency=10e-6)
        server = replace(paper.server, memory=less * machine.memory, core_memory=less * machine.memory)
        return replace(paper, worker=replace(paper.worker, device=device), server=server, links=(link,))

    def seconds(self, machine: Machine = HOST) -> dict[str, float]:
        """How long each stage of a batch of the paper's size takes, and alone."""
        device = clusters.scale(clusters.V100, machine.device, "flops")
        moved = 4 * machine.width * self.rows
        host = 2 * moved / machine.memory  # out of the table and into the batch, or back
        step = device.seconds(self._work()) + device.seconds(Work(bytes=3 * moved))
        way = moved / machine.pcie
        return {"read": host, "transfer": way, "compute": step, "back": way, "write": host}

    def rule(self, mode: str, in_flight: int | None = None) -> Rule:
        """sequential, pipelined or oac; with as many readers, writers and places in queues as give each core a batch, or with
        so many batches in flight."""
        if mode == "sequential":
            return protocols.get(mode)
        each = dict.fromkeys(("readers", "writers", "queue"), self.cores // 4)
        return protocols.get(mode, **each, in_flight=in_flight or self.cores)

    def job(self, mode: str, seed: int, *, epochs: float, machine: Machine = HOST, **options) -> dict:
        task = self.workload(epochs, seed, **options)
        return study.job(task, self.rule(mode), self.cluster(task, machine), seed)

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


def paces(seconds: Mapping[str, float]) -> dict[str, float]:
    """Of a batch's stages: its milliseconds one after another; those of the longest stage, where reading and writing share the
    host; and how much faster a pipeline is."""
    alone = sum(seconds.values())
    longest = max(seconds["read"] + seconds["write"], seconds["transfer"], seconds["compute"])
    return {"one after another": 1e3 * alone, "pipelined": 1e3 * longest, "times as fast": alone / longest}


def predicted_speedups() -> pd.DataFrame:
    """Setup 2 by the machines that meet setup 1's seconds. A quarter of the cores may have all of the memory's bandwidth or a
    quarter of it; of the longest stage's time in setup 1, a share may be GraphSage's own (its sampling on the host, its
    gathering on the device), which setup 2 does not have."""
    rows = []
    for name in ("host", "device"):
        for share in (0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0):
            for cores in (1.0, 0.25):
                seconds = SETUPS["setup 2"].seconds(_without(name, share, cores))
                rows.append({"longest": name, "GraphSage's share": share, "memory": cores} | paces(seconds))
    return pd.DataFrame(rows)


def over_three() -> pd.DataFrame:
    """How many milliseconds reading and writing together may last for setup 2 to be over 3x as fast, by those of a step,
    with the way there and back of `HOST`: (host + ways + step) / max(host, step) > 3."""
    ways = 1e3 * 2 * SETUPS["setup 2"].seconds(HOST)["transfer"]
    rows = [
        {"step, ms": step, "copies, from": 2 * step - ways, "to": (step + ways) / 2} for step in (30, 35, 40, 43.8, 45)
    ]
    return pd.DataFrame(rows).set_index("step, ms")


def _without(name: str, share: float, cores: float) -> Machine:
    """The machine without a share of its longest stage, at most as fast as the data sheets."""
    machine = MACHINES[name]
    if name == "host":
        machine = machine._replace(memory=min(machine.memory / max(1 - share, 1e-9), ESTIMATED.memory))
    else:
        machine = machine._replace(device=min(machine.device / max(1 - share, 1e-9), 1.0))
    return machine._replace(memory=cores * machine.memory)


def _bytes(task: Workload) -> float:
    """Of a batch's rows with their state, on average over some."""
    widths = {name: 2 * spec.dim for name, spec in task.tables().items()}
    batches = (task.batch(0, index).ids for index in range(min(32, task.batches())))
    return 4 * float(np.mean([sum(widths[name] * ids.size for name, ids in batch.items()) for batch in batches]))


NETWORKS = ("deepfm", "dlrm", "ffnn")

CLICK_MODES = ("sequential", "pipelined", "oac", "frozen")
"""Frozen trains nothing: from there to the best is all that can be lost."""


def click_job(network: str, protocol: str, seed: int, samples: int, **options) -> dict:
    """One pass on a machine of setup 1's sizes by data sheets, and as many batches are in flight as it has cores."""
    setup, rates = SETUPS["setup 1"], dict.fromkeys(("dense_optimizer", "row_optimizer"), Adagrad(lr=0.03))
    size = {"samples": samples, "batch_size": 64, "days": 1, "drift": 0.0, **options}
    task = workloads.get("ctr-synthetic", network=network, **size, **rates, world=seed)
    rule = protocol if protocol == "frozen" else setup.rule(protocol)
    return study.job(task, rule, setup.cluster(task, ESTIMATED), seed)
