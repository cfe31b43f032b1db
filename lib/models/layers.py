"""Layers whose first weights come from a generator of their own, never from torch's global stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.streams import key


def generator(seed: int) -> torch.Generator:
    """The stream of a model's first parameters."""
    return torch.Generator().manual_seed(key(seed, "model") % 2**63)


class Linear(nn.Module):
    """A linear layer initialised as torch's own: uniform within 1/sqrt(inputs). Without inputs it is a learned constant."""

    def __init__(self, inputs: int, outputs: int, stream: torch.Generator):
        super().__init__()
        bound = 1 / math.sqrt(max(inputs, 1))
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound, generator=stream))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=stream))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight, self.bias)


def mlp(inputs: int, hidden: Sequence[int], outputs: int, stream: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLU between them; the last one is linear."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [Linear(inputs, width, stream), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, Linear(inputs, outputs, stream))
