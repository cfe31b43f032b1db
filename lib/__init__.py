"""Lockstep: how training workers keep in step, compared under one interface.

What stands here is imported with its first use: preparing data and most of the command line need no torch.
"""

import importlib
from typing import Any

_HOMES = {
    name: home
    for home, names in {
        "lib.cluster.base": "Cluster",
        "lib.cluster.failures": "Failure Mishaps",
        "lib.cluster.local": "LocalCluster",
        "lib.cluster.ray.cluster": "RayCluster",
        "lib.cluster.slowdowns": "Lognormal Slowdown",
        "lib.cluster.spec": "Device Link Node Uplink Work",
        "lib.cluster.virtual": "VirtualCluster",
        "lib.errors": "BadOption",
        "lib.protocols.mixing": "Background Centre Gradients Loop Mean Mix Neighbours Peer",
        "lib.protocols.pipeline_rule": "PipelineRule",
        "lib.protocols.replica_rule": "ReplicaRule",
        "lib.protocols.rule": "Pair Rule",
        "lib.protocols.server_rule": "Apply Drop Push ServerRule",
        "lib.results.run": "Run",
        "lib.store.optim": "Adagrad Adam Momentum SGD",
        "lib.store.spec": "RowStore",
        "lib.tasks.flat_model": "Batch",
        "lib.tasks.workload": "TableSpec Workload",
        "lib.training.controller": "Automatic",
        "lib.training.schedule": "Choice Phase Schedule",
        "lib.training.sweep": "sweep",
        "lib.training.train": "Job Options train",
        "notebooks.advisor.advice": "advise",
        "notebooks.advisor.compare": "compare",
        "notebooks.advisor.explain": "explain",
        "notebooks.conformance.sync_check": "check_equals_sync",
    }.items()
    for name in names.split()
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
    return sorted(__all__)
