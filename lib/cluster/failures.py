"""What goes wrong in a cluster, and when: nodes die, hang or slow down and come back, connections die for a while, messages come
late or get lost. The plan draws from (seed, what, where) alone, so every world carries out the same one.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Le

from lib import streams
from lib.cluster.slowdowns import Duration, PiecewiseSpeed
from lib.errors import BadOption
from lib.options.checked import Checked, Count, Finite, Share
from lib.options.units import Seconds

ROLES = ("worker", "server", "sync", "reader", "embedding")
"""The roles of nodes that may fail; a node's name is its role and its number."""
TICK = 1e-6
"""Seconds between two messages that would overtake each other."""


@dataclass(frozen=True, kw_only=True)
class Failure(Checked):
    """A failure of one node, or of the connection of two."""

    node: str
    """A node, "worker3"; each of a role, "worker*"; or a connection, "worker3 - server0", "worker3 - *"."""
    kind: Literal["dies", "hangs", "slows"]
    """dies: a node's processes end with all that they held in memory; nothing passes a connection. hangs: a node stops and
    continues where it stood. slows: a node takes `factor` times as long for everything."""
    at: Seconds | None = None
    """Seconds after the training starts."""
    at_batch: Count | None = None
    """Or: as soon as the worker has computed so many batches."""
    every: Duration | None = None
    """Or: again and again, at random, after so many seconds of health on average (MTBF)."""
    lasts: Duration | None = None
    """Seconds until it is over (a node that died is up again, with nothing in its memory); None: for ever."""
    factor: Annotated[float, Ge(1), Finite] = 10.0
    """How many times as long everything takes on a node that slows."""

    def __post_init__(self):
        if sum(when is not None for when in (self.at, self.at_batch, self.every)) != 1:
            raise BadOption("failure: set exactly one of at, at_batch and every")
        if self.at_batch is not None and (self.connection or self.role != "worker"):
            raise BadOption("failure: at_batch counts a worker's batches; its node must be a worker")
        if self.connection and self.kind != "dies":
            raise BadOption(
                f"failure: a connection dies, {self.node!r} cannot be of kind {self.kind!r}; late messages are an option of "
                "the cluster: mishaps=Mishaps(late=..., delay=...)"
            )
        if self.lasts is None and (self.kind == "hangs" or self.connection or self.every is not None):
            what = "what fails again and again" if self.every is not None else f"what {self.kind} there"
            raise BadOption(f"failure: {self.node}: {what} must come back; set lasts")
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

    @property
    def duration(self) -> float:
        return math.inf if self.lasts is None else self.lasts

    def affects_node(self, node: str) -> bool:
        return matches(self.node, node)

    def cuts_connection(self, one: str, other: str) -> bool:
        """Whether it is about the connection of these two."""
        ends = self.connection
        pairs = ((one, other), (other, one))
        return ends is not None and any(matches(ends[0], a) and matches(ends[1], b) for a, b in pairs)

    def window(self, start: float) -> Window:
        """Return when it begins and ends, if it begins then."""
        return Window(start, start + self.duration, self.factor if self.kind == "slows" else math.inf)

    def windows(self, seed: int, where: str, number: int) -> Iterator[Window]:
        """Yield its windows at a node or connection, in order; `number` is its place in the plan."""
        if self.at is not None:
            yield self.window(self.at)
        if self.every is not None:
            draw, time = streams.stream(seed, "failure", number, where), 0.0
            while True:
                time += draw.exponential(self.every)
                yield (window := self.window(time))
                time = window.end


@dataclass(frozen=True, kw_only=True)
class Mishaps(Checked):
    """What may happen to single messages. Messages between two nodes still arrive in the order of sending."""

    late: Share = 0.0
    """Share of the messages that come late."""
    delay: Seconds = 0.1
    """Mean seconds by which they are late (exponential)."""
    lost: Annotated[float, Ge(0), Le(0.99)] = 0.0
    """Share of the sendings that get lost."""
    retry: Seconds = 0.2
    """Seconds after which a lost message is sent again."""

    def __bool__(self) -> bool:
        return bool(self.late or self.lost)


class Window(NamedTuple):
    """A failure's begin and end, in seconds after the training started."""

    start: float
    end: float
    factor: float
    """How many times as long everything takes; inf: nothing happens."""


