"""What goes wrong in a cluster, and when: nodes and connections that die, hang, slow down and come back, messages that come
late or get lost. A description only: it draws from (seed, what, where), and every world carries the same one out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Le

from lib import streams
from lib.cluster.slowdowns.base import Pace
from lib.errors import BadOption
from lib.options.checked import Checked, Count, Finite, NotNegative, Share

Long = Annotated[float, Ge(1e-6), Finite]
"""Seconds that are not too short to be modelled."""
ROLES = ("worker", "server", "sync", "reader", "embedding")
"""What nodes that may fail are there for; a node's name is its role and its number."""
TICK = 1e-6
"""Seconds between two messages that would overtake each other."""


@dataclass(frozen=True, kw_only=True)
class Failure(Checked):
    """Something that befalls one node, or the connection of two."""

    node: str
    """A node, "worker3"; each of a role, "worker*"; or a connection, "worker3 - server0", "worker3 - *"."""
    kind: Literal["dies", "hangs", "slows"]
    """dies: a node's processes end, and what they held in memory is gone; nothing passes a connection. hangs: a node stops
    and goes on where it stood. slows: everything takes `factor` times as long."""
    at: NotNegative | None = None
    """Seconds after the training starts."""
    at_batch: Count | None = None
    """Or: as soon as the worker has computed so many batches."""
    every: Long | None = None
    """Or: again and again, at random, after so many seconds of health on average (MTBF)."""
    lasts: Long | None = None
    """Seconds until it is over (a node that died is there again, with nothing in its memory); None: for ever."""
    factor: Annotated[float, Ge(1), Finite] = 10.0
    """How many times as long everything takes where it slows."""

    def __post_init__(self):
        if sum(when is not None for when in (self.at, self.at_batch, self.every)) != 1:
            raise BadOption("failure: set exactly one of at, at_batch and every")
        if self.at_batch is not None and (self.connection or self.role != "worker"):
            raise BadOption("failure: at_batch counts a worker's batches; its node must be a worker")
        cut = self.connection and self.kind == "dies"
        if self.lasts is None and (self.kind == "hangs" or cut or self.every is not None):
            what = "what fails again and again" if self.every is not None else f"what {self.kind} there"
            raise BadOption(f"failure: {self.node}: {what} must come back; set lasts")
        if self.connection and self.kind == "hangs":
            raise BadOption("failure: a connection dies or slows; it has nothing that could hang")
        if not self.connection and self.role not in ROLES:
            raise BadOption(f'failure: no node {self.node!r}; "worker3", "worker*", "server0", or "worker3 - server0"')

    @property
    def connection(self) -> tuple[str, str] | None:
        """The two ends, if it is about a connection."""
        ends = tuple(end.strip() for end in self.node.split(" - "))
        return ends if len(ends) == 2 else None

    @property
    def role(self) -> str:
        return self.node.rstrip("*0123456789")

    def hits(self, node: str) -> bool:
        return matches(self.node, node)

    def parts(self, one: str, other: str) -> bool:
        """Whether it is about the connection of these two."""
        ends = self.connection
        return ends is not None and any(
            matches(ends[0], a) and matches(ends[1], b) for a, b in ((one, other), (other, one))
        )


@dataclass(frozen=True, kw_only=True)
class Mishaps(Checked):
    """What befalls single messages. Messages between two nodes still arrive in the order of sending."""

    late: Share = 0.0
    """Share of the messages that come late."""
    delay: NotNegative = 0.1
    """Mean seconds by which they are late (exponential)."""
    lost: Annotated[float, Ge(0), Le(0.99)] = 0.0
    """Share of the sendings that get lost."""
    retry: NotNegative = 0.2
    """Seconds after which a lost message is sent again."""

    def __bool__(self) -> bool:
        return bool(self.late or self.lost)


def check_wall(failures: Sequence[Failure], name: str) -> None:
    """What a real machine's network cannot be made to do."""
    for failure in failures:
        if failure.connection and failure.kind == "slows":
            raise BadOption(
                f"{name} cluster: the connection {failure.node!r} cannot be slowed on a real machine; it can die for a "
                "time, and messages can be late: mishaps=Mishaps(late=..., delay=...)"
            )


class Window(NamedTuple):
    """From when to when something is wrong, in seconds after the training started."""

    start: float
    end: float
    factor: float
    """How many times as long everything takes; inf: nothing happens."""


def windows(failure: Failure, seed: int, node: str, number: int) -> Iterator[Window]:
    """When a failure of that number in the plan befalls a node or connection, in order."""
    if failure.at is not None:
        yield window_of(failure, failure.at)
    if failure.every is not None:
        draw, time = streams.stream(seed, "failure", number, node), 0.0
        while True:
            time += draw.exponential(failure.every)
            yield (window := window_of(failure, time))
            time = window.end


