"""Persia among real processes of this machine: what reading ahead hides of a slow network, and a store that is killed."""

import time
import uuid
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from lib import Adagrad, Job, LocalCluster, Mishaps, RayCluster, RowStore, Run, Workload, workloads
from lib.store import shared_memory
from lib.store.shared_memory import SharedTable
from notebooks.persia.tasks import MODES

WIDTH = 16
OPTIMIZER = Adagrad(lr=0.05, rowwise=True)


def task(steps: int, workers: int = 2) -> Workload:
    """Persia's network, narrow enough that a step takes some hundredths of a second."""
    workload = workloads.get("criteo-ffnn", batch_size=512, hidden=(512, 256, 128), evaluation_samples=100)
    return replace(workload, samples=512 * workers * steps)


def train(workload: Workload, protocol: str, seed: int, *, processes: bool, delay: float, workers: int = 2) -> Run:
    """A run in which every message is late by `delay` on average: embedding workers, buffers and servers in between. With
    `processes` workers and server are processes, otherwise threads, which start faster."""
    kind = RayCluster if processes else LocalCluster
    cluster = kind(workers=workers, servers=1, mishaps=Mishaps(late=1.0, delay=delay))
    return Job.of(workload, MODES[protocol], cluster, seed=seed, save=False).run(lambda samples: None)


def kill_and_restart(rows: int, seed: int) -> dict[str, float]:
    """Kill the process that holds so many rows in shared memory while it updates them, and start another.

    `back`: seconds from the kill until the next one has answered a look-up; `same`: whether all that it has is what so many
    updates leave as were finished, to the bit; `repaired`: rows of the one that was not, which were laid back.
    """
    name, context = f"persia-{uuid.uuid4().hex[:12]}", get_context("spawn")
    ours, theirs = context.Pipe()
    first, second = (
        context.Process(target=each, args=(theirs, name, rows), daemon=True) for each in (_updating, _again)
    )
    try:
        first.start()
        ours.recv()
        time.sleep(0.3 + 0.1 * (seed % 5))  # in the midst of an update, now here and now there
        begin = time.perf_counter()
        first.kill()
        second.start()
        ours.recv()
        back = time.perf_counter() - begin
        repaired, done, *found = ours.recv()
        second.join()
        expected = _after(rows, done)
        same = all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
        return {"back": back, "same": float(same), "updates": float(done), "repaired": float(repaired)}
    finally:
        shared_memory.remove(name)


def _updating(caller: Connection, name: str, rows: int) -> None:
    table, ids, gradients = _shared(name, rows), *_work(rows)
    table.pull(ids)
    stamp = 0
    while True:
        table.push(ids, gradients, stamp := stamp + 1, distinct=True)
        if stamp == 1:
            caller.send("at work")


def _again(caller: Connection, name: str, rows: int) -> None:
    table = _shared(name, rows)
    table.pull(np.arange(1024))
    caller.send("there")
    content = table.export()
    caller.send((table.repaired, int(content.stamps.max()), content.ids, content.values, content.state, content.stamps))


def _after(rows: int, updates: int) -> tuple[np.ndarray, ...]:
    """The content of a table after so many updates without a kill."""
    table, (ids, gradients) = RowStore().table("rows", WIDTH, OPTIMIZER, seed=0, scale=0.01), _work(rows)
    table.pull(ids)
    for stamp in range(1, updates + 1):
        table.push(ids, gradients, stamp, distinct=True)
    content = table.export()
    return content.ids, content.values, content.state, content.stamps


def _shared(name: str, rows: int) -> SharedTable:
    return SharedTable(WIDTH, OPTIMIZER, name=name, seed=0, scale=0.01, capacity=rows)


def _work(rows: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.arange(rows)
    return ids, np.random.default_rng(0).standard_normal((rows, WIDTH), np.float32)
