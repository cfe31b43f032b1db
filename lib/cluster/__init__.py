"""Where a protocol runs: every cluster by its name."""

from __future__ import annotations

from dataclasses import fields

from lib.cluster.base import Cluster
from lib.cluster.faults.failures import Failure, Mishaps
from lib.cluster.local import LocalCluster
from lib.cluster.ray.cluster import RayCluster
from lib.cluster.slowdowns import Lognormal, Slowdown
from lib.cluster.spec import Device, Link, Node
from lib.cluster.virtual.cluster import VirtualCluster
from lib.errors import unknown, unknown_option

ALL: dict[str, type[Cluster]] = {cluster.name: cluster for cluster in (VirtualCluster, LocalCluster, RayCluster)}

__all__ = [
    "ALL",
    "Cluster",
    "Device",
    "Failure",
    "Link",
    "LocalCluster",
    "Lognormal",
    "Mishaps",
    "Node",
    "RayCluster",
    "Slowdown",
    "VirtualCluster",
    "get",
]


def get(name: str, **options) -> Cluster:
    """The cluster of that name; an unknown name or option is an error that names the nearest valid ones."""
    if name not in ALL:
        raise unknown("cluster", name, ALL)
    valid = [field.name for field in fields(ALL[name])]
    for option in options:
        if option not in valid:
            raise unknown_option(f"cluster {name!r}", option, valid)
    return ALL[name](**options)
