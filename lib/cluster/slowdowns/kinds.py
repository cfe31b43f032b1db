"""The kinds of slowdowns.

Lognormal, Steady and Empirical draw a factor for a whole computation when it begins. Transient, Diurnal and Shared change a
worker's speed in time, whether it computes or not, also in the middle of a computation. Product joins several.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, pairwise
from typing import Annotated, ClassVar, Self

import numpy as np
from annotated_types import Ge, Le, MinLen

from lib.cluster.slowdowns.base import KINDS, SHORTEST, Duration, Factor, Pace, SamplePath, Slowdown, Stretches, draws
from lib.options.checked import NotNegative, Positive, Share
from lib.options.units import PositiveSeconds, Seconds

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
    seconds: tuple[PositiveSeconds, ...] = ()
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


@dataclass(frozen=True, kw_only=True)
class Transient(Slowdown):
    """Straggler periods: a worker is normal and slow by turns, for exponential times, independently of the others.

    It begins in its stationary state. In the long run a second of computation takes
    `(mean_on + mean_off) / (mean_off + mean_on / factor)` seconds, with the factors' harmonic mean where there are several.
    """

    name: ClassVar = "transient"
    times: ClassVar = ("mean_on", "mean_off")

    mean_on: Duration
    """Mean seconds of a slow period."""
    mean_off: Duration
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
    period: PositiveSeconds = 86_400.0
    """Seconds that a day lasts."""
    begin: Seconds = 0.0
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


@dataclass(frozen=True, kw_only=True)
class Shared(Slowdown):
    """What others use of a worker's machine is drawn anew every `hold` seconds; what they leave is its speed.

    The share in use is Beta-distributed: its mean m follows the cluster's through the day, its variance is
    m (1 - m) / (concentration + 1). So a vacant cluster's workers are nearly alike, and a busy one's are not: the time of
    a computation goes with 1 / (1 - share in use), whose spread grows without any further assumption.

    Workers draw independently, at moments of their own. A draw follows the mean at the middle of its stretch.
    """

    name: ClassVar = "shared"
    times: ClassVar = ("hold", "period", "begin")

    curve: Annotated[tuple[Share, ...], MinLen(1)]
    """The cluster's mean share in use in each of so many equal stretches of a day."""
    concentration: Positive
    """How alike machines are: the larger, the closer to the mean."""
    hold: Duration
    """Seconds for which a machine's share stays as it is."""
    least: Annotated[float, Ge(1e-9), Le(1)] = 0.01
    """The least share that a worker gets: a machine that is all in use still gives a newcomer its time slices."""
    period: PositiveSeconds = 86_400.0
    """Seconds that a day lasts."""
    begin: Seconds = 0.0
    """Seconds of the day that are over when the run begins."""

    def sample_path(self, seed: int, node: str, rank: int, twin: int = 0) -> Pace:
        return Stretches(self._shares(draws(seed, "slowdown", self.name, node, twin=twin)))

    def _shares(self, stream: np.random.Generator) -> Iterator[tuple[float, float]]:
        over = stream.random() * self.hold  # seconds of the first stretch that are over when the run begins
        for place in count():
            middle = (place + 0.5) * self.hold - over
            hour = math.floor((middle + self.begin) / self.period * len(self.curve))
            mean = in_use = self.curve[hour % len(self.curve)]
            if 0 < mean < 1:
                in_use = stream.beta(mean * self.concentration, (1 - mean) * self.concentration)
            yield max(self.least, 1 - in_use), (place + 1) * self.hold - over


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


KINDS.update({kind.name: kind for kind in (Lognormal, Steady, Empirical, Transient, Diurnal, Shared, Product)})
