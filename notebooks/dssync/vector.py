"""Models of a given size and steps of a given length, for timing runs; and the sizes of the tensors of the paper's models.

The paper's code averages tensor after tensor, running statistics among them. A convolution and its batch normalisation are five
tensors: kernel, scale, shift, running mean and running variance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import Batch, Lognormal, Node, Rule, VirtualCluster, Work
from lib.options.checked import Count, NotNegative
from notebooks import study
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


def job(rule: Rule, cluster: VirtualCluster, seed: int, *, steps: int, **task) -> dict:
    """A timing run in which each worker makes so many steps of a `Vector`."""
    task = Vector(samples=steps * cluster.workers, **task)
    return study.job(task, rule, cluster, seed, gradients=False)


def wide_resnet(classes: int) -> list[int]:
    """WRN-26-10 for CIFAR: 142 tensors, 36.5 million numbers."""
    sizes, inputs = [*_conv(3, 16, 3)], 16
    for width in (160, 320, 640):
        for _ in range(4):
            sizes += [*_conv(inputs, width, 3), *_conv(width, width, 3)]
            sizes += _conv(inputs, width, 1) if inputs != width else ()
            inputs = width
    return [*sizes, *_linear(inputs, classes)]


def wide_resnet_50() -> list[int]:
    """WRN-50-2 for ImageNet: 267 tensors, 69 million numbers."""
    sizes, inputs = [*_conv(3, 64, 7)], 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            sizes += [*_conv(inputs, 2 * width, 1), *_conv(2 * width, 2 * width, 3), *_conv(2 * width, 4 * width, 1)]
            sizes += _conv(inputs, 4 * width, 1) if not block else ()
            inputs = 4 * width
    return [*sizes, *_linear(inputs, 1000)]


def bert_large() -> list[int]:
    """BERT-large for questions: 393 tensors, 336 million numbers."""
    wide, inner = 1024, 4096
    norm = [wide, wide]
    layer = 4 * [*_linear(wide, wide)] + 2 * norm + [*_linear(wide, inner), *_linear(inner, wide)]
    return [30_522 * wide, 512 * wide, 2 * wide, *norm, *(24 * layer), *_linear(wide, wide), *_linear(wide, 2)]


def deepfm() -> list[int]:
    """DeepFM for Criteo: 23 tensors; that there are ten million numbers is an estimate, the smallest of them all by Sec. 4.3.
    Rows of 16, three layers of 400 with batch normalisation, and the linear part."""
    inputs, layers = 26 * 16, []
    for _ in range(3):
        layers += [*_linear(inputs, 400), *(4 * [400])]
        inputs = 400
    layers += [*_linear(inputs, 1), 1]
    rows = (10_000_000 - sum(layers)) // 17
    return [16 * rows, rows, *layers]


def _conv(inputs: int, outputs: int, side: int) -> Iterator[int]:
    yield inputs * outputs * side * side
    yield from 4 * [outputs]


def _linear(inputs: int, outputs: int) -> Iterator[int]:
    yield inputs * outputs
    yield outputs


MODELS = {
    "CIFAR-10": wide_resnet(10),
    "CIFAR-100": wide_resnet(100),
    "ImageNet": wide_resnet_50(),
    "SQuAD": bert_large(),
    "Criteo": deepfm(),
}
"""The paper's data set -> its model's."""
