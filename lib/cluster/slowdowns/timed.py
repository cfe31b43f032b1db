"""Slowdowns in time: a worker's speed changes whether it computes or not, and in the middle of a computation."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Self

from annotated_types import Ge, Le, MinLen

from lib.cluster.slowdowns.base import SHORTEST, Course, Factor, Lasting, Pace, Slowdown, draws
from lib.errors import nearest
from lib.options.checked import Natural, NotNegative, Positive, Share

CURVES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        # Fitted by `data_prep.traces.fitting.fit` to 16 machines over 8 days of Alibaba's cluster-trace-v2018
        # (github.com/alibaba/clusterdata, machine_usage.csv): the free share of a typical machine's CPU, hour by hour.
        "alibaba-2018": (
            *(0.6688, 0.6501, 0.66, 0.6366, 0.612, 0.5625, 0.43, 0.4943, 0.5512, 0.5487, 0.5956, 0.569),
            *(0.6198, 0.63, 0.63, 0.6483, 0.662, 0.6412, 0.684, 0.693, 0.6853, 0.675, 0.71, 0.7316),
        ),
    }
)
"""Free shares of a machine over one day, from midnight of the trace."""


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
    ranks: tuple[Natural, ...] = ()
    """The workers that it can hit; empty: all."""

    def course(self, seed: int, node: str, rank: int, twin: int = 0) -> Course:
        if self.ranks and rank not in self.ranks:
            return _Even()
        return _OnOff(self, draws(seed, "slowdown", self.name, node, twin=twin))


@dataclass(frozen=True, kw_only=True)
class Bursts(Slowdown):
    """Short bursts that hit several workers at the same time, as a shared file system or switch does.

    All workers see the same bursts; each burst hits each worker with the probability `share`. Bursts do not overlap:
    the next one comes an exponential time after the last one's end.
    """

    name: ClassVar = "bursts"
    times: ClassVar = ("seconds",)

    rate: Annotated[float, Ge(0), Le(1 / SHORTEST)]
    """Bursts in a second without one."""
    factor: Factor
    """How many times as long a computation takes in a burst."""
    seconds: Lasting
    """How long a burst lasts."""
    share: Share = 0.5
    """Probability that a burst hits a worker."""

    def scaled(self, scale: float) -> Self:
        longer = super().scaled(scale)
        return replace(longer, rate=self.rate / scale)

    def course(self, seed: int, node: str, rank: int, twin: int = 0) -> Course:
        return _Burst(self, seed, node, twin) if self.rate and self.share else _Even()


@dataclass(frozen=True, kw_only=True)
class Day(Slowdown):
    """A shared machine's day: what others leave free is a worker's speed, over and over."""

    name: ClassVar = "day"
    times: ClassVar = ("period", "begin")

    curve: tuple[Annotated[float, Ge(1e-9), Le(1)], ...] | str = "alibaba-2018"
    """The machine's free share in each of so many equal stretches of a day, or a name in `CURVES`."""
    period: Positive = 86_400.0
    """Seconds that a day lasts."""
    begin: NotNegative = 0.0
    """Seconds of the day that are over when the run begins."""

    def __post_init__(self):
        if isinstance(self.curve, str) and self.curve not in CURVES:
            self._reject("curve", f"free shares or a name ({nearest(self.curve, CURVES)})")
        if not self.curve:
            self._reject("curve", "at least one share")
        if self.period / len(self.free) < SHORTEST:
            self._reject("period", f"at least {SHORTEST * len(self.free):g} seconds for {len(self.free)} shares")

    @property
    def free(self) -> tuple[float, ...]:
        """The free shares."""
        return CURVES[self.curve] if isinstance(self.curve, str) else self.curve

    def course(self, seed: int, node: str, rank: int, twin: int = 0) -> Course:
        return _Day(self)


class _Even(Pace):
    """Nothing happens."""

    def speed(self, time: float) -> tuple[float, float]:
        return 1.0, math.inf


class _Turns(Pace):
    """Two states by turns. Changes are kept: a computation has looked ahead of where the next one begins."""

    def __init__(self):
        self._changes = [0.0]

    @abstractmethod
    def _length(self, turn: int) -> float:
        """Seconds that the next turn lasts; turns are asked for in order, once each, from 1."""

    def _turn(self, time: float) -> tuple[int, float]:
        """(number of the turn, when it ends)."""
        changes = self._changes
        while changes[-1] <= time:
            changes.append(changes[-1] + self._length(len(changes)))
        turn = bisect_right(changes, time)
        return turn, changes[turn]


class _OnOff(_Turns):
    def __init__(self, kind: Transient, stream):
        super().__init__()
        self._stream, self._factor = stream, kind.factor
        self._first_on = int(stream.random() < kind.mean_on / (kind.mean_on + kind.mean_off))
        self._means = (kind.mean_off, kind.mean_on)
        self._speeds: list[float] = []

    def _length(self, turn: int) -> float:
        on = (turn + self._first_on + 1) % 2
        factor = self._factor if on else 1.0
        if isinstance(factor, tuple):
            factor = factor[self._stream.integers(len(factor))]
        self._speeds.append(1 / factor)
        return self._stream.exponential(self._means[on])

    def speed(self, time: float) -> tuple[float, float]:
        turn, until = self._turn(time)
        return self._speeds[turn - 1], until


class _Burst(_Turns):
    """Odd turns are calm, even ones bursts."""

    def __init__(self, kind: Bursts, seed: int, node: str, twin: int):
        super().__init__()
        self._kind, self._slow = kind, 1 / kind.factor
        self._times = draws(seed, kind.name, twin=twin)  # every worker's are the same
        self._luck = draws(seed, "slowdown", kind.name, node, twin=twin)
        self._hit: list[bool] = []

    def _length(self, turn: int) -> float:
        if turn % 2:
            return self._times.exponential(1 / self._kind.rate)
        self._hit.append(self._luck.random() < self._kind.share)
        return self._kind.seconds

    def speed(self, time: float) -> tuple[float, float]:
        turn, until = self._turn(time)
        return (self._slow if turn % 2 == 0 and self._hit[turn // 2 - 1] else 1.0), until


class _Day(Pace):
    def __init__(self, kind: Day):
        self._free, self._begin, self._width = kind.free, kind.begin, kind.period / len(kind.free)

    def speed(self, time: float) -> tuple[float, float]:
        stretch = math.floor((time + self._begin) / self._width)
        until = (stretch + 1) * self._width - self._begin
        if until <= time:  # rounding put the moment before the change that it is
            stretch += 1
            until = (stretch + 1) * self._width - self._begin
        return self._free[stretch % len(self._free)], until
