"""What it takes to repeat a result: versions, commit, hardware."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

from joblib import cpu_count

from lib import paths

CODE = (".py", ".ipynb", ".yaml")
PACKAGES = ("torch", "numpy", "numba", "pandas", "pyarrow", "ray")


def machine() -> dict[str, Any]:
    """This machine and the software on it."""
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "commit": commit(),  # asked for each run: a rule's file may have changed since the one before
        "hardware": {"machine": platform.machine(), "cores": cpu_count(), "gpu": _gpu()},
    }


def _gpu() -> str | None:
    if (version("torch") or "").endswith("+cpu"):  # known without a second's import
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


@cache
def version(package: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return installed(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the working tree, with a plus where it has changes or new code; None outside a checkout."""
    command = ["git", "-C", str(paths.root()), "status", "--porcelain=v2", "--branch", "--untracked-files=all"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    head = next(line.split()[2] for line in lines if line.startswith("# branch.oid"))
    changed = any(line[0] not in "#?" or (line[0] == "?" and line.endswith(CODE)) for line in lines)
    return None if head == "(initial)" else head + ("+" if changed else "")
