"""What this machine has, and what it lacks for some part of Lockstep."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator

import torch
from joblib import cpu_count

from lib import paths
from lib.errors import LockstepError
from lib.results.provenance import PACKAGES, version


def examine() -> Iterator[tuple[str, str]]:
    """(what, how it is) in the order in which a person asks."""
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "cores", str(cpu_count())
    yield "memory", _memory()
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
