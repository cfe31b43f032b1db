"""Averaging a gradient in buckets, each as soon as backward has it, while the rest is still being computed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from itertools import accumulate

import numpy as np

from lib.cluster.base import Meeting, Site
from lib.store.phantom import concat

FORWARD = 1 / 3
"""Share of a step that is over before backward begins: backward takes about twice as long as forward."""


class Overlap:
    """One step's buckets. All members of the group average them in the same order."""

    def __init__(self, site: Site, buckets: list[slice], meeting: Awaitable[Meeting | None]):
        self._site, self.buckets, self._meeting = site, buckets, meeting
        sizes = [bucket.stop - bucket.start for bucket in buckets]
        self.shares = [FORWARD + (1 - FORWARD) * done / sum(sizes) for done in accumulate(sizes)]
        """Which share of the step's work is done when each bucket is ready; backward's work goes with the parameters."""
        self._parts = [asyncio.get_running_loop().create_future() for _ in buckets]
        self._means = asyncio.ensure_future(self._average())
        # A worker that died asks no more for its mean, and what befell it is nobody's news.
        self._means.add_done_callback(lambda means: means.cancelled() or means.exception())

    def again(self, met: Meeting, mine: np.ndarray) -> Overlap:
        """The whole gradient in the same buckets, among those who are left of the group."""
        group = asyncio.get_running_loop().create_future()
        group.set_result(met)
        repeated = Overlap(self._site, self.buckets, group)
        for number, bucket in enumerate(self.buckets):
            repeated.emit(number, mine[bucket])
        return repeated

    def emit(self, bucket: int, part: np.ndarray) -> None:
        if not self._parts[bucket].done():
            self._parts[bucket].set_result(part)

    async def mean(self) -> np.ndarray | None:
        """The members' mean gradient; None where there is no group."""
        return await self._means

    def cancel(self) -> None:
        """The step will not come to its end."""
        self._means.cancel()

    async def _average(self) -> np.ndarray | None:
        started: list[asyncio.Task] = []
        try:
            for number, part in enumerate(self._parts):
                mine, met = await part, await self._meeting
                if met is None:
                    return None
                bucket = replace(met, key=f"{met.key}, bucket {number}")
                started.append(asyncio.ensure_future(self._site.mean(bucket, mine)))
            means = await asyncio.gather(*started)
        finally:
            for task in started:
                task.cancel()
        return concat(means, self.buckets)