class FailureSpeed(PiecewiseSpeed):
    """The speed of a node that hangs or slows down from time to time, or of a connection that dies."""

    def __init__(self, windows: Iterable[Iterator[Window]]):
        self._following = heapq.merge(*windows)
        self._next = next(self._following, None)
        self._known: list[Window] = []

    def add(self, window: Window) -> None:
        """Add a window that no plan knew the time of."""
        self._known.append(window)

    def stretch(self, start: float, seconds: float) -> float:
        self._known = [window for window in self._known if window.end > start]
        return super().stretch(start, max(seconds, TICK))  # during a hang even nothing takes time

    def speed(self, time: float) -> tuple[float, float]:
        while self._next is not None and self._next.start <= time:
            self._known.append(self._next)
            self._next = next(self._following, None)
        speed, until = 1.0, math.inf if self._next is None else self._next.start
        for window in self._known:
            if window.start <= time < window.end:
                speed, until = speed / window.factor, min(until, window.end)
            elif time < window.start:
                until = min(until, window.start)
        return speed, until


class NodeFailures:
    """The failures of one node, of which some begin with a batch that it has computed.

    A hang longer than the others' patience is a death: they continue without the node.
    """

    def __init__(self, failures: Sequence[Failure], seed: int, node: str, patience: float, batches: int = 0):
        """`batches`: the number that the node had computed before its current start."""
        self._failures = [(number, failure) for number, failure in enumerate(failures) if failure.affects_node(node)]
        self._seed, self._node, self._patience = seed, node, patience
        self.batches = batches
        outages = self._windows(lethal=False)
        self.outages = FailureSpeed(outages) if outages else None
        self._begun: list[Window] = []
        """Outages that began with a batch."""

    def __bool__(self) -> bool:
        return bool(self._failures)

    def deaths(self) -> Iterator[Window]:
        return heapq.merge(*self._windows(lethal=True))

    def deaths_at_batch(self, batches: int) -> list[Failure]:
        """The deaths that come as soon as the worker has computed that many."""
        return [each for _, each in self._failures if each.at_batch == batches and self._kills(each)]

    def count_batch(self, now: float) -> int:
        """Count one more batch, with which outages may begin; return the number of batches."""
        self.batches += 1
        for _, failure in self._failures:
            if failure.at_batch == self.batches and not self._kills(failure):
                self._begin_outage(failure.window(now))
        return self.batches

    def state(self) -> dict[str, Any]:
        return {"batches": self.batches, "begun": [tuple(window) for window in self._begun]}

    def restore(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]
        for window in state["begun"]:
            self._begin_outage(Window(*window))

    def _kills(self, failure: Failure) -> bool:
        return failure.kind == "dies" or (failure.kind == "hangs" and failure.duration > self._patience)

    def _windows(self, lethal: bool) -> list[Iterator[Window]]:
        return [
            failure.windows(self._seed, self._node, number)
            for number, failure in self._failures
            if self._kills(failure) == lethal
        ]

    def _begin_outage(self, window: Window) -> None:
        self._begun.append(window)
        self.outages.add(window)


class MessageFailures:
    """What happens to the messages from one node to another."""

    def __init__(self, failures: Sequence[Failure], mishaps: Mishaps, seed: int, source: str, target: str):
        ends = " - ".join(sorted((source, target)))
        here = ((number, each) for number, each in enumerate(failures) if each.cuts_connection(source, target))
        deaths = [each.windows(seed, ends, number) for number, each in here]
        self._outages = FailureSpeed(deaths) if deaths else None
        self._mishaps = mishaps
        self._draw = streams.stream(seed, "messages", source, target) if mishaps else None
        self._last = -math.inf

    def __bool__(self) -> bool:
        """Whether anything can happen to them."""
        return self._outages is not None or self._draw is not None

    def state(self) -> dict[str, Any]:
        return {"draw": self._draw, "last": self._last}

    def restore(self, state: dict[str, Any]) -> None:
        self._draw, self._last = state["draw"], state["last"]

    def arrival_time(self, sent: float, arrives: float) -> float:
        """Return when a message really arrives that was sent at `sent` and should arrive at `arrives`; all in seconds after
        the training started."""
        if not self:
            return arrives
        if self._outages:
            arrives = sent + self._outages.stretch(sent, arrives - sent)
        if self._draw:
            if self._draw.random() < self._mishaps.late:
                arrives += self._draw.exponential(self._mishaps.delay)
            if self._mishaps.lost:  # the sendings before the first that comes through
                arrives += self._mishaps.retry * (self._draw.geometric(1 - self._mishaps.lost) - 1)
        self._last = max(arrives, self._last + TICK)
        return self._last


