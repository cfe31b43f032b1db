"""What slows a worker down: the contract of every kind, and the check of its fields.

A `Slowdown` is a description: frozen, made of plain fields, the same for all workers. Its `sample_path` is one worker's run
through time. Guaranteed: a sample path depends on the seed, the node, the rank and the calls made to it, on nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from annotated_types import Ge, Gt, Le

from lib import streams
from lib.options.checked import Checked, Finite, Positive, checked

SHORTEST = 1e-6
"""Seconds below which nothing is modelled; a sample path whose speed changes faster than that would never get anywhere."""

Lasting = Annotated[float, Ge(SHORTEST), Finite]
"""Seconds long enough to be modelled."""
Factor = Annotated[float, Gt(0), Le(1e9)]
"""How many times as long something takes."""


class SamplePath(ABC):
    """One worker's run through time."""

    @abstractmethod
    def stretch(self, start: float, seconds: float) -> float:
        """How long a computation of `seconds` on an undisturbed node takes when it begins at `start`.

        `start` is before an earlier call's only where the node died meanwhile, with what was queued on it."""


class Pace(SamplePath):
    """A sample path whose speed is constant between changes; a computation that spans a change is integrated over it."""

    @abstractmethod
    def speed(self, time: float) -> tuple[float, float]:
        """(speed, until when it lasts), relative to an undisturbed node; `until` is later than `time`."""

    def stretch(self, start: float, seconds: float) -> float:
        time, left = start, seconds
        while True:
            speed, until = self.speed(time)
            done = (until - time) * speed
            if done >= left:
                return time - start + left / speed
            time, left = until, left - done


class Stretches(Pace):
    """A pace that is told stretch by stretch: (speed, when it ends), in order, from time 0 on.

    What was told is kept: a computation has looked ahead of where the next one begins.
    """

    def __init__(self, following: Iterator[tuple[float, float]]):
        self._following = following
        self._speeds: list[float] = []
        self._ends = [0.0]

    def speed(self, time: float) -> tuple[float, float]:
        while self._ends[-1] <= time:
            speed, end = next(self._following)
            self._speeds.append(speed)
            self._ends.append(end)
        place = bisect_right(self._ends, time)
        return self._speeds[place - 1], self._ends[place]


@dataclass(frozen=True, kw_only=True)
class Slowdown(Checked, ABC):
    """How workers are slowed down."""

    name: ClassVar[str]
    plain_name: ClassVar = True
    times: ClassVar[tuple[str, ...]] = ()
    """Fields that are seconds of the cluster's clock."""

    @abstractmethod
    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> SamplePath:
        """A worker's sample path. `twin` counts the parts of the same kind before this one in a product, so that they draw
        from different streams."""

    def scaled(self, scale: float) -> Self:
        """The same in a time that runs `scale` times as long: a day of 86,400 s lasts 8.64 s at a scale of 1e-4."""
        scale = checked(Positive, scale, self.owner(), "scale")
        return replace(self, **{name: _times(getattr(self, name), scale) for name in self.times})

    @classmethod
    def owner(cls) -> str:
        return f"slowdown {cls.name!r}" if hasattr(cls, "name") else "slowdown"

    @classmethod
    def read(cls, data: Any) -> Slowdown:
        """See `lib.cluster.slowdowns.reading`."""
        from lib.cluster.slowdowns.reading import read  # it knows every kind, and every kind knows this class

        return read(data)


def draws(seed: int, *names: object, twin: int) -> np.random.Generator:
    """The stream of these names; a second part of the same kind, twin 1, gets another one."""
    return streams.stream(seed, *names, *((twin,) if twin else ()))


def _times(seconds: float | tuple[float, ...], scale: float) -> float | tuple[float, ...]:
    return tuple(each * scale for each in seconds) if isinstance(seconds, tuple) else seconds * scale
