"""A slowdown to copy: how the workers of a modelled cluster are slowed down."""

from dataclasses import dataclass
from typing import ClassVar

from lib.cluster.slowdowns import SamplePath, Slowdown
from lib.options.checked import Count, Positive


@dataclass(frozen=True, kw_only=True)
class Mine(Slowdown):
    """Every `every`-th computation of a worker takes `times` as long, one worker after another."""

    name: ClassVar = "mine"

    every: Count = 10
    """Computations from one slow one to the next."""
    times: Positive = 5.0
    """How many times as long it takes."""

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> SamplePath:
        return _Hiccups(self, rank)


class _Hiccups(SamplePath):
    """One worker's run through time: it depends on the calls made to it and on nothing else, so that it can be repeated."""

    def __init__(self, kind: Mine, rank: int):
        self._kind, self._count = kind, rank

    def stretch(self, start: float, seconds: float) -> float:
        self._count += 1
        return seconds * (1 if self._count % self._kind.every else self._kind.times)
