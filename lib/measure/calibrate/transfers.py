"""What it costs to move bytes, rows and calls."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from lib import streams, workloads
from lib.errors import BadOption
from lib.measure.calibrate.measurement import Measurement, fit_line, median_seconds
from lib.measure.calibrate.training_steps import threads_of
from lib.store.dense import DenseStore
from lib.store.table.table import Table

MEGABYTE = 1_000_000


def memory(cores: int, quick: bool) -> Iterator[Measurement]:
    """Copies far larger than any cache; each byte is read once and written once."""
    size = (64 if quick else 256) * MEGABYTE
    for threads in threads_of(cores):
        took = _copies(threads, size, 0.1 if quick else 0.5)
        what = f"bytes read and written by {threads} copying threads together"
        yield Measurement(f"memory_{threads}_threads_bytes_per_s", 2 * size * threads / took, what)
    small = np.ones(64_000, np.uint8), np.ones(64_000, np.uint8)
    took = median_seconds(lambda: np.copyto(*small), 0.05)
    yield Measurement("copy_64kB_s", took, "a copy that stays in the cache")


def _copies(threads: int, size: int, budget: float) -> float:
    pairs = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return median_seconds(lambda: list(pool.map(lambda pair: np.copyto(*pair), pairs)), budget)


def store(quick: bool) -> Iterator[Measurement]:
    """Rows of DeepFM's width with Adam's state, picked at random from a table that is larger than the caches."""
    workload = workloads.get("ctr-synthetic")
    rows, dim = (100_000 if quick else 1_000_000), workload.tables()["feature"].dim
    table = Table(dim, workload.row_optimizer, seed=0, capacity=rows)
    table.pull(np.arange(rows))
    rng = streams.stream(0, "calibrate", "rows")
    counts, pulls, pushes = (10, 1_000, 20_000), [], []
    for count in counts:
        # Other ids each time: the same few rows would soon lie in the cache.
        batches = itertools.cycle([rng.choice(rows, count, replace=False) for _ in range(max(4, 20_000 // count))])
        grads = rng.standard_normal((count, dim), np.float32)
        pulls.append(median_seconds(lambda: table.pull(next(batches)), 0.05 if quick else 0.3))  # noqa: B023
        pushes.append(median_seconds(lambda: table.push(next(batches), grads, 1), 0.05 if quick else 0.3))  # noqa: B023
    for name, seconds in (("pull", pulls), ("push", pushes)):
        a, b, residual = fit_line([float(count) for count in counts], seconds)
        yield Measurement(f"store_{name}_fixed_s", a, f"a {name} of no rows")
        yield Measurement(f"store_{name}_ns_per_row", 1e9 * b, f"each row of {dim} numbers more")
        yield Measurement(f"store_{name}_residual_share", residual, "largest relative error of that line")
    size = 1_000_000
    dense = DenseStore(torch.zeros(size), workload.dense_optimizer)
    grad = torch.ones(size)
    took = median_seconds(lambda: dense.apply(grad), 0.05 if quick else 0.3)
    yield Measurement("dense_apply_ns_per_parameter", 1e9 * took / size, "Adam on a dense vector of a million")
    took = median_seconds(dense.pull, 0.05 if quick else 0.3)
    yield Measurement("dense_pull_ns_per_parameter", 1e9 * took / size, "a copy of that vector")


def loopback(quick: bool) -> Iterator[Measurement]:
    """TCP on 127.0.0.1 between two threads."""
    size = (8 if quick else 64) * MEGABYTE
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        for end in (here, there):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        echo = threading.Thread(target=_echo, args=(there,), daemon=True)
        echo.start()
        message, answer = memoryview(bytes(size)), bytearray(1)

        def ask(count: int) -> None:
            here.sendall(count.to_bytes(8, "little"))
            here.sendall(message[:count])
            here.recv_into(answer)

        latency = median_seconds(lambda: ask(0), 0.1 if quick else 0.5) / 2
        took = median_seconds(lambda: ask(size), 0.2 if quick else 1.0)
        here.shutdown(socket.SHUT_WR)
        echo.join()
    yield Measurement("loopback_latency_s", latency, "half the round trip of an empty message")
    yield Measurement("loopback_bytes_per_s", size / max(took - 2 * latency, 1e-9), "one connection, one way")


def _echo(end: socket.socket) -> None:
    """Answers each message, its length first, with one byte."""
    buffer = memoryview(bytearray(MEGABYTE))
    while head := end.recv(8, socket.MSG_WAITALL):
        left = int.from_bytes(head, "little")
        while left:
            left -= end.recv_into(buffer, min(left, MEGABYTE))
        end.sendall(b"!")


def loop(quick: bool) -> Iterator[Measurement]:
    """What a local cluster pays for its event loop."""
    count = 500 if quick else 3_000

    async def nothing() -> None: ...

    async def tasks() -> float:
        start = time.perf_counter()
        for _ in range(count):
            await asyncio.create_task(nothing())
        return (time.perf_counter() - start) / count

    async def hops() -> float:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            await loop.run_in_executor(pool, int)
            start = time.perf_counter()
            for _ in range(count):
                await loop.run_in_executor(pool, int)
            return (time.perf_counter() - start) / count

    with ThreadPoolExecutor(1) as pool:  # in Jupyter this thread runs a loop already
        yield Measurement(
            "loop_task_s", pool.submit(asyncio.run, tasks()).result(), "a task that does nothing, awaited"
        )
        yield Measurement("executor_hop_s", pool.submit(asyncio.run, hops()).result(), "a call to a thread and back")


def ray(quick: bool) -> Iterator[Measurement]:
    """An actor's call; uses the Ray that is running, else starts one and stops it."""
    if not importlib.util.find_spec("ray"):
        raise BadOption("calibrate: Ray is not installed; pip install ray, or leave ray=False")
    import ray

    own = not ray.is_initialized()
    if own:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 * 2**20)
    try:
        actor = ray.remote(num_cpus=0.1)(_Actor).remote()
        array = np.zeros(10 * MEGABYTE, np.uint8)
        short = median_seconds(lambda: ray.get(actor.take.remote(None)), 0.3 if quick else 1.0)
        long = median_seconds(lambda: ray.get(actor.take.remote(array)), 0.3 if quick else 1.0)
        ray.kill(actor)
    finally:
        if own:
            ray.shutdown()
    yield Measurement("ray_round_trip_s", short, "a call of an actor without arguments")
    yield Measurement("ray_bytes_per_s", array.nbytes / max(long - short, 1e-9), "an array of 10 MB as an argument")


class _Actor:
    def take(self, array: np.ndarray | None) -> int:
        return 0 if array is None else int(array[0])


def pcie(quick: bool) -> Iterator[Measurement]:
    """Copies between pinned host memory and the device, and within the device."""
    size = (16 if quick else 256) * MEGABYTE
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(device)

    def seconds(to: torch.Tensor, source: torch.Tensor) -> float:
        def copy() -> None:
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        return median_seconds(copy, 0.1 if quick else 0.5)

    yield Measurement("cuda_to_device_bytes_per_s", size / seconds(device, host), "from pinned memory")
    yield Measurement("cuda_to_host_bytes_per_s", size / seconds(host, device), "to pinned memory")
    yield Measurement(
        "cuda_memory_bytes_per_s", 2 * size / seconds(other, device), "bytes read and written on the device"
    )
    yield Measurement(
        "cuda_capacity_bytes", float(torch.cuda.get_device_properties(0).total_memory), "memory of the device"
    )
