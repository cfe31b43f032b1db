"""Lockstep: how training workers keep in step, compared under one interface.

What stands here is imported with its first use: preparing data and most of the command line need no torch.
"""

import importlib
from typing import Any

_HOMES = {
    "Adagrad": "lib.store.optim",
    "Adam": "lib.store.optim",
    "Apply": "lib.protocols.server_rule",
    "Automatic": "lib.training.controller",
    "Background": "lib.protocols.mixing",
    "BadOption": "lib.errors",
    "Batch": "lib.tasks.batch",
    "Centre": "lib.protocols.mixing",
    "Choice": "lib.training.schedule",
    "Cluster": "lib.cluster.base",
    "Device": "lib.cluster.spec",
    "Drop": "lib.protocols.server_rule",
    "Failure": "lib.cluster.failures",
    "Gradients": "lib.protocols.mixing",
    "Job": "lib.training.train",
    "Link": "lib.cluster.spec",
    "LocalCluster": "lib.cluster.local",
    "Lognormal": "lib.cluster.slowdowns",
    "Loop": "lib.protocols.mixing",
    "Mean": "lib.protocols.mixing",
    "Mishaps": "lib.cluster.failures",
    "Mix": "lib.protocols.mixing",
    "Momentum": "lib.store.optim",
    "Neighbours": "lib.protocols.mixing",
    "Node": "lib.cluster.spec",
    "Pair": "lib.protocols.rule",
    "Peer": "lib.protocols.mixing",
    "Phase": "lib.training.schedule",
    "PipelineRule": "lib.protocols.pipeline_rule",
    "Push": "lib.protocols.server_rule",
    "RayCluster": "lib.cluster.ray.cluster",
    "ReplicaRule": "lib.protocols.replica_rule",
    "RowStore": "lib.store.spec",
    "Rule": "lib.protocols.rule",
    "Run": "lib.results.run",
    "SGD": "lib.store.optim",
    "Schedule": "lib.training.schedule",
    "ServerRule": "lib.protocols.server_rule",
    "Slowdown": "lib.cluster.slowdowns",
    "TableSpec": "lib.tasks.workload",
    "Uplink": "lib.cluster.spec",
    "VirtualCluster": "lib.cluster.virtual.cluster",
    "Work": "lib.cluster.spec",
    "Workload": "lib.tasks.workload",
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
