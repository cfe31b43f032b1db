"""Slowdowns on a wall clock: a worker that is to be slow really waits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable
from typing import Any

from lib.cluster.base import Cluster
from lib.cluster.slowdown import Lognormal
from lib.cluster.spec import Work

INLINE = 1e5
"""Operations or bytes below which a computation runs on the event loop: a thread costs more than it gains."""


class Delay:
    """Slows a worker down on a wall clock: after a computation it waits for as long as the slowdown stretches it.

    What is stretched is the shortest computation so far: what others on this machine cost it is no part of the slowdown.
    """

    def __init__(self, cluster: Cluster, seed: int, node: str):
        undisturbed = cluster.slowdown == Lognormal(sigma=0.0) and not cluster.speeds
        self._stretch = None if undisturbed else cluster.stretch(seed, node)
        self._started: float | None = None
        self._alone = math.inf

    async def after(self, work: Work | None, computation: Awaitable[Any]) -> Any:
        start = time.perf_counter()
        if self._started is None:
            self._started = start
        result = await computation
        if self._stretch and work is not None and work.flops >= INLINE:
            self._alone = min(self._alone, time.perf_counter() - start)
            await asyncio.sleep(max(0.0, self._stretch(start - self._started, self._alone) - self._alone))
        return result
