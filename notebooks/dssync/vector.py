"""A model that is only as large, and a step that is only as long, as is said: for runs that ask how long things take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from lib.cluster.slowdowns import Lognormal
from lib.cluster.spec import Node, Work
from lib.cluster.virtual.cluster import VirtualCluster
from lib.data.batch import Batch
from lib.options.checked import Count, NotNegative
from lib.protocols.rule import Rule
from lib.store.optim import SGD, Optimizer
from lib.workloads.base import Workload

PARAMETERS = 1_000_000
"""Of every such model: what its vector stands for, links that are as much slower say."""

ENDLESS = 1e30


class _Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(PARAMETERS))


@dataclass(frozen=True, kw_only=True)
class Vector(Workload):
    """A batch is one sample, without content."""

    name: ClassVar[str] = "vector"

    samples: Count
    batch_size: Count = 1
    dense_optimizer: Optimizer = field(default=SGD(lr=0.1))
    row_optimizer: Optimizer = field(default=SGD(lr=0.1))
    seconds: NotNegative
    """Of a step, forward and backward, on a node as `cluster` makes them."""

    def model(self, seed: int) -> torch.nn.Module:
        return _Model()

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        return Batch.of(index=index, raw={}, size=size, features={})

    def work(self) -> Work:
        return Work(flops=self.seconds)

    def evaluate(
        self, model: torch.nn.Module, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
    ) -> dict[str, float]:
        return {}


def cluster(workers: int, unit: float, *, collective: str = "ring", latency: float = 50e-6, sigma: float = 0.0):
    """Nodes whose links take one direction of the vector in `unit` seconds; nothing but steps and messages takes time."""
    node = Node(flops=1.0, core_memory=ENDLESS, bandwidth=4 * PARAMETERS / unit, latency=latency)
    slowdown = Lognormal(sigma=sigma)
    return VirtualCluster(workers=workers, worker=node, server=node, collective=collective, slowdown=slowdown)


def job(rule: Rule, there: VirtualCluster, seed: int, *, seconds: float, steps: int) -> dict[str, Any]:
    """A timing run in which each worker makes so many steps of so many seconds."""
    task = Vector(samples=steps * there.workers, seconds=seconds)
    return {"workload": task, "protocol": rule, "cluster": there, "seed": seed, "gradients": False, "trace": False}
