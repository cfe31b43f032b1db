"""Where a protocol runs: every cluster by its name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lib.registry import Registry

if TYPE_CHECKING:
    from lib.cluster.base import Cluster

ALL = Registry(
    "cluster",
    {
        "virtual": "lib.cluster.virtual.cluster:VirtualCluster",
        "local": "lib.cluster.local:LocalCluster",
        "ray": "lib.cluster.ray.cluster:RayCluster",
    },
)

_HOMES = {
    "Cluster": "lib.cluster.base",
    "Device": "lib.cluster.spec",
    "Failure": "lib.cluster.faults.failures",
    "Link": "lib.cluster.spec",
    "LocalCluster": "lib.cluster.local",
    "Lognormal": "lib.cluster.slowdowns",
    "Mishaps": "lib.cluster.faults.failures",
    "Node": "lib.cluster.spec",
    "RayCluster": "lib.cluster.ray.cluster",
    "Slowdown": "lib.cluster.slowdowns",
    "VirtualCluster": "lib.cluster.virtual.cluster",
}

__all__ = ["ALL", "get", *_HOMES]


def get(name: str, **options) -> Cluster:
    """The cluster of that name; an unknown name or option is an error that names the nearest valid ones."""
    return ALL.make(name, **options)


def __getattr__(name: str) -> Any:
    """A name of `_HOMES`, imported with its first use: the registry alone needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
