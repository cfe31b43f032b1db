"""Layers whose first weights come from a generator of their own, never from torch's global stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from lib.streams import key


def generator(seed: int) -> torch.Generator:
    """The stream of a model's first parameters."""
    return torch.Generator().manual_seed(key(seed, "model") % 2**63)


def linear(inputs: int, outputs: int, stream: torch.Generator) -> nn.Linear:
    """A linear layer initialised as torch's own: uniform within 1/sqrt(inputs). Without inputs it is a learned constant."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    bound = 1 / math.sqrt(max(inputs, 1))
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=stream)
    return layer


def mlp(inputs: int, hidden: Sequence[int], outputs: int, stream: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLU between them; the last one is linear."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [linear(inputs, width, stream), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, linear(inputs, outputs, stream))
