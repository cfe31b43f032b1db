"""What this machine has, and what it lacks for some part of Lockstep."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import time
from collections.abc import Iterator

import torch
from joblib import cpu_count

from lib import paths
from lib.errors import LockstepError
from lib.results.provenance import PACKAGES, version
from lib.training.train import Job

REFERENCE = 0.67
"""Seconds of `_fixed_work` on the machine whose minutes README.md and the Makefile tell."""


def examine() -> Iterator[tuple[str, str]]:
    """(what, how it is) in the order in which a person asks."""
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "cores", str(cpu_count())
    yield "memory", _memory()
    yield "speed", _speed()
    yield "gpu", _gpu()
    for package in (*PACKAGES, "jupyterlab", "papermill", "nbconvert"):
        yield package, version(package) or "not installed"
    yield "ray cluster", "can start here" if importlib.util.find_spec("ray") else "needs: pip install ray"
    yield "kernel python3", _kernel()
    yield "reports", _reports()


def _memory() -> str:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        free = os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{pages * size / 2**30:.1f} GiB, {free * size / 2**30:.1f} GiB free"


def _speed() -> str:
    took = min(_fixed_work() for _ in range(3))
    return f"{REFERENCE / took:.2f} of the reference machine's; what it does in 10 minutes takes {10 * took / REFERENCE:.0f} here"


def _fixed_work() -> float:
    """The seconds of a run on one core with 400 gradients of torch, and of one with 2,000 batches and none."""
    start = time.perf_counter()
    for options in ({"samples": 12_800}, {"samples": 64_000, "gradients": False}):
        job = Job.of("ctr-synthetic", "gba", "virtual", workers=4, batch_size=32, save=False, **options)
        job.run(lambda samples: None)
    return time.perf_counter() - start


def _gpu() -> str:
    if not torch.cuda.is_available():
        return 'none that torch sees; device="cpu" everywhere'
    names = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return ", ".join(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in names)


def _kernel() -> str:
    if not importlib.util.find_spec("jupyter_client"):
        return "Jupyter is not installed; training works, notebooks do not"
    from jupyter_client.kernelspec import KernelSpecManager

    found = KernelSpecManager().find_kernel_specs().get("python3")
    return found or "missing: python -m ipykernel install --sys-prefix --name python3"


def _reports() -> str:
    try:
        folder = paths.check_writable(paths.reports())
    except LockstepError as error:
        return str(error)
    return f"{folder}, {shutil.disk_usage(folder).free / 2**30:.0f} GiB free"
