"""What slows a worker down: the contract of every kind, and the check of its fields.

A `Slowdown` is a description: frozen, made of plain fields, the same for all workers. Its `course` is one worker's run
through time. Guaranteed: a course depends on the seed, the node, the rank and the calls made to it, on nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np

from lib import streams
from lib.errors import BadOption

SHORTEST = 1e-6
"""Seconds below which nothing is modelled; a course whose speed changes faster than that would never get anywhere."""


class BadField(BadOption):
    """A field with a value that cannot work; the reader of a file puts the field's path before `problem`."""

    def __init__(self, owner: str, field: str, problem: str):
        super().__init__(f"{owner}: {field} {problem}")
        self.field, self.problem = field, problem


class Course(ABC):
    """One worker's run through time."""

    @abstractmethod
    def stretch(self, start: float, seconds: float) -> float:
        """How long a computation of `seconds` on an undisturbed node takes when it begins at `start`.

        `start` never decreases from one call to the next."""


class Pace(Course):
    """A course whose speed is constant between changes; a computation that spans a change is integrated over it."""

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


@dataclass(frozen=True, kw_only=True)
class Slowdown(ABC):
    """How workers are slowed down."""

    name: ClassVar[str]
    times: ClassVar[tuple[str, ...]] = ()
    """Fields that are seconds of the cluster's clock."""

    @abstractmethod
    def course(self, seed: int, node: str, rank: int, twin: int = 0) -> Course:
        """A worker's course. `twin` counts the parts of the same kind before this one in a product, so that they draw
        from different streams."""

    def scaled(self, scale: float) -> Self:
        """The same in a time that runs `scale` times as long: a day of 86,400 s lasts 8.64 s at a scale of 1e-4."""
        if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < scale < math.inf:
            raise BadField(f"slowdown {self.name!r}", "scale", f"must be positive and finite, not {scale!r}")
        return replace(self, **{name: _times(getattr(self, name), scale) for name in self.times})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for YAML and JSON: `name` and the fields that differ from their defaults."""
        own = {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if field.default is MISSING or getattr(self, field.name) != field.default
        }
        return {"name": self.name} | own

    @staticmethod
    def from_dict(data: Any, where: str = "slowdown") -> Slowdown:
        """See `lib.cluster.slowdowns.reading`."""
        from lib.cluster.slowdowns.reading import from_dict  # it knows every kind, and every kind knows this class

        return from_dict(data, where)

    def _reject(self, field: str, right: str, value: Any = None) -> None:
        value = getattr(self, field) if value is None else value
        raise BadField(f"slowdown {self.name!r}", field, f"must be {right}, not {value!r}")

    def _number(
        self, field: str, right: str, least: float = -math.inf, most: float = math.inf, above: float | None = None
    ):
        """The field is a finite number in [least, most], and larger than `above`; `right` says so in words."""
        if not _within(getattr(self, field), least, most, above):
            self._reject(field, right)

    def _numbers(self, field: str, right: str, least: float = -math.inf, most: float = math.inf, above=None) -> None:
        """The field is a sequence of such numbers; it becomes a tuple."""
        value = getattr(self, field)
        if isinstance(value, str) or not isinstance(value, Sequence):
            self._reject(field, f"a list in which each is {right}")
        for place, each in enumerate(value):
            if not _within(each, least, most, above):
                self._reject(f"{field}[{place}]", right, each)
        object.__setattr__(self, field, tuple(value))


def draws(seed: int, *names: object, twin: int) -> np.random.Generator:
    """The stream of these names; a second part of the same kind, twin 1, gets another one."""
    return streams.stream(seed, *names, *((twin,) if twin else ()))


def _within(value: Any, least: float, most: float, above: float | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        return False
    return least <= value <= most and (above is None or value > above)


def _times(seconds: float | tuple[float, ...], scale: float) -> float | tuple[float, ...]:
    return tuple(each * scale for each in seconds) if isinstance(seconds, tuple) else seconds * scale


def _plain(value: Any) -> Any:
    if isinstance(value, Slowdown):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
