"""Lockstep: how training workers keep in step, compared under one interface."""

from lib import protocols, workloads
from lib.cluster import Device, Link, LocalCluster, Lognormal, Node, RayCluster, Slowdown, VirtualCluster
from lib.run import Run
from lib.train import train

__all__ = [
    "Device",
    "Link",
    "LocalCluster",
    "Lognormal",
    "Node",
    "RayCluster",
    "Run",
    "Slowdown",
    "VirtualCluster",
    "protocols",
    "train",
    "workloads",
]
