"""A modelled cluster in virtual time: real gradients, modelled seconds, the same bits every time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, ClassVar

import numpy as np
import torch

from lib import streams
from lib.cluster.base import Cluster, Handle, Main, Meeting, Site, World, in_thread
from lib.cluster.board import Board, mean
from lib.cluster.loop import VirtualLoop
from lib.cluster.spec import Node, Slowdown, Work
from lib.errors import BadOption

HEADER = 64
"""Bytes of a message beside its arrays."""


@dataclass(frozen=True, kw_only=True)
class VirtualCluster(Cluster):
    """Up to thousands of modelled workers on one thread of this machine."""

    name: ClassVar = "virtual"
    clock: ClassVar = "virtual"

    worker: Node = field(default=Node())
    """What each worker runs on."""
    server: Node = field(default=Node(cores=8, bandwidth=3.125e9))
    """What each server runs on."""
    slowdown: float | Slowdown = 0.0
    """Stragglers among the workers; a number is the sigma of independent lognormal slowdowns of each batch."""
    speeds: tuple[float, ...] = ()
    """Steady speed of each worker relative to `worker`, by rank; empty: all equal."""

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.slowdown, Slowdown):
            object.__setattr__(self, "slowdown", Slowdown(sigma=self.slowdown))
        object.__setattr__(self, "speeds", tuple(self.speeds))
        if not all(speed > 0 for speed in self.speeds):
            raise BadOption(f"virtual cluster: speeds must be positive, not {self.speeds}")
        if self.speeds and self.workers is not None and len(self.speeds) != self.workers:
            raise BadOption(f"virtual cluster: {len(self.speeds)} speeds for {self.workers} workers")

    def open(self, seed: int, workers: int) -> VirtualWorld:
        return VirtualWorld(self, seed)


class VirtualWorld(World):
    """The clock, the network and the nodes of one virtual run."""

    def __init__(self, cluster: VirtualCluster, seed: int):
        self.cluster = cluster
        self.seed = seed
        self.loop = VirtualLoop()
        self.board = Board()
        self.objects: dict[str, Any] = {}
        self.report: Callable[[int], None] = lambda samples: None
        self._sites: dict[str, VirtualSite] = {}

    def site(self, node: str) -> VirtualSite:
        if node not in self._sites:
            self._sites[node] = VirtualSite(self, node)
        return self._sites[node]

    async def host(self, part: type, *args, node: str) -> VirtualHandle:
        site = self.site(node)
        return VirtualHandle(self.site("master"), site, part(site, *args))

    def now(self) -> float:
        return self.loop.time()

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        self.report = progress or self.report
        return in_thread(lambda: self._run(main), self.loop.interrupt)

    def _run(self, main: Main) -> Any:
        # One thread of torch: reductions split over threads would make the bits depend on their number.
        torch.set_num_threads(1)
        return self.loop.run_until_complete(main(self))


class VirtualSite(Site):
    """A node with lanes of computation and a network interface, each a queue in virtual time."""

    device = torch.device("cpu")

    def __init__(self, world: VirtualWorld, node: str):
        self.node = node
        self._world = world
        self._loop = world.loop
        role = node.rstrip("0123456789")
        self.spec = world.cluster.worker if role == "worker" else world.cluster.server
        self._lanes = [0.0] * self.spec.cores
        self.sends_until = self.receives_until = 0.0
        self._slow, self._speed = None, 1.0
        if role == "worker":
            self.rank = int(node[len(role) :])
            self._slow = streams.stream(world.seed, "slowdown", node)
            self._speed = world.cluster.speeds[self.rank] if world.cluster.speeds else 1.0

    def now(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await self._until(self._loop.time() + seconds)

    async def compute(self, work: Work | None, function: Callable, *args) -> Any:
        if work is None:
            return function(*args)
        seconds = self.spec.seconds(work) / self._speed
        if self._slow is not None:
            seconds *= self._world.cluster.slowdown.factor(self._slow)
        start = max(heapq.heappop(self._lanes), self._loop.time())
        heapq.heappush(self._lanes, start + seconds)
        # The function sees its node's memory as it is when its turn comes.
        if start > self._loop.time():
            await self._until(start)
        result = function(*args)
        if seconds:
            await self._until(start + seconds)
        return result

    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        if len(meeting.members) == 1:
            return mine.copy()
        result = await self._world.board.combine(meeting, "mean", self.rank, mine, mean)
        steps = 2 * (len(meeting.members) - 1)  # a ring: reduce-scatter, then all-gather, of 1/W of the bytes each
        await self._exchange(steps * mine.nbytes / len(meeting.members), steps)
        return result.copy()

    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        arrays = await self._world.board.combine(meeting, "gather", self.rank, mine, list)
        await self._exchange(sum(array.nbytes for array in arrays) - mine.nbytes, len(arrays) - 1)
        return arrays

    def shared(self, key: str, make: Callable[[], Any]) -> Any:
        """One for the whole world: `compute` runs a function to its end before any other."""
        if key not in self._world.objects:
            self._world.objects[key] = make()
        return self._world.objects[key]

    def progress(self, samples: int) -> None:
        self._world.report(samples)

    async def transfer(self, other: VirtualSite, size: int) -> None:
        """Move bytes to another node; see `book`."""
        if other is not self:
            await self._until(self.book(other, size))

    def book(self, other: VirtualSite, size: int) -> float:
        """Queue a message on both network interfaces; when it has arrived."""
        begin = max(self._loop.time(), self.sends_until, other.receives_until)
        end = begin + (size + HEADER) / min(self.spec.bandwidth, other.spec.bandwidth)
        self.sends_until = other.receives_until = end
        return end + max(self.spec.latency, other.spec.latency)

    async def _exchange(self, size: float, steps: int) -> None:
        """A collective's traffic: this node sends and receives `size` bytes in so many dependent steps."""
        begin = max(self._loop.time(), self.sends_until, self.receives_until)
        self.sends_until = self.receives_until = begin + size / self.spec.bandwidth
        await self._until(self.sends_until + steps * self.spec.latency)

    def _until(self, when: float) -> asyncio.Future:
        future = self._loop.create_future()
        self._loop.call_at(when, _wake, future)
        return future


class VirtualHandle(Handle):
    """Arguments travel to the part's node and the result travels back, at the cost of their bytes."""

    def __init__(self, here: VirtualSite, there: VirtualSite, part: Any):
        self._here, self._there, self._part = here, there, part

    def seen_from(self, site: VirtualSite) -> VirtualHandle:
        return VirtualHandle(site, self._there, self._part)

    def _call(self, method: str, args: tuple):
        function = getattr(self._part, method)
        if self._here is self._there:
            return function(*args)
        return self._carry(self._here.book(self._there, nbytes(args)), function, args)

    async def _carry(self, arrival: float, function: Callable, args: tuple) -> Any:
        await self._here._until(arrival)
        result = await function(*args)
        await self._there.transfer(self._here, nbytes(result))
        return result


def nbytes(message: Any) -> int:
    """The bytes of all arrays in a message."""
    kind = type(message)
    if kind is np.ndarray:
        return message.nbytes
    if kind in (int, float, NoneType, bool, str):
        return 0
    if kind in (tuple, list):
        return sum(map(nbytes, message))
    if kind is dict:
        return sum(map(nbytes, message.values()))
    return sum([nbytes(getattr(message, name)) for name in _names(kind)])


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()


def _wake(future: asyncio.Future) -> None:
    if not future.done():
        future.set_result(None)
