"""Training steps: what a computation costs a core or a device."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from lib import streams, workloads
from lib.measure.calibrate.measurement import Measurement, fit_line, median_seconds
from lib.models.flat import FlatModel
from lib.workloads import Workload

MODELS = ("deepfm", "dlrm")


def steps(device: str, quick: bool) -> Iterator[Measurement]:
    """Training steps: forward, loss and backward on a batch whose rows have been pulled."""
    prefix = "" if device == "cpu" else "cuda_"
    sizes = (32, 128, 512) if quick else (32, 128, 512, 2048)
    rates, fixed = [], []
    for model in MODELS:
        work, seconds = [], []
        for size in sizes:
            workload = workloads.get("ctr-synthetic", model=model, batch_size=size)
            step = one_step(workload, device)
            took = median_seconds(step, 0.1 if quick else 0.6)
            work.append(workload.work().flops)
            seconds.append(took)
            yield Measurement(f"{prefix}{model}_batch_{size}_s", took, f"a step of {model} on {size} samples")
        a, b, residual = fit_line(work, seconds)
        rates.append(1 / b)
        fixed.append(a)
        yield Measurement(f"{prefix}{model}_step_fixed_s", a, "a in: step = a + b * operations")
        yield Measurement(f"{prefix}{model}_s_per_flop", b, "b in: step = a + b * operations")
        yield Measurement(f"{prefix}{model}_residual_share", residual, "largest relative error of that line")
    if device == "cpu":
        workload = workloads.get("ctr-synthetic", batch_size=128)
        index = iter(range(1, 1 << 60))
        prepare = median_seconds(lambda: workload.batch(0, next(index)), 0.05 if quick else 0.3)
        yield Measurement("batch_128_prepare_s", prepare, "the input of 128 samples; virtual clusters do not charge it")
    what = "operations per second of one core, beyond the fixed cost" if device == "cpu" else "of the device"
    yield Measurement(f"{prefix}{'core_' if device == 'cpu' else ''}flops_per_s", statistics.median(rates), what)
    yield Measurement(f"{prefix}step_fixed_s", statistics.median(fixed), "fixed cost of a step, median of the models")


def one_step(workload: Workload, device: str) -> Callable[[], Any]:
    model = FlatModel(workload.model(0), device)
    batch = workload.batch(0, 0)
    rng = streams.stream(0, "calibrate")
    rows = {
        name: rng.standard_normal((len(batch.ids[name]), spec.dim), np.float32)
        for name, spec in workload.tables().items()
    }
    return lambda: model.step(batch, rows)  # its result is on the host, so a device has finished


def parallel(cores: int, quick: bool) -> Iterator[Measurement]:
    """Steps in several threads at once: what remains of a core when Python's lock is shared."""
    workload = workloads.get("ctr-synthetic", batch_size=512)
    seconds = 0.3 if quick else 1.5
    alone = steps_per_second(workload, 1, seconds)
    for threads in threads_of(cores)[1:]:
        share = steps_per_second(workload, threads, seconds) / (threads * alone)
        yield Measurement(
            f"step_{threads}_threads_share", share, f"speed of each of {threads} threads against one alone"
        )


def steps_per_second(workload: Workload, threads: int, seconds: float) -> float:
    steps = [one_step(workload, "cpu") for _ in range(threads)]

    def work(step: Callable[[], Any]) -> int:
        torch.set_num_threads(1)  # a thread has its own number
        step()
        start.wait()
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            step()
            count += 1
        return count

    start = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, steps)) / seconds


def threads_of(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores."""
    return sorted({1, *(2**k for k in range(1, cores.bit_length()) if 2**k <= cores), cores})
