"""Lockstep: how training workers keep in step, compared under one interface.

What stands here is imported with its first use: preparing data and most of the command line need no torch.
"""

import importlib
from typing import Any

_HOMES = {
    "Automatic": "lib.training.controller",
    "Choice": "lib.training.schedule",
    "Device": "lib.cluster.spec",
    "Failure": "lib.cluster.faults.failures",
    "Link": "lib.cluster.spec",
    "LocalCluster": "lib.cluster.local",
    "Lognormal": "lib.cluster.slowdowns",
    "Mishaps": "lib.cluster.faults.failures",
    "Node": "lib.cluster.spec",
    "Phase": "lib.training.schedule",
    "RayCluster": "lib.cluster.ray.cluster",
    "RowStore": "lib.store.spec",
    "Run": "lib.results.run",
    "Schedule": "lib.training.schedule",
    "Slowdown": "lib.cluster.slowdowns",
    "Uplink": "lib.cluster.spec",
    "VirtualCluster": "lib.cluster.virtual.cluster",
    "advise": "notebooks.advisor.advice",
    "compare": "notebooks.advisor.compare",
    "sweep": "lib.training.sweep",
    "train": "lib.training.train",
}

__all__ = [*_HOMES, "protocols", "workloads"]


def __getattr__(name: str) -> Any:
    """A name of `_HOMES`, or one of the modules below."""
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name.startswith("_"):
        raise AttributeError(name)
    else:
        try:
            value = importlib.import_module(f"lib.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"lib.{name}":
                raise
            raise AttributeError(f"module 'lib' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
