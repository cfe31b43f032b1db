"""What it takes to repeat a result: versions, commit, hardware."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

from joblib import cpu_count

from lib import paths

PACKAGES = ("torch", "numpy", "numba", "pandas", "pyarrow", "ray")


@cache
def machine() -> dict[str, Any]:
    """This machine and the software on it, as they were when this process first asked: its code is loaded once, too."""
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "commit": commit(),
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
    git, new = ["git", "-C", str(paths.root())], ["ls-files", "--others", "--exclude-standard"]
    try:
        head, *changed = (
            subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout.strip()
            for command in (
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "-uno"],
                [*new, "*.py", "*.ipynb", "*.yaml"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if any(changed) else "")
