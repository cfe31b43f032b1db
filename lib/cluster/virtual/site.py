"""One node of a virtual cluster: lanes that compute, an interface that sends and receives, each a queue in virtual time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from lib.cluster.base import rank_of
from lib.cluster.board import Meeting, mean, own
from lib.cluster.faults.nodes import Health, NodeContext
from lib.cluster.one_process import ProcessSite, ProcessWorld
from lib.cluster.spec import Node, Work
from lib.cluster.virtual.collectives import Algorithm
from lib.cluster.virtual.loop import VirtualLoop
from lib.cluster.virtual.network import Network, Transfer, carry_out

HEADER = 64
"""Bytes of a message beside its arrays."""


class VirtualSite(ProcessSite):
    """What a node's parts see, and what the node has done."""

    device = torch.device("cpu")

    def __init__(
        self,
        world: ProcessWorld,
        node: str,
        spec: Node,
        loop: VirtualLoop,
        network: Network,
        average: Algorithm,
        objects: dict[str, Any],
    ):
        """`average`: how groups do it; `objects`: what all nodes share."""
        self.node, self.rank, self.spec = node, rank_of(node), spec
        self.interface = network.join(node, spec.bandwidth, spec.latency)
        self.computed = 0.0
        """Seconds that its lanes were busy, summed."""
        self.world, self._loop, self._network, self._average = world, loop, network, average
        self._objects = objects
        self._lanes = [0.0] * self.spec.lanes
        self.context = NodeContext(node)
        self.fails, self.health = world.cluster.fails, Health(world.cluster.failures_of(world.seed, node))
        self._slowed = world.cluster.stretch(world.seed, node)
        self.calls: list[tuple[float, float]] = []
        """What the slowdown was asked for, where the run is to be restarted."""

    def now(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await self.until(self._loop.time() + seconds)

    async def compute(
        self, work: Work | None, function: Callable, *args, after: Collection[asyncio.Future] = ()
    ) -> Any:
        if work is None:
            return function(*args)
        start, seconds = self._occupy(work)
        # The function sees its node's memory as it is when its turn comes.
        if start > self._loop.time():
            await self.until(start)
        if after:
            await asyncio.wait(after)
            if (now := self._loop.time()) > start:
                start, seconds = now, self._seconds(work, now)
        result = function(*args)
        if seconds:
            await self.until(start + seconds)
        return result

    async def prepare(self, samples: int, function: Callable, *args) -> Any:
        return await self.compute(Work(samples=samples) if self.spec.reading else None, function, *args)

    async def staged(
        self, work: Work, shares: Sequence[float], emit: Callable[[int, Any], None], function: Callable, *args
    ) -> Any:
        start, seconds = self._occupy(work)
        if start > self._loop.time():
            await self.until(start)
        result = function(*args, lambda k, part: self._loop.call_at(start + shares[k] * seconds, emit, k, part))
        await self.until(start + seconds)
        return result

    def _occupy(self, work: Work) -> tuple[float, float]:
        """Take the lane that is free first; from when, and for how long."""
        start = max(heapq.heappop(self._lanes), self._loop.time())
        seconds = self._seconds(work, start)
        heapq.heappush(self._lanes, start + seconds)
        self.computed += seconds
        return start, seconds

    def _seconds(self, work: Work, start: float) -> float:
        """How long it takes from then on, beside what the other lanes do."""
        running = 1 + sum(free > start for free in self._lanes) if self.spec.memory else 1
        seconds = self.spec.seconds(work, running)
        if self._slowed:
            if self.world.checkpoints:
                self.calls.append((start, seconds))
            seconds = self._slowed(start, seconds)
        return self.health.stretch(start - self.world.failure_schedule.start, seconds)

    def repeat(self, calls: np.ndarray) -> None:
        """Bring an idle node to where these calls of its slowdown have brought another."""
        for start, seconds in calls[len(self.calls) :].tolist():
            self.calls.append((start, seconds))
            self._slowed(start, seconds)
        self._lanes = [0.0] * self.spec.lanes

    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        if len(meeting.members) == 1:
            return own(mine)
        steps = self._average(self._network.machines(meeting.members), mine.nbytes)
        result, done = await self._meet(meeting, "mean", mine, mean, steps)
        await self.until(done[meeting.members.index(self.rank)])
        return own(result)

    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        everyone = np.arange(len(meeting.members))
        arrays, _ = await self._meet(meeting, "gather", mine, list, [])
        step = everyone, np.roll(everyone, -1), sum(array.nbytes for array in arrays) / everyone.size
        _, done = await self._meet(meeting, "gathered", mine, list, [step] * (everyone.size - 1))
        await self.until(done[meeting.members.index(self.rank)])
        return arrays

    def shared(self, key: str, make: Callable[[], Any]) -> Any:
        """One for the whole world: `compute` runs a function to its end before any other."""
        if key not in self._objects:
            self._objects[key] = make()
        return self._objects[key]

    def progress(self, samples: int) -> None:
        self.world.report(samples)
        if self.fails:
            failure_schedule = self.world.failure_schedule
            failure_schedule.computed(self.node, self.health.computed(self._loop.time() - failure_schedule.start))

    def _emptied(self) -> None:
        self._lanes = [0.0] * self.spec.lanes

    def book(self, other: VirtualSite, size: int) -> float:
        """Queue a message to another node; when it has arrived."""
        start = self.world.failure_schedule.start
        return self._network.send(self.node, other.node, self._loop.time(), size + HEADER, start)

    def until(self, when: float) -> asyncio.Future:
        return self._loop.sleep_until(when)

    async def _meet(self, meeting: Meeting, kind: str, mine: np.ndarray, function: Callable, steps: list[Transfer]):
        """What `function` makes of the members' arrays, and when each member is done with the transfers."""

        def together(arrays: list[np.ndarray]):
            members = [self._network.interfaces[f"worker{rank}"] for rank in meeting.members]
            ready = np.full(len(members), self._loop.time())
            return function(arrays), carry_out(steps, members, ready)

        return await self.world.board.combine(meeting, kind, self.rank, mine, together)