class FailureSchedule:
    """The deaths of all nodes: it kills each when its plan says so, and knows when it is up again."""

    def __init__(self, plan_of: Callable[[str], NodeFailures], kill: Callable[[str], None]):
        """`plan_of` returns a node's failures, `kill` ends a node at once."""
        self._plan_of, self._kill = plan_of, kill
        self.running = False
        self.start = 0.0
        """When the training started, on the loop's clock."""
        self._plans: dict[str, NodeFailures] = {}
        self._deaths: dict[str, Iterator[Window]] = {}
        self._next: dict[str, Window] = {}
        """The first death that lies ahead of each node,"""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """and its timer, while the node is up."""
        self._returns: dict[str, float] = {}
        """Dead nodes, and when they are up again."""

    def arm_failures(self, nodes: Iterable[str]) -> None:
        """Start the training's clock, unless it runs; from now on these nodes, which are up, may die."""
        if not self.running:
            self.running, self.start = True, asyncio.get_running_loop().time()
        for node in nodes:
            if node not in self._plans and (plan := self._plan_of(node)):
                self._plans[node], self._deaths[node] = plan, plan.deaths()
            if node in self._plans and node not in self._timers:
                self._schedule_next(node)

    def count_batch(self, node: str, batches: int) -> None:
        """Kill a worker that has computed that many batches, if its plan says so."""
        if plan := self._plans.get(node):
            for failure in plan.deaths_at_batch(batches):
                self._kill_node(node, failure.duration)

    def is_dead(self, node: str) -> bool:
        return node in self._returns

    async def wait_until_up(self, node: str) -> bool:
        """Wait until a node is up; False if it never will be."""
        if node not in self._returns:
            return node in self._plans
        when = self._returns[node]
        if when == math.inf:
            return False
        await asyncio.sleep(max(0.0, when - asyncio.get_running_loop().time()))
        if self._returns.pop(node, None) is not None:
            self._schedule_next(node)
        return True

    def state(self) -> dict[str, Any]:
        return {"start": self.start, "returns": dict(self._returns), "awaited": list(self._timers)}

    def restore(self, state: dict[str, Any], nodes: Iterable[str], shift: float) -> None:
        """Continue from that state with these nodes; `shift`: seconds by which the loop's clock is ahead of that state's."""
        self.running, self.start = True, state["start"] + shift
        self._returns = {node: when + shift for node, when in state["returns"].items()}
        self._plans.clear()
        self._next.clear()
        # Deaths at the same moment come in the order in which they were scheduled.
        self.arm_failures([*state["awaited"], *nodes])

    def pause(self, *nodes: str) -> None:
        """Let these nodes, or all, live until `arm_failures` names them again; deaths that are due in between never come."""
        for node in nodes or list(self._timers):
            if timer := self._timers.pop(node, None):
                timer.cancel()

    def _schedule_next(self, node: str) -> None:
        """Set a timer for the first death that lies ahead of a node that is up."""
        if node in self._returns:
            return
        loop = asyncio.get_running_loop()
        window = self._next.pop(node, None) or next(self._deaths[node], None)
        while (
            window is not None and self.start + window.start < loop.time()
        ):  # when it was dead, or before a checkpoint
            window = next(self._deaths[node], None)
        if window is not None:
            self._next[node] = window
            lasts = window.end - window.start
            self._timers[node] = loop.call_at(self.start + window.start, self._kill_node, node, lasts)

    def _kill_node(self, node: str, lasts: float) -> None:
        self.pause(node)
        if node not in self._returns:
            self._returns[node] = asyncio.get_running_loop().time() + lasts
            self._kill(node)


def matches(pattern: str, node: str) -> bool:
    """Whether a node is meant by "worker3", "worker*" or "*"."""
    if pattern in ("*", node):
        return True
    return pattern.endswith("*") and node.rstrip("0123456789") == pattern[:-1]
