"""Slowdowns, hangs and late messages on a wall clock: who is to be slow really waits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable
from typing import Any

from lib.cluster.base import Cluster
from lib.cluster.failures import TICK, Passage
from lib.cluster.lives import Health
from lib.cluster.slowdown import Lognormal
from lib.cluster.spec import Work

INLINE = 1e5
"""Operations or bytes below which a computation runs on the event loop: a thread costs more than it gains."""


class Delay:
    """Slows a worker down on a wall clock: a computation is over when the slowdown would have it over on a worker that takes as
    long, undisturbed, as the shortest computation so far. What others on this machine cost it is hidden in the wait, as long
    as that is the longer.

    The first computation is neither slowed nor counted: it compiles and allocates.
    """

    def __init__(self, cluster: Cluster, seed: int, node: str, batches: int = 0):
        undisturbed = cluster.slowdown == Lognormal(sigma=0.0) and not cluster.speeds
        self._stretch = None if undisturbed else cluster.stretch(seed, node)
        self._started: float | None = None
        self._alone, self._warm = math.inf, False
        self.health = Health(cluster, seed, node, batches)

    def begin(self, ago: float = 0.0) -> None:
        """The training started so many seconds ago."""
        self._started = time.perf_counter() - ago

    def at_once(self, work: Work | None) -> bool:
        """Whether a computation is too small to be given to a thread, or to be slowed down."""
        return work is not None and work.flops < INLINE and work.bytes < INLINE and not self.health

    def computed(self) -> int:
        """One more batch is computed; how many there are."""
        return self.health.computed(time.perf_counter() - (self._started or 0.0))

    async def after(self, work: Work | None, computation: Awaitable[Any]) -> Any:
        start = time.perf_counter()
        if self._started is None:
            self._started = start
        result = await computation
        if self._stretch and work is not None and work.flops >= INLINE:
            took = time.perf_counter() - start
            if self._warm:
                self._alone = min(self._alone, took)
                await asyncio.sleep(max(0.0, self._stretch(start - self._started, self._alone) - took))
            self._warm = True
        if self.health and work is not None:
            took = time.perf_counter() - start
            await asyncio.sleep(self.health.stretch(start - self._started, took) - took)
        return result


class Road:
    """What a wall clock adds to the messages from one node to others: each way its own. Times are the event loop's."""

    def __init__(self, cluster: Cluster, seed: int, source: str):
        self._cluster, self._seed, self._source = cluster, seed, source
        self._started = 0.0
        self._passages: dict[tuple[str, str], Passage] = {}

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
        if (source, target) not in self._passages:
            cluster = self._cluster
            self._passages[source, target] = Passage(cluster.failures, cluster.mishaps, self._seed, source, target)
        passage = self._passages[source, target]
        if not passage:
            return None
        now = asyncio.get_running_loop().time() - self._started
        return self._started + passage.arrival(now, now + TICK)


async def until(when: float | None) -> None:
    """Sleep to a moment of the event loop's clock: who is to wake earlier does, however late each began to wait."""
    if when is None:
        return
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.call_at(when, lambda: woken.done() or woken.set_result(None))
    await woken
