"""What a modelled cluster is made of. Figures are a shared cluster's of ordinary machines; every one is an option."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lib.errors import BadOption


@dataclass(frozen=True, slots=True)
class Work:
    """What a piece of computation costs a node."""

    flops: float = 0.0
    """Floating-point operations."""
    bytes: float = 0.0
    """Bytes moved through the node's memory."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine, or a worker's share of one."""

    flops: float = 2e9
    """Operations per second of one core."""
    memory: float = 8e9
    """Memory bandwidth of one core, bytes per second."""
    cores: int = 1
    """Computations that run at the same time; others queue."""
    bandwidth: float = 1.25e9
    """Network interface, bytes per second, each way (10 Gbit/s)."""
    latency: float = 50e-6
    """Seconds from this node to any other, after the last byte has left."""

    def __post_init__(self):
        for name in ("flops", "memory", "cores", "bandwidth"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise BadOption(f"node: {name} must be positive and finite, not {getattr(self, name)}")
        if not (self.latency >= 0 and math.isfinite(self.latency)):
            raise BadOption(f"node: latency must be 0 or more and finite, not {self.latency}")

    def seconds(self, work: Work) -> float:
        """The larger of the time to compute and the time to move the bytes."""
        return max(work.flops / self.flops, work.bytes / self.memory)


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """Stragglers: each batch of a worker takes `exp(sigma z)` times its time, z standard normal and independent."""

    sigma: float = 0.0
    """Spread of the logarithm; 0.6 makes the slowest of 32 about three times the mean."""

    def __post_init__(self):
        if not (self.sigma >= 0 and math.isfinite(self.sigma)):
            raise BadOption(f"slowdown: sigma must be 0 or more and finite, not {self.sigma}")

    def factor(self, stream: np.random.Generator) -> float:
        return math.exp(self.sigma * stream.standard_normal()) if self.sigma else 1.0
