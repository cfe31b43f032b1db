"""This machine, one process, wall clock: computations run in threads and release the GIL; on the CPU or one CUDA device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from joblib import cpu_count

from lib.cluster.base import Cluster, Main, Meeting
from lib.cluster.in_process import PartSlot, ProcessHandle, ProcessSite, ProcessWorld, mean
from lib.cluster.spec import Work
from lib.cluster.wall_clock import WallSite, in_loop, sleep_until
from lib.errors import BadOption
from lib.options.checked import Count


@dataclass(frozen=True, kw_only=True)
class LocalCluster(Cluster):
    """Real threads on this machine."""

    name: ClassVar = "local"
    clock: ClassVar = "wall"

    device: str = "cpu"
    """Where models, replicas and pipelines compute: "cpu", "cuda" or "cuda:1". The store stays in host memory."""
    threads: Count | None = None
    """Computations at the same time; None: as many as cores."""

    def __post_init__(self):
        super().__post_init__()
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise BadOption(f"local cluster: device {self.device!r} is none that torch knows") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise BadOption('local cluster: device="cuda", but torch sees no CUDA device here; use device="cpu"')

    def open(self, seed: int, workers: int) -> LocalWorld:
        return LocalWorld(self, seed)


class LocalHandle(ProcessHandle):
    """A part of this process. A call is a task, so that calls start in the order in which they were issued."""

    def __init__(self, caller: LocalSite, slot: PartSlot):
        super().__init__(caller, slot)
        self._generation = caller.context

    def _call(self, method: str, *args) -> Awaitable[Any]:
        function = getattr(self._slot.part, method)
        if not self._caller.fails:
            return asyncio.get_running_loop().create_task(function(*args))
        arrival = self._caller.delays.request_arrival(self._site.node)
        return self._slot.context.call(self._carry(arrival, function, args))

    async def _carry(self, arrival: float | None, function: Callable, args: tuple) -> Any:
        """Make a call of a node that may die, or whose messages may be late."""
        await sleep_until(arrival)
        if self._generation.ended:  # a dead caller's message never arrives, though its task has not ended yet
            raise asyncio.CancelledError
        result = await function(*args)
        await sleep_until(self._caller.delays.answer_arrival(self._site.node))
        return result


class LocalWorld(ProcessWorld):
    """An event loop for the parts, threads for their computations."""

    handle = LocalHandle

    def __init__(self, cluster: LocalCluster, seed: int):
        super().__init__(cluster, seed)
        self.device = torch.device(cluster.device)
        one_thread = {"initializer": torch.set_num_threads, "initargs": (1,)}
        self.pool = ThreadPoolExecutor(cluster.threads or cpu_count(), "lockstep", **one_thread)
        # Their own threads, so that the next batch is never queued behind computations.
        self.inputs = ThreadPoolExecutor(2, "lockstep-input", **one_thread)
        self._clock_offset = 0.0
        """Seconds to add to this process's clock: a resumed run has one clock over all its processes."""

    def site(self, node: str) -> LocalSite:
        if node not in self._sites:
            self._sites[node] = site = LocalSite(self, node)
            if self.failure_schedule.running:
                site.start_clock(asyncio.get_running_loop().time() - self.failure_schedule.start)
        return self._sites[node]

    async def restore(self, state: dict[str, Any]) -> None:
        await super().restore(state)
        self._clock_offset += state["clock"] - self.now()
        self.start_clock()

    def start_clock(self) -> None:
        super().start_clock()
        ago = asyncio.get_running_loop().time() - self.failure_schedule.start
        for site in self._sites.values():
            site.start_clock(ago)

    def now(self) -> float:
        return time.perf_counter() + self._clock_offset

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        self.report = progress or self.report
        try:
            return in_loop(lambda: main(self))
        finally:
            for pool in (self.pool, self.inputs):
                pool.shutdown(wait=True, cancel_futures=True)


class LocalSite(WallSite, ProcessSite):
    """A name and, on a CUDA device, a stream; all sites share the machine."""

    def __init__(self, world: LocalWorld, node: str):
        WallSite.__init__(self, world.cluster, world.seed, node, world.device)
        ProcessSite.__init__(self, world.cluster, node)
        self._world = world
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def now(self) -> float:
        return self._world.now()

    def _pool(self, work: Work | None) -> ThreadPoolExecutor:
        return self._world.inputs if work is None else self._world.pool

    def _enqueue(self, function: Callable, *args) -> Any:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            return function(*args)

    def _finish(self, function: Callable, *args) -> Any:
        result = self._enqueue(function, *args)
        if self._stream:
            self._stream.synchronize()  # others will read the result from their own streams
        return result

    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        if len(meeting.members) == 1:
            return mine.copy()
        return (await self._world.collectives.reduce(meeting, "mean", self.rank, mine, mean)).copy()

    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        return await self._world.collectives.reduce(meeting, "gather", self.rank, mine, list)

    def progress(self, samples: int) -> None:
        self._world.report(samples)
        if self._world.cluster.failures:
            self._world.failure_schedule.count_batch(self.node, self.count_batch())

    def _forget(self) -> None:
        self.objects = {}
