"""Lockstep: how training workers keep in step, compared under one interface."""

from lib import protocols, workloads
from lib.cluster import LocalCluster, Node, RayCluster, Slowdown, VirtualCluster
from lib.run import Run
from lib.train import train

__all__ = [
    "LocalCluster",
    "Node",
    "RayCluster",
    "Run",
    "Slowdown",
    "VirtualCluster",
    "protocols",
    "train",
    "workloads",
]
