"""Slowdowns in time: a worker's speed changes whether it computes or not, and in the middle of a computation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le, MinLen

from lib.cluster.slowdowns.base import SHORTEST, Factor, Lasting, Pace, Slowdown, Stretches, draws
from lib.options.checked import NotNegative, Positive


@dataclass(frozen=True, kw_only=True)
class Transient(Slowdown):
    """Straggler periods: a worker is normal and slow by turns, for exponential times, independently of the others.

    It begins in its stationary state. In the long run a second of computation takes
    `(mean_on + mean_off) / (mean_off + mean_on / factor)` seconds, with the factors' harmonic mean where there are several.
    """

    name: ClassVar = "transient"
    times: ClassVar = ("mean_on", "mean_off")

    mean_on: Lasting
    """Mean seconds of a slow period."""
    mean_off: Lasting
    """Mean seconds between two."""
    factor: Factor | Annotated[tuple[Factor, ...], MinLen(1)]
    """How many times as long a computation takes in a slow period; of several, each period draws one."""

    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> Pace:
        return Stretches(self._turns(draws(seed, "slowdown", self.name, node, twin=twin)))

    def _turns(self, stream: np.random.Generator) -> Iterator[tuple[float, float]]:
        slow = stream.random() < self.mean_on / (self.mean_on + self.mean_off)
        end = 0.0
        while True:
            factor = self.factor if slow else 1.0
            if isinstance(factor, tuple):
                factor = factor[stream.integers(len(factor))]
            end += stream.exponential(self.mean_on if slow else self.mean_off)
            yield 1 / factor, end
            slow = not slow


@dataclass(frozen=True, kw_only=True)
class Diurnal(Slowdown):
    """A shared machine's day: what others leave free is a worker's speed, over and over."""

    name: ClassVar = "day"
    times: ClassVar = ("period", "begin")

    curve: Annotated[tuple[Annotated[float, Ge(1e-9), Le(1)], ...], MinLen(1)]
    """The machine's free share in each of so many equal stretches of a day."""
    period: Positive = 86_400.0
    """Seconds that a day lasts."""
    begin: NotNegative = 0.0
    """Seconds of the day that are over when the run begins."""

    def __post_init__(self):
        if self._width < SHORTEST:
            self._reject("period", f"at least {SHORTEST * len(self.curve):g} seconds for {len(self.curve)} shares")

    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> Pace:
        return Stretches(self._shares())

    def _shares(self) -> Iterator[tuple[float, float]]:
        for place in count(math.floor(self.begin / self._width)):
            yield self.curve[place % len(self.curve)], (place + 1) * self._width - self.begin

    @property
    def _width(self) -> float:
        return self.period / len(self.curve)
