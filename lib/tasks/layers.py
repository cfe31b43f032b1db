"""Layers whose initial weights come from a given generator, never from torch's global random stream."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.streams import key


def generator(seed: int) -> torch.Generator:
    """The random generator of a model's initial parameters."""
    return torch.Generator().manual_seed(key(seed, "model") % 2**63)


class Linear(nn.Linear):
    """A linear layer initialised as torch's own: uniform within 1/sqrt(inputs). Without inputs it is a learned constant."""

    def __init__(self, inputs: int, outputs: int, stream: torch.Generator):
        super().__init__(inputs, outputs)
        bound = 1 / math.sqrt(max(inputs, 1))
        for values in (self.weight, self.bias):
            nn.init.uniform_(values, -bound, bound, generator=stream)

    def reset_parameters(self) -> None:
        """Nothing is drawn from torch's global random stream."""


class Conv(nn.Conv2d):
    """A square convolution without bias, initialised as He et al. (2015): normal, variance 2 over the inputs of one output."""

    reset_parameters = Linear.reset_parameters

    def __init__(self, inputs: int, outputs: int, size: int, stream: torch.Generator, *, stride: int = 1):
        super().__init__(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
        nn.init.normal_(self.weight, 0, math.sqrt(2 / (inputs * size**2)), generator=stream)


class BatchNorm(nn.Module):
    """Batch normalisation without running statistics, so that a training step depends only on its arguments.

    It normalises by the mean and variance of the batch; inside `use_fixed_moments`, by those of the batches passed there.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.sums: tuple[float, Tensor, Tensor] | None = None
        self.fixed: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.fixed:
            return F.batch_norm(inputs, *self.fixed, self.weight, self.bias)
        if self.sums:
            self.sums = tuple(a + b for a, b in zip(self.sums, _power_sums(inputs.detach()), strict=True))
        if inputs.numel() == len(self.weight):  # one value has no spread; torch refuses to normalise it
            shape = (-1, *(1,) * (inputs.ndim - 2))
            return 0 * inputs + self.bias.view(shape)
        return F.batch_norm(inputs, None, None, self.weight, self.bias, training=True)


@contextmanager
def use_fixed_moments(model: nn.Module, forward: Callable[[], object]) -> Iterator[None]:
    """A context in which each BatchNorm uses fixed moments: those of the training batches that `forward()` passes through the
    model.

    These are the moments at the parameters that are evaluated, not an average over earlier parameters.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    try:
        for norm in norms:
            norm.sums = (0.0, torch.zeros_like(norm.bias), torch.zeros_like(norm.bias))
        if norms:
            forward()
        for norm in norms:
            count, total, squares = norm.sums
            mean = total / count
            norm.fixed, norm.sums = (mean, (squares / count - mean**2).clamp(min=0)), None
        yield
    finally:
        for norm in norms:
            norm.sums = norm.fixed = None


def _power_sums(inputs: Tensor) -> tuple[float, Tensor, Tensor]:
    """The number of values of a channel, their sums, and the sums of their squares."""
    values = inputs.transpose(0, 1).flatten(1)
    return values.shape[1], values.sum(1), values.square().sum(1)


def mlp(
    inputs: int, hidden: Sequence[int], outputs: int, stream: torch.Generator, *, norm: bool = False
) -> nn.Sequential:
    """Linear layers with ReLU between them, and with `norm` batch normalisation before each ReLU; the last layer is linear."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [Linear(inputs, width, stream), *([BatchNorm(width)] if norm else []), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, Linear(inputs, outputs, stream))


def mlp_flops(inputs: int, hidden: Sequence[int], outputs: int = 1) -> float:
    """Floating-point operations of its forward pass for one sample."""
    return float(sum(2 * a * b for a, b in pairwise((inputs, *hidden, outputs))))
