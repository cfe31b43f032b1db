"""Training steps: what a computation costs a core or a device."""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lib import Workload, streams, workloads
from lib.tasks.flat_model import FlatModel
from notebooks.calibration.measurement import Measurement, fit_line, median_seconds

MODELS = ("deepfm", "dlrm")


def steps(device: str, quick: bool) -> Iterator[Measurement]:
    """Forward, loss and backward on batches whose rows have been pulled; a line through their times by operations."""
    prefix, owner = ("core_", "one core") if device == "cpu" else ("cuda_", "the device")
    sizes = (32, 128, 512) if quick else (32, 128, 512, 2048)
    rates, fixed = [], []
    for model in MODELS:
        work, seconds = [], []
        for size in sizes:
            workload = workloads.get("ctr-synthetic", model=model, batch_size=size)
            took = median_seconds(one_step(workload, device), 0.1 if quick else 0.6)
            work.append(workload.work().flops)
            seconds.append(took)
            yield Measurement(f"{prefix}{model}_batch_{size}_s", took, f"a step of {model} on {size} samples")
        a, b, residual = fit_line(work, seconds)
        rates.append(1 / b)
        fixed.append(a)
        yield Measurement(f"{prefix}{model}_residual_share", residual, "largest relative error of a + b * operations")
    rate, least = statistics.median(rates), statistics.median(fixed)
    yield Measurement(f"{prefix}flops_per_s", rate, f"operations per second of {owner}, 1 / b, median of the models")
    yield Measurement(f"{prefix}step_fixed_s", least, "fixed cost of a step, a, median of the models")


def one_step(workload: Workload, device: str) -> Callable[[], Any]:
    model = FlatModel(workload.model(0), device, workload.bags())
    batch = workload.batch(0, 0)
    rng = streams.stream(0, "calibrate")
    rows = {
        name: rng.standard_normal((len(batch.ids[name]), spec.dim), np.float32)
        for name, spec in workload.tables().items()
    }
    return lambda: model.step(batch, rows)  # its result is on the host, so a device has finished
