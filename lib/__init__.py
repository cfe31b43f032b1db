"""Lockstep: how training workers keep in step, compared under one interface."""

from lib import protocols, workloads
from lib.cluster import (
    Device,
    Failure,
    Link,
    LocalCluster,
    Lognormal,
    Mishaps,
    Node,
    RayCluster,
    Slowdown,
    VirtualCluster,
)
from lib.run import Run
from lib.train import train

__all__ = [
    "Device",
    "Failure",
    "Link",
    "LocalCluster",
    "Lognormal",
    "Mishaps",
    "Node",
    "RayCluster",
    "Run",
    "Slowdown",
    "VirtualCluster",
    "protocols",
    "train",
    "workloads",
]
