"""Nodes on a wall clock, in this process or in processes of their own: slow workers, hangs and late messages really wait."""

from __future__ import annotations

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

import torch

from lib.cluster.base import Cluster, Site, in_thread, rank_of
from lib.cluster.failures import TICK, Connection
from lib.cluster.slowdowns import Lognormal
from lib.cluster.spec import Work

INLINE = 1e5
"""Operations or bytes below which a computation runs on the event loop: a thread costs more than it gains."""


class WallSite(Site):
    """A node whose small computations run on the event loop and whose others run in threads.

    A slowed computation ends when the slowdown would have it end on a worker that takes as long, undisturbed, as the shortest
    computation so far took of its processor. What contention on this machine costs is hidden in that wait, if the wait is longer.
    The first computation is neither slowed nor counted: it compiles and allocates.
    """

    def __init__(self, cluster: Cluster, seed: int, node: str, device: torch.device, batches: int = 0):
        """`batches`: the number that the node had computed in its generations before."""
        self.node, self.device = node, device
        self.rank = rank_of(node)
        self.failures = cluster.failures_of(seed, node, batches)
        self.delays = MessageDelays(cluster, seed, node)
        undisturbed = cluster.slowdown == Lognormal(sigma=0.0) and not cluster.speeds
        self._stretch = None if undisturbed else cluster.stretch(seed, node)
        self._processor_time = time.thread_time if device.type == "cpu" else time.perf_counter
        self._started: float | None = None
        self._shortest, self._warm = math.inf, False
        self.objects = {}

    def start_clock(self, ago: float) -> None:
        """The training started so many seconds ago."""
        self._started = time.perf_counter() - ago
        self.delays.start_clock(ago)

    def count_batch(self) -> int:
        """Count one more batch; return the number of batches."""
        return self.failures.count_batch(time.perf_counter() - (self._started or 0.0))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def compute(
        self, work: Work | None, function: Callable, *args, after: Collection[asyncio.Future] = ()
    ) -> Any:
        if after:
            await asyncio.wait(after)
        return await self._run(work, self._finish, function, *args)

    async def launch(self, work: Work | None, function: Callable, *args) -> Any:
        if work is None and self.device.type == "cpu":  # a thread would cost more than a copy
            return function(*args)
        return await self._run(work, self._enqueue, function, *args)

    @abstractmethod
    def _pool(self, work: Work | None) -> Executor:
        """The threads for it."""

    def _inline(self, work: Work | None) -> bool:
        """Whether a computation is too small for a thread and for a slowdown."""
        return work is not None and work.flops < INLINE and work.bytes < INLINE and not self.failures.outages

    async def _run(self, work: Work | None, function: Callable, *args) -> Any:
        if self._inline(work):
            return function(*args)
        start = time.perf_counter()
        if self._started is None:
            self._started = start
        running = asyncio.get_running_loop().run_in_executor(self._pool(work), self._measure, function, args)
        result, alone = await running
        if self._stretch and work is not None and work.flops >= INLINE:
            if self._warm:
                self._shortest = min(self._shortest, alone)
                end = start + self._stretch(start - self._started, self._shortest)
                await asyncio.sleep(max(0.0, end - time.perf_counter()))
            self._warm = True
        if self.failures.outages and work is not None:
            took = time.perf_counter() - start
            await asyncio.sleep(self.failures.outages.stretch(start - self._started, took) - took)
        return result

    def _measure(self, function: Callable, args: tuple) -> tuple[Any, float]:
        start = self._processor_time()
        result = function(*args)
        return result, self._processor_time() - start

    def _finish(self, function: Callable, *args) -> Any:
        """Compute to the end."""
        return self._enqueue(function, *args)

    def _enqueue(self, function: Callable, *args) -> Any:
        """Compute, on a device only up to the launch of its kernels."""
        return function(*args)


class MessageDelays:
    """What a wall clock adds to the messages between one node and the others, each way its own. Times are the event loop's."""

    def __init__(self, cluster: Cluster, seed: int, source: str):
        self._cluster, self._seed, self._source = cluster, seed, source
        self._started: float | None = None
        """When the training started: no message is late before."""
        self._connections: dict[tuple[str, str], Connection] = {}

    def start_clock(self, ago: float = 0.0) -> None:
        """The training started so many seconds ago."""
        self._started = asyncio.get_running_loop().time() - ago

    def request_arrival(self, target: str) -> float | None:
        """When a message to that node arrives that is sent now; None: at once. No message overtakes another."""
        return self._arrival(self._source, target)

    def answer_arrival(self, target: str) -> float | None:
        """When that node's answer arrives that is sent now; None: at once."""
        return self._arrival(target, self._source)

    def _arrival(self, source: str, target: str) -> float | None:
        if self._started is None:
            return None
        if (source, target) not in self._connections:
            plan = self._cluster.failures, self._cluster.mishaps
            self._connections[source, target] = Connection(*plan, self._seed, source, target)
        connection = self._connections[source, target]
        if not connection:
            return None
        now = asyncio.get_running_loop().time() - self._started
        return self._started + connection.arrival(now, now + TICK)


async def sleep_until(when: float | None) -> None:
    """Sleep to a moment of the event loop's clock: sleepers wake in the order of their moments, however late they began."""
    if when is None:
        return
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.call_at(when, lambda: woken.done() or woken.set_result(None))
    await woken


def in_loop(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function in an event loop of another thread and return its result; Ctrl-C cancels it."""
    started: Future = Future()

    async def body() -> Any:
        started.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await main()

    def interrupt() -> None:
        with suppress(TimeoutError, RuntimeError):  # the loop is not there yet, or closed: the run has just ended
            loop, task = started.result(5)
            loop.call_soon_threadsafe(task.cancel)

    return in_thread(lambda: asyncio.run(body()), interrupt)
