"""Pipelines on this machine's own clock over a store in a file: how long disk access is, and what hiding it costs.

Beyond memory: a store that has room there is made to behave as one that has none. After every fourth batch all its pages are
taken out of memory, changed ones by way of the disk; so most of what a batch reads comes from the disk.
"""

import ctypes
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np
import torch

from lib import Job, LocalCluster, RowStore, Rule, Run, Workload, protocols, workloads
from notebooks.oac import replay

_PAGEOUT = 21
"""Linux's MADV_PAGEOUT, for which Python's mmap has no name."""

_FEW = {"in_flight": 6, "readers": 2, "writers": 2, "queue": 2}

RULES: dict[str, Rule] = {
    "sequential": protocols.get("sequential"),
    "pipelined": protocols.get("pipelined", **_FEW),
    "oac": protocols.get("oac", **_FEW),
}


def task(batches: int) -> Workload:
    """A graph of 40 MB of rows with their state, of which a batch moves 6."""
    size = {"batch_size": 4096, "negatives": 128, "dim": 128, "entities": 40_000, "triples": 80_000}
    return workloads.get("freebase86m-distmult", **size, samples=4096 * batches, evaluation_triples=100)


def train(
    workload: Workload, folder: Path, protocol: str, seed: int, *, beyond_memory: bool = False, device: str = "cpu"
) -> dict[str, object]:
    """A run over a new store in that folder, its paces, and for a batch MB from the disk and milliseconds of all cores, some of
    which take pages out."""
    store = RowStore(mapped=str(folder), journal=False)  # nothing goes on with its rows
    job = Job.of(workload, RULES[protocol], LocalCluster(device=device, threads=4), seed=seed, store=store, save=False)
    before, busy = _read_from_disk(), time.process_time()
    with repeatable(device), evicted(folder) if beyond_memory else nullcontext(lambda samples: None) as progress:
        run = job.run(progress)
    came, busy = (_read_from_disk() - before) / 1e6, 1e3 * (time.process_time() - busy)
    batches = run.summary["applied"]
    return {"run": run, "from disk": came / batches, "cpu": busy / batches, **paces(run)}


def paces(run: Run) -> dict[str, float]:
    """Batches a second and the means of stages in milliseconds, after the first fifth; what each fourth batch pays for all is
    in a mean."""
    spans = run.trace.assign(ms=1e3 * (run.trace["end"] - run.trace["start"]))
    ends = np.sort(spans.loc[spans["kind"] == "compute", "end"].to_numpy())
    ends = ends[len(ends) // 5 :]
    later = spans[spans["end"] > ends[0]].groupby("kind")["ms"].mean()
    stages = {kind: float(later.get(kind, 0.0)) for kind in ("read", "validate", "compute", "update", "write")}
    return {"pace": (len(ends) - 1) / (ends[-1] - ends[0]), **stages}


def equal(run: Run, task: Workload, device: str) -> bool:
    """Whether a pipeline left what sequential training leaves there, in the order in which the device computed them."""
    with repeatable(device):
        return replay.equal(run, task, device)


@contextmanager
def repeatable(device: str) -> Iterator[None]:
    """Has a device add in the same order each time, in all modes alike: only then can a serial run there leave the same bytes."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or device != "cpu", warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def can_evict() -> bool:
    """Whether this system can take pages out of memory on request."""
    return sys.platform == "linux"


def _read_from_disk() -> float:
    """Bytes that this process had the disk read; not known but on Linux."""
    if not can_evict():
        return math.nan
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return float(fields["read_bytes"])


@contextmanager
def evicted(folder: Path) -> Iterator[Callable[[int], None]]:
    """To be called after each batch: after every fourth, the pages of the folder's files that are mapped here leave memory."""
    due, over, batches = threading.Event(), threading.Event(), itertools.count(1)
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def work() -> None:
        while due.wait() and not over.is_set():
            due.clear()
            for path, start, size in list(_mapped(folder.resolve())):
                with suppress(FileNotFoundError), path.open("rb") as file:
                    os.fdatasync(file.fileno())  # a changed page stays until it is on the disk
                    advise(start, size, _PAGEOUT)

    def after_a_batch(samples: int) -> None:
        if next(batches) % 4 == 0:
            due.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield after_a_batch
    finally:
        over.set()
        due.set()
        thread.join()


def _mapped(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """Files of that folder that this process has mapped, where, and how much of them."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, *_, path = line.split(maxsplit=5)
        if folder in Path(path).parents:
            start, stop = (int(end, 16) for end in where.split("-"))
            yield Path(path), start, stop - start
