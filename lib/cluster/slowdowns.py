"""What slows workers down: the contract, the kinds, how one is read from plain data, and presets, fitted to traces of real
clusters.

A `Slowdown` is a description: frozen, made of plain fields, the same for all workers. Its `sample_path` is one worker's speed
through time. Guaranteed: a sample path depends on the seed, the node, the rank and the calls made to it, on nothing else.

Lognormal, Steady and Empirical draw a factor for a whole computation when it begins. Transient, Diurnal and Shared change a
worker's speed in time, whether it computes or not, also in the middle of a computation. Product joins several.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from annotated_types import Ge, Gt, Le, MinLen

from lib import streams
from lib.errors import BadField, nearest, unknown
from lib.options.checked import Checked, Finite, NotNegative, Positive, Share, checked, read_kind
from lib.options.registry import is_user_file, load_from_user_file
from lib.options.units import SECONDS, PositiveSeconds, Seconds
from lib.options.yaml_source import load, read

_ROOT_2 = math.sqrt(2)
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


class PiecewiseSpeed(SamplePath):
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


class SpeedIntervals(PiecewiseSpeed):
    """Speeds that are constant over intervals (speed, end), in order, from time 0 on.

    Past intervals are stored: a computation has looked ahead of the time at which the next one begins.
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
    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> SamplePath:
        """Return a worker's sample path. `nth_of_kind` counts the parts of the same kind before this one in a product, so
        that they draw from different streams."""

    def scale_time(self, scale: float) -> Self:
        """Return the same slowdown in a time that runs `scale` times as long: at 1e-4 a day lasts 8.64 s."""
        scale = checked(Positive, scale, self.error_label(), "scale")
        return replace(self, **{name: _scaled(getattr(self, name), scale) for name in self.times})

    @classmethod
    def error_label(cls) -> str:
        return f"slowdown {cls.name!r}" if hasattr(cls, "name") else "slowdown"

    @classmethod
    def read(cls, data: Any) -> Slowdown:
        """Read a slowdown from `{name: kind, field: value, ...}`, or from a preset's name or `{name: preset, scale: 0.001}`, or
        from the name of a YAML file with either, as `python -m data_prep trace` writes it, or from `mine.py:Mine`, a class of
        the user's, or from a number: the sigma of a lognormal one."""
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return KINDS["lognormal"](sigma=data)
        if isinstance(data, str):
            if is_user_file(data):
                kind = load_from_user_file(data, "slowdown", Slowdown)
                return kind() if isinstance(kind, type) else kind
            if data.endswith((".yaml", ".yml")):
                found = load(data)
                wrapped = isinstance(found, Mapping) and [*found] == ["slowdown"]
                return read(Slowdown, found["slowdown"] if wrapped else found, data)
            if data not in KINDS and data not in presets():
                right = f"a number, a slowdown's name or fields, or a YAML file; {nearest(data, [*KINDS, *presets()])}"
                raise BadField("slowdown", (), f" is {data!r}; expected {right}")
            data = {"name": data}
        if isinstance(data, Mapping) and data.get("name") not in [*KINDS] and data.get("name") in [*presets()]:
            for name in data.keys() - {"name", "scale"}:
                raise BadField("slowdown", (name,), f": a preset has no such field; {nearest(name, ['scale'])}")
            return get(**data)
        return read_kind("slowdown", KINDS, data)


@dataclass(frozen=True, kw_only=True)
class Lognormal(Slowdown):
    """Each computation of a worker takes `exp(sigma z)` times its time, z standard normal and independent."""

    name: ClassVar = "lognormal"

    sigma: NotNegative = 0.0
    """Spread of the logarithm; 0.6 makes the slowest of 32 about three times the mean."""

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> SamplePath:
        if not self.sigma:
            return _FactorPerStep(lambda: 1.0)
        stream = random_stream(seed, "slowdown", node, nth=nth_of_kind)
        return _FactorPerStep(lambda: math.exp(self.sigma * stream.standard_normal()))


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

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> SamplePath:
        if self.factors:
            factor = self.factors[rank % len(self.factors)]
        else:
            factor = math.exp(
                self.sigma * random_stream(seed, "slowdown", self.name, node, nth=nth_of_kind).standard_normal()
            )
        return _FactorPerStep(lambda: factor)


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

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> SamplePath:
        return _Empirical(self, random_stream(seed, "slowdown", self.name, node, nth=nth_of_kind))


class _FactorPerStep(SamplePath):
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

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> PiecewiseSpeed:
        return SpeedIntervals(self._speed_periods(random_stream(seed, "slowdown", self.name, node, nth=nth_of_kind)))

    def _speed_periods(self, stream: np.random.Generator) -> Iterator[tuple[float, float]]:
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
        if self._interval_seconds < SHORTEST:
            self._reject("period", f"at least {SHORTEST * len(self.curve):g} seconds for {len(self.curve)} shares")

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> PiecewiseSpeed:
        return SpeedIntervals(self._shares_until())

    def _shares_until(self) -> Iterator[tuple[float, float]]:
        for place in count(math.floor(self.begin / self._interval_seconds)):
            yield self.curve[place % len(self.curve)], (place + 1) * self._interval_seconds - self.begin

    @property
    def _interval_seconds(self) -> float:
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

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> PiecewiseSpeed:
        return SpeedIntervals(self._shares_until(random_stream(seed, "slowdown", self.name, node, nth=nth_of_kind)))

    def _shares_until(self, stream: np.random.Generator) -> Iterator[tuple[float, float]]:
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

    def scale_time(self, scale: float) -> Self:
        return replace(self, parts=tuple(part.scale_time(scale) for part in self.parts))

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> SamplePath:
        met: Counter[str] = Counter()
        courses = []
        for part in self.parts:
            courses.append(part.sample_path(seed, node, rank, met[part.name]))
            met[part.name] += 1
        return _ProductPath(courses)


class _ProductPath(PiecewiseSpeed):
    def __init__(self, courses: list[SamplePath]):
        self._paces = [course for course in courses if isinstance(course, PiecewiseSpeed)]
        self._others = [course for course in courses if not isinstance(course, PiecewiseSpeed)]

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


KINDS = {kind.name: kind for kind in (Lognormal, Steady, Empirical, Transient, Diurnal, Shared, Product)}
"""Every kind of slowdown that plain data may name."""


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
    path = Path(__file__).with_name("slowdown_presets.yaml")
    return {name: read(Preset, preset, path) for name, preset in load(path).items()}


def get(name: str, scale: float = 1.0) -> Slowdown:
    """Return the preset of that name, in a time that runs `scale` times as long as the trace's."""
    if name not in presets():
        raise unknown("slowdown preset", name, presets())
    slowdown = presets()[name].slowdown
    return slowdown if scale == 1.0 else slowdown.scale_time(scale)


def random_stream(seed: int, *names: object, nth: int) -> np.random.Generator:
    """Return the random stream of these names; one for each part of a kind."""
    return streams.stream(seed, *names, *((nth,) if nth else ()))


def _scaled(seconds: float | tuple[float, ...], scale: float) -> float | tuple[float, ...]:
    return tuple(each * scale for each in seconds) if isinstance(seconds, tuple) else seconds * scale
