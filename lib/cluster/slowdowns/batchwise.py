"""Slowdowns of a whole computation: its factor is settled when it begins."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from lib.cluster.slowdowns.base import SamplePath, Slowdown, draws
from lib.options.checked import NotNegative, Positive, Share

_ROOT_2 = math.sqrt(2)


@dataclass(frozen=True, kw_only=True)
class Lognormal(Slowdown):
    """Each computation of a worker takes `exp(sigma z)` times its time, z standard normal and independent."""

    name: ClassVar = "lognormal"

    sigma: NotNegative = 0.0
    """Spread of the logarithm; 0.6 makes the slowest of 32 about three times the mean."""

    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> SamplePath:
        if not self.sigma:
            return _Factors(lambda: 1.0)
        stream = draws(seed, "slowdown", node, twin=twin)
        return _Factors(lambda: math.exp(self.sigma * stream.standard_normal()))


@dataclass(frozen=True, kw_only=True)
class Steady(Slowdown):
    """A worker is slower or faster than the others for good: machines of different kinds, or unlike neighbours."""

    name: ClassVar = "steady"

    sigma: NotNegative = 0.0
    """A worker's factor is `exp(sigma z)`, one draw for each worker; used where `factors` is empty."""
    factors: tuple[Positive, ...] = ()
    """How many times as long each worker takes, by rank; ranks beyond the end begin anew."""

    def __post_init__(self):
        if self.sigma and self.factors:
            self._reject("sigma", "0 where factors are given")

    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> SamplePath:
        if self.factors:
            factor = self.factors[rank % len(self.factors)]
        else:
            factor = math.exp(self.sigma * draws(seed, "slowdown", self.name, node, twin=twin).standard_normal())
        return _Factors(lambda: factor)


@dataclass(frozen=True, kw_only=True)
class Empirical(Slowdown):
    """Factors from a measured distribution, independent or correlated in time.

    The factor is the distribution's quantile at Phi(z). z is standard normal, and the z of two computations that begin
    `d` seconds apart have the correlation `sum(share * exp(-d / seconds))`: fast jitter, slow drift, or both.
    """

    name: ClassVar = "empirical"
    times: ClassVar = ("seconds",)

    quantiles: tuple[Positive, ...]
    """Ascending quantiles of the factor; linear in between."""
    levels: tuple[Share, ...] = ()
    """The quantiles' probabilities, from 0 to 1; empty: at equal distances."""
    seconds: tuple[Positive, ...] = ()
    """For each correlated part of z, the time in which its correlation falls to 1/e; empty: independent."""
    shares: tuple[Share, ...] = ()
    """Each part's share of z's variance; what is left to 1 is independent."""

    def __post_init__(self):
        if len(self.quantiles) < 2 or list(self.quantiles) != sorted(self.quantiles):
            self._reject("quantiles", "at least two in ascending order")
        if self.levels and (self.levels[0], self.levels[-1], len(self.levels)) != (0, 1, len(self.quantiles)):
            self._reject("levels", f"as many as the {len(self.quantiles)} quantiles, from 0 to 1")
        if any(one >= other for one, other in pairwise(self.levels)):
            self._reject("levels", "in strictly ascending order")
        if len(self.shares) != len(self.seconds) or sum(self.shares) > 1:
            self._reject("shares", f"as many as the {len(self.seconds)} seconds, and at most 1 together")

    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> SamplePath:
        return _Empirical(self, draws(seed, "slowdown", self.name, node, twin=twin))


class _Factors(SamplePath):
    """A computation takes as many times as long as the next factor says."""

    def __init__(self, following: Callable[[], float]):
        self._following = following

    def stretch(self, start: float, seconds: float) -> float:
        return seconds * self._following()


class _Empirical(SamplePath):
    """The correlated parts of z are Ornstein-Uhlenbeck processes, which are exact at any times."""

    def __init__(self, kind: Empirical, stream: np.random.Generator):
        last = len(kind.quantiles) - 1
        self._values = kind.quantiles
        self._levels = kind.levels or tuple(place / last for place in range(last + 1))
        self._seconds, self._shares = kind.seconds, kind.shares
        self._rest = max(0.0, 1 - sum(kind.shares))
        self._parts, self._time = [0.0] * len(kind.shares), -math.inf
        self._normal = stream.standard_normal

    def stretch(self, start: float, seconds: float) -> float:
        z = math.sqrt(self._rest) * self._normal() if self._rest else 0.0
        for place, share in enumerate(self._shares):
            kept = math.exp(-abs(start - self._time) / self._seconds[place])
            part = kept * self._parts[place] + math.sqrt(1 - kept * kept) * self._normal()
            self._parts[place] = part
            z += math.sqrt(share) * part
        self._time = start
        return seconds * self._quantile(0.5 * math.erfc(-z / _ROOT_2))

    def _quantile(self, level: float) -> float:
        above = min(bisect_right(self._levels, level), len(self._levels) - 1)
        low, high = self._levels[above - 1], self._levels[above]
        return self._values[above - 1] + (level - low) / (high - low) * (self._values[above] - self._values[above - 1])
