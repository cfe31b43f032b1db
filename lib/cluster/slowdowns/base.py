"""What slows workers down: the contract of every kind, how one is read from plain data, and the presets.

A `Slowdown` is a description: frozen, made of plain fields, the same for all workers. Its `sample_path` is one worker's speed
through time. Guaranteed: a sample path depends on the seed, the node, the rank and the calls made to it, on nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from annotated_types import Ge, Gt, Le

from lib import streams
from lib.errors import BadField, nearest, unknown
from lib.options.checked import Checked, Finite, Positive, checked, read_kind
from lib.options.units import SECONDS
from lib.options.yaml_source import load

SHORTEST = 1e-6
"""Seconds below which nothing is modelled; a sample path whose speed changed faster would never advance."""

Duration = Annotated[float, Ge(SHORTEST), Finite, SECONDS]
"""Seconds long enough to be modelled."""
Factor = Annotated[float, Gt(0), Le(1e9)]
"""How many times as long something takes."""


class SamplePath(ABC):
    """The speed of one worker through time."""

    @abstractmethod
    def stretch(self, start: float, seconds: float) -> float:
        """Return how long a computation of `seconds` on an undisturbed node takes when it begins at `start`.

        `start` is before an earlier call's only if the node died in between, with the computations queued on it."""


class Pace(SamplePath):
    """A sample path whose speed is constant between changes; a computation that spans a change is integrated over it."""

    @abstractmethod
    def speed(self, time: float) -> tuple[float, float]:
        """Return the speed relative to an undisturbed node, and the later time until which it stays so."""

    def stretch(self, start: float, seconds: float) -> float:
        time, left = start, seconds
        while True:
            speed, until = self.speed(time)
            done = (until - time) * speed
            if done >= left:
                return time - start + left / speed
            time, left = until, left - done


class Stretches(Pace):
    """A pace made of stretches (speed, end), in order, from time 0 on.

    Past stretches are stored: a computation has looked ahead of the time at which the next one begins.
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
        """Return a worker's sample path. `twin` counts the parts of the same kind before this one in a product, so that they
        draw from different streams."""

    def scaled(self, scale: float) -> Self:
        """Return the same slowdown in a time that runs `scale` times as long: at 1e-4 a day lasts 8.64 s."""
        scale = checked(Positive, scale, self.owner(), "scale")
        return replace(self, **{name: _scaled(getattr(self, name), scale) for name in self.times})

    @classmethod
    def owner(cls) -> str:
        return f"slowdown {cls.name!r}" if hasattr(cls, "name") else "slowdown"

    @classmethod
    def read(cls, data: Any) -> Slowdown:
        """Read a slowdown from `{name: kind, field: value, ...}`, or from a preset's name or `{name: preset, scale: 0.001}`, or
        from the name of a YAML file with either, as `python -m data_prep trace` writes it, or from a number: the sigma of a
        lognormal one."""
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return KINDS["lognormal"](sigma=data)
        if isinstance(data, str):
            if data.endswith((".yaml", ".yml")):
                document = load(data)
                wrapped = isinstance(document.data, Mapping) and [*document.data] == ["slowdown"]
                return document.read(Slowdown, *(["slowdown"] if wrapped else []))
            if data not in KINDS and data not in presets():
                right = f"a number, a slowdown's name or fields, or a YAML file; {nearest(data, [*KINDS, *presets()])}"
                raise BadField("slowdown", (), f" is {data!r}; expected {right}")
            data = {"name": data}
        if isinstance(data, Mapping) and data.get("name") not in [*KINDS] and data.get("name") in [*presets()]:
            for name in data.keys() - {"name", "scale"}:
                raise BadField("slowdown", (name,), f": a preset has no such field; {nearest(name, ['scale'])}")
            return get(**data)
        return read_kind("slowdown", KINDS, data)


KINDS: dict[str, type[Slowdown]] = {}
"""Every kind of slowdown that plain data may name; `lib.cluster.slowdowns.kinds` fills it."""


@dataclass(frozen=True, kw_only=True)
class Preset(Checked):
    """A slowdown of a real cluster, fitted to a public trace; `python -m data_prep trace` fits one's own."""

    slowdown: Slowdown
    source: str
    """The trace: who recorded what, where it is published."""
    carries: str
    """How far it is from what it was not fitted to. A distance (KS) is the largest one of two distributions of the factor."""


@cache
def presets() -> Mapping[str, Preset]:
    """Return all presets, by name."""
    document = load(Path(__file__).with_name("presets.yaml"))
    return {name: document.read(Preset, name) for name in document.data}


def get(name: str, scale: float = 1.0) -> Slowdown:
    """Return the preset of that name, in a time that runs `scale` times as long as the trace's."""
    if name not in presets():
        raise unknown("slowdown preset", name, presets())
    slowdown = presets()[name].slowdown
    return slowdown if scale == 1.0 else slowdown.scaled(scale)


def draws(seed: int, *names: object, twin: int) -> np.random.Generator:
    """Return the random stream of these names; each twin has its own."""
    return streams.stream(seed, *names, *((twin,) if twin else ()))


def _scaled(seconds: float | tuple[float, ...], scale: float) -> float | tuple[float, ...]:
    return tuple(each * scale for each in seconds) if isinstance(seconds, tuple) else seconds * scale
