"""Slowdowns, hangs and late messages on a wall clock: who is to be slow really waits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import torch

from lib.cluster.base import Cluster
from lib.cluster.faults.failures import TICK, Connection
from lib.cluster.faults.nodes import Health
from lib.cluster.slowdowns import Lognormal
from lib.cluster.spec import Work

INLINE = 1e5
"""Operations or bytes below which a computation runs on the event loop: a thread costs more than it gains."""


class InjectedDelays:
    """Slows a worker down on a wall clock: a computation is over when the slowdown would have it over on a worker that takes as
    long, undisturbed, as the shortest computation so far took of its processor. What others on this machine cost it is hidden in
    the wait, as long as that is the longer.

    The first computation is neither slowed nor counted: it compiles and allocates.
    """

    def __init__(self, cluster: Cluster, seed: int, node: str, device: torch.device, batches: int = 0):
        undisturbed = cluster.slowdown == Lognormal(sigma=0.0) and not cluster.speeds
        self._stretch = None if undisturbed else cluster.stretch(seed, node)
        self._clock = time.thread_time if device.type == "cpu" else time.perf_counter
        self._started: float | None = None
        self._alone, self._warm = math.inf, False
        self.health = Health(cluster.failures_of(seed, node), batches)

    def begin(self, ago: float = 0.0) -> None:
        """The training started so many seconds ago."""
        self._started = time.perf_counter() - ago

    def at_once(self, work: Work | None) -> bool:
        """Whether a computation is too small to be given to a thread, or to be slowed down."""
        return work is not None and work.flops < INLINE and work.bytes < INLINE and not self.health

    def computed(self) -> int:
        """One more batch is computed; how many there are."""
        return self.health.computed(time.perf_counter() - (self._started or 0.0))

    async def run(self, pool: Executor, work: Work | None, function: Callable, *args) -> Any:
        """Compute in a thread, and wait."""
        start = time.perf_counter()
        if self._started is None:
            self._started = start
        result, alone = await asyncio.get_running_loop().run_in_executor(pool, self._measured, function, args)
        if self._stretch and work is not None and work.flops >= INLINE:
            if self._warm:
                self._alone = min(self._alone, alone)
                over = start + self._stretch(start - self._started, self._alone)
                await asyncio.sleep(max(0.0, over - time.perf_counter()))
            self._warm = True
        if self.health and work is not None:
            took = time.perf_counter() - start
            await asyncio.sleep(self.health.stretch(start - self._started, took) - took)
        return result

    def _measured(self, function: Callable, args: tuple) -> tuple[Any, float]:
        start = self._clock()
        result = function(*args)
        return result, self._clock() - start


class MessageDelays:
    """What a wall clock adds to the messages from one node to others: each way its own. Times are the event loop's."""

    def __init__(self, cluster: Cluster, seed: int, source: str):
        self._cluster, self._seed, self._source = cluster, seed, source
        self._started: float | None = None
        """When the training started: before then nothing befalls a message."""
        self._connections: dict[tuple[str, str], Connection] = {}

    def begin(self, ago: float = 0.0) -> None:
        """The training started so many seconds ago."""
        self._started = asyncio.get_running_loop().time() - ago

    def there(self, target: str) -> float | None:
        """When a message to that node arrives that is sent now; None: at once. No message overtakes another."""
        return self._arrival(self._source, target)

    def back(self, target: str) -> float | None:
        """When its answer arrives that is sent now."""
        return self._arrival(target, self._source)

    def _arrival(self, source: str, target: str) -> float | None:
        if self._started is None:
            return None
        if (source, target) not in self._connections:
            cluster = self._cluster
            self._connections[source, target] = Connection(
                cluster.failures, cluster.mishaps, self._seed, source, target
            )
        connection = self._connections[source, target]
        if not connection:
            return None
        now = asyncio.get_running_loop().time() - self._started
        return self._started + connection.arrival(now, now + TICK)


async def until(when: float | None) -> None:
    """Sleep to a moment of the event loop's clock: who is to wake earlier does, however late each began to wait."""
    if when is None:
        return
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.call_at(when, lambda: woken.done() or woken.set_result(None))
    await woken
