"""Several slowdowns at once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Self

from lib.cluster.slowdowns.base import Pace, SamplePath, Slowdown


@dataclass(frozen=True, kw_only=True)
class Product(Slowdown):
    """All parts slow the worker down, in this order: first the parts that settle a computation's factor when it begins
    (lognormal, steady, empirical), one after another; then the parts that change in time (transient, day, shared), whose
    speeds are multiplied from moment to moment. So the order of the parts does not matter to what a part draws, and
    adding a part of another kind changes no draw of the rest. A product within a product is spliced in.
    """

    name: ClassVar = "product"

    parts: tuple[Slowdown, ...]
    """The slowdowns; at least one."""

    def __post_init__(self):
        if not self.parts:
            self._reject("parts", "a list of at least one slowdown")
        flat = [part.parts if isinstance(part, Product) else (part,) for part in self.parts]
        object.__setattr__(self, "parts", tuple(chain.from_iterable(flat)))

    def scaled(self, scale: float) -> Self:
        return replace(self, parts=tuple(part.scaled(scale) for part in self.parts))

    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> SamplePath:
        met: Counter[str] = Counter()
        courses = []
        for part in self.parts:
            courses.append(part.sample_path(seed, node, rank, met[part.name]))
            met[part.name] += 1
        return _Joint(courses)


class _Joint(Pace):
    def __init__(self, courses: list[SamplePath]):
        self._paces = [course for course in courses if isinstance(course, Pace)]
        self._others = [course for course in courses if not isinstance(course, Pace)]

    def stretch(self, start: float, seconds: float) -> float:
        for course in self._others:
            seconds = course.stretch(start, seconds)
        return super().stretch(start, seconds) if self._paces else seconds

    def speed(self, time: float) -> tuple[float, float]:
        product, until = 1.0, math.inf
        for pace in self._paces:
            speed, end = pace.speed(time)
            product, until = product * speed, min(until, end)
        return product, until
