"""A node on a wall clock, in this process or in one of its own."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import Any

import torch

from lib.cluster.base import Cluster, Site, rank_of
from lib.cluster.faults.wall_clock import InjectedDelays
from lib.cluster.spec import Work


class WallSite(Site):
    """Small computations run on the event loop, others in threads, as slowly as they are to be."""

    def __init__(self, cluster: Cluster, seed: int, node: str, device: torch.device, batches: int = 0):
        self.node, self.device = node, device
        self.rank = rank_of(node)
        self._delay = InjectedDelays(cluster, seed, node, device, batches)
        self._objects: dict[str, Any] = {}

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def compute(
        self, work: Work | None, function: Callable, *args, after: Collection[asyncio.Future] = ()
    ) -> Any:
        if after:
            await asyncio.wait(after)
        return await self._run(work, self._computed, function, *args)

    async def launch(self, work: Work | None, function: Callable, *args) -> Any:
        if (
            work is None and self.device.type == "cpu"
        ):  # there is nobody to wait for, and a thread costs more than a copy
            return function(*args)
        return await self._run(work, self._launched, function, *args)

    @abstractmethod
    def _pool(self, work: Work | None) -> Executor:
        """The threads for it."""

    async def _run(self, work: Work | None, way: Callable, *args) -> Any:
        if self._delay.at_once(work):
            return way(*args)
        return await self._delay.run(self._pool(work), work, way, *args)

    def _computed(self, function: Callable, *args) -> Any:
        return self._launched(function, *args)

    def _launched(self, function: Callable, *args) -> Any:
        return function(*args)

    def shared(self, key: str, make: Callable[[], Any]) -> Any:
        """One for each node: computations of different nodes run at the same time."""
        if key not in self._objects:
            self._objects[key] = make()
        return self._objects[key]
