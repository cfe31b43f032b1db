"""A model that is only as large, and a step that is only as long, as is said: for runs that ask how long things take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import Batch, Lognormal, Node, Rule, VirtualCluster, Work
from lib.options.checked import Count, NotNegative
from notebooks.toys import Toy

PARAMETERS = 1_000_000
"""Of every such model: what its vector stands for, links that are as much slower say."""

ENDLESS = 1e30


class Numbers(torch.nn.Module):
    """Tensors of these sizes; the loss is the sum of their means, so that a gradient is one over its tensor's size everywhere."""

    def __init__(self, *sizes: int):
        super().__init__()
        self.tensors = torch.nn.ParameterList(torch.zeros(size) for size in sizes)

    def forward(self, batch: Batch, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([each.mean() for each in self.tensors]).sum()

    def loss(self, batch: Batch, scores: torch.Tensor) -> torch.Tensor:
        return scores


@dataclass(frozen=True, kw_only=True)
class Vector(Toy):
    """A batch is one sample, without content."""

    name: ClassVar[str] = "vector"

    seconds: NotNegative
    """Of a step, forward and backward, on a node as `cluster` makes them."""
    tensors: tuple[Count, ...] = (PARAMETERS,)
    """Sizes of the model's tensors, in proportion: there are `PARAMETERS` in all, and two at least in each."""

    def model(self, seed: int) -> torch.nn.Module:
        return Numbers(*in_proportion(self.tensors, PARAMETERS))

    def work(self) -> Work:
        return Work(flops=self.seconds)


def in_proportion(sizes: Sequence[int], numbers: int) -> list[int]:
    """Tensors of these sizes' proportion that have about so many numbers together, and two at least in each."""
    share = numbers / sum(sizes)
    return [max(2, round(share * size)) for size in sizes]


def cluster(workers: int, unit: float, *, collective: str = "ring", latency: float = 50e-6, sigma: float = 0.0):
    """Nodes whose links take one direction of the vector in `unit` seconds; nothing but steps and messages takes time."""
    node = Node(flops=1.0, core_memory=ENDLESS, bandwidth=4 * PARAMETERS / unit, latency=latency)
    slowdown = Lognormal(sigma=sigma)
    return VirtualCluster(workers=workers, worker=node, server=node, collective=collective, slowdown=slowdown)


def job(rule: Rule, there: VirtualCluster, seed: int, *, steps: int, **task) -> dict:
    """A timing run in which each worker makes so many steps of a `Vector`."""
    task = Vector(samples=steps * there.workers, **task)
    return {"workload": task, "protocol": rule, "cluster": there, "seed": seed, "gradients": False, "trace": False}
