"""Real collectives on this machine: four processes average 20 million numbers, all together or in pairs, a collective for each
of a wide residual network's 142 tensors, as the released code does."""

import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import ClassVar

import numpy as np
import torch
from torch import distributed

from lib import Job, LocalCluster, RayCluster, Rule, Run, Work
from lib.options.checked import Count
from lib.protocols.all_reduce import AllReduce
from lib.protocols.dssync import DSSync
from notebooks.dssync.vector import MODELS, Numbers, in_proportion
from notebooks.toys import Toy

WORKERS = 4
RULES: dict[str, Rule] = {
    "BSP": AllReduce(buckets="tensor", overlapped=False),
    "DS-Sync": DSSync(buckets="tensor"),
}

MODEL = MODELS["CIFAR-10"]
"""Its tensors are kept in proportion."""


@dataclass(frozen=True, kw_only=True)
class Block(Toy):
    """Nothing to compute, and much to exchange."""

    name: ClassVar[str] = "block"

    size: Count

    def model(self, seed: int) -> Numbers:
        return Numbers(*in_proportion(MODEL, self.size))

    def work(self) -> Work:
        return Work(bytes=8.0 * self.size)

    def evaluate(
        self, model: Numbers, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
    ) -> dict[str, float]:
        return {"mean": float(sum(each.detach().mean() for each in model.parameters()))}


def train(protocol: str, seed: int, *, steps: int, processes: bool, size: int) -> Run:
    """A run; with `processes` each worker is a process, otherwise a thread, which starts faster."""
    cluster = (RayCluster if processes else LocalCluster)(workers=WORKERS)
    job = Job.of(Block(samples=steps * WORKERS, size=size), RULES[protocol], cluster, seed=seed, save=False)
    return job.run(lambda samples: None)


def seconds(run: Run) -> dict[str, float]:
    """The medians of a whole iteration, from the end of a worker's exchange to that of its next, and of the exchange alone, from
    when all of its group are there: BSP's step of SGD is part of its exchange, and DS-Sync's comes before. A worker's first two
    do not count, in which connections are made."""
    mixes = run.trace[run.trace["kind"] == "mix"].sort_values("end")
    late = mixes[mixes.groupby("node").cumcount() >= 2]
    spans = {"iteration": late.groupby("node")["end"].diff().dropna(), "exchange": late["end"] - late["start"]}
    return {name: float(each.median()) for name, each in spans.items()}


def gloo_alone(size: int, rounds: int) -> dict[str, float]:
    """Seconds of gloo's own all-reduces of so many numbers, tensor after tensor, among all workers, and in pairs at the same
    time: the median."""
    with TemporaryDirectory() as folder, ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        parts = [pool.submit(_all_reduces, rank, size, rounds, f"{folder}/meet") for rank in range(WORKERS)]
        found = [part.result() for part in parts]
    return {mode: float(np.median([each[mode] for each in found])) for mode in RULES}


def _all_reduces(rank: int, size: int, rounds: int, meeting: str) -> dict[str, float]:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=WORKERS)
    pairs = [distributed.new_group([first, first + 1]) for first in range(0, WORKERS, 2)]
    groups, found = {"BSP": None, "DS-Sync": pairs[rank // 2]}, {}
    tensors = [torch.zeros(each) for each in in_proportion(MODEL, size)]
    for mode, group in groups.items():
        seconds = []
        for _ in range(rounds + 1):
            distributed.barrier()
            start = time.perf_counter()
            for tensor in tensors:
                distributed.all_reduce(tensor, group=group)
            seconds.append(time.perf_counter() - start)
        found[mode] = float(np.median(seconds[1:]))
    distributed.destroy_process_group()
    return found