def window_of(failure: Failure, start: float) -> Window:
    """A failure that begins then."""
    lasts = math.inf if failure.lasts is None else failure.lasts
    return Window(start, start + lasts, failure.factor if failure.kind == "slows" else math.inf)


@dataclass(frozen=True)
class NodeFailures:
    """All that is to befall one node. A hang longer than the others' patience is a death: they go on without it."""

    failures: tuple[tuple[int, Failure], ...]
    seed: int
    node: str
    patience: float

    @classmethod
    def of(cls, failures: Sequence[Failure], seed: int, node: str, patience: float) -> NodeFailures:
        mine = tuple((number, failure) for number, failure in enumerate(failures) if failure.hits(node))
        return cls(mine, seed, node, patience)

    def kills(self, failure: Failure) -> bool:
        return failure.kind == "dies" or (failure.kind == "hangs" and failure.lasts > self.patience)

    def deaths(self) -> Iterator[Window]:
        mine = [
            windows(failure, self.seed, self.node, number) for number, failure in self.failures if self.kills(failure)
        ]
        return heapq.merge(*mine)

    def after_batch(self, batches: int) -> list[Failure]:
        """What begins when the worker has computed that many."""
        return [failure for _, failure in self.failures if failure.at_batch == batches]

    def degradation(self) -> Degradation | None:
        mine = [(number, failure) for number, failure in self.failures if not self.kills(failure)]
        if not mine:
            return None
        return Degradation([windows(failure, self.seed, self.node, number) for number, failure in mine])


class Degradation(Pace):
    """How a node that hangs or slows from time to time gets on."""

    def __init__(self, series: list[Iterator[Window]]):
        self._series = series
        self._known: list[Window] = []
        self._next = [next(each, None) for each in series]

    def begin(self, window: Window) -> None:
        """Something that nobody knew the time of."""
        self._known.append(window)

    def stretch(self, start: float, seconds: float) -> float:
        self._known = [window for window in self._known if window.end > start]
        return super().stretch(start, max(seconds, TICK))  # who hangs does not do even nothing

    def speed(self, time: float) -> tuple[float, float]:
        self._look_ahead(time)
        speed, until = 1.0, min((window.start for window in self._next if window), default=math.inf)
        for window in self._known:
            if window.start <= time < window.end:
                speed, until = speed / window.factor, min(until, window.end)
            elif time < window.start:
                until = min(until, window.start)
        return speed, until

    def _look_ahead(self, time: float) -> None:
        """Know all windows that have begun by then."""
        for number, series in enumerate(self._series):
            while (window := self._next[number]) is not None and window.start <= time:
                if window.end > time:
                    self._known.append(window)
                self._next[number] = next(series, None)


class Connection:
    """What befalls the messages from one node to another."""

    def __init__(self, failures: Sequence[Failure], mishaps: Mishaps, seed: int, source: str, target: str):
        mine = [(number, failure) for number, failure in enumerate(failures) if failure.parts(source, target)]
        ends = " - ".join(sorted((source, target)))
        self._degradation = (
            Degradation([windows(failure, seed, ends, number) for number, failure in mine]) if mine else None
        )
        self._mishaps = mishaps
        self._draw = streams.stream(seed, "messages", source, target) if mishaps else None
        self._last = -math.inf

    def __bool__(self) -> bool:
        """Whether anything can befall them."""
        return self._degradation is not None or self._draw is not None

    def save(self) -> dict[str, Any]:
        """How far its chances have come."""
        return {"draw": self._draw, "last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        self._draw, self._last = state["draw"], state["last"]

    def arrival(self, sent: float, arrives: float) -> float:
        """When a message really arrives that was sent at `sent` and should have arrived at `arrives`; both in seconds
        after the training started."""
        if not self:
            return arrives
        if self._degradation:
            arrives = sent + self._degradation.stretch(sent, arrives - sent)
        if self._draw:
            if self._draw.random() < self._mishaps.late:
                arrives += self._draw.exponential(self._mishaps.delay)
            if self._mishaps.lost:  # the sendings before the first that comes through
                arrives += self._mishaps.retry * (self._draw.geometric(1 - self._mishaps.lost) - 1)
        self._last = max(arrives, self._last + TICK)
        return self._last


def matches(pattern: str, node: str) -> bool:
    if pattern in ("*", node):
        return True
    return pattern.endswith("*") and node.rstrip("0123456789") == pattern[:-1]
