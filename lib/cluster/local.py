"""This machine, one process, wall clock: computations run in threads and release the GIL; on the CPU or one CUDA device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from joblib import cpu_count

from lib.cluster.base import Cluster, Main, in_thread
from lib.cluster.board import Meeting, mean
from lib.cluster.faults.failures import check_wall
from lib.cluster.faults.nodes import Health, NodeContext
from lib.cluster.faults.wall_clock import MessageDelays, until
from lib.cluster.one_process import ProcessHandle, ProcessSite, ProcessWorld, Stand
from lib.cluster.spec import Work
from lib.cluster.wall_site import WallSite
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
        check_wall(self.failures, self.name)

    def open(self, seed: int, workers: int) -> LocalWorld:
        return LocalWorld(self, seed)


class LocalHandle(ProcessHandle):
    """A part of this process. A call is a task, so that calls start in the order in which they were issued."""

    def __init__(self, here: LocalSite, stand: Stand):
        super().__init__(here, stand)
        self._caller = here.context

    def _ask(self, method: str, args: tuple) -> Awaitable[Any]:
        function = getattr(self._stand.part, method)
        if not self._here.fails:
            return asyncio.get_running_loop().create_task(function(*args))
        arrival = self._here.road.there(self._there.node)
        return self._stand.context.call(self._carry(arrival, function, args))

    async def _carry(self, arrival: float | None, function: Callable, args: tuple) -> Any:
        """On a node that may die, or whose messages may be late."""
        await until(arrival)
        if self._caller.over:  # what was on the way when it died, never arrives; who waits for it has not ended yet
            raise asyncio.CancelledError
        result = await function(*args)
        await until(self._here.road.back(self._there.node))
        return result


class LocalWorld(ProcessWorld):
    """An event loop for the parts, threads for their computations."""

    handle = LocalHandle

    def __init__(self, cluster: LocalCluster, seed: int):
        super().__init__(cluster, seed)
        self.device = torch.device(cluster.device)
        self.pool = ThreadPoolExecutor(
            cluster.threads or cpu_count(),
            thread_name_prefix="lockstep",
            initializer=torch.set_num_threads,
            initargs=(1,),
        )
        # Apart, so that making the next batch never stands in a queue behind computations.
        self.inputs = ThreadPoolExecutor(2, "lockstep-input", initializer=torch.set_num_threads, initargs=(1,))
        self._ahead = 0.0
        """What makes one clock of those of the processes that a run was in."""

    def site(self, node: str) -> LocalSite:
        if node not in self._sites:
            self._sites[node] = site = LocalSite(self, node)
            if self.failure_schedule.running:
                site.begin(asyncio.get_running_loop().time() - self.failure_schedule.start)
        return self._sites[node]

    async def restore(self, state: dict[str, Any]) -> None:
        await super().restore(state)
        self._ahead += state["clock"] - self.now()
        self.start_clock()

    def start_clock(self) -> None:
        super().start_clock()
        ago = asyncio.get_running_loop().time() - self.failure_schedule.start
        for site in self._sites.values():
            site.begin(ago)

    def now(self) -> float:
        return time.perf_counter() + self._ahead

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        self.report = progress or self.report
        try:
            return in_loop(lambda: main(self))
        finally:
            for pool in (self.pool, self.inputs):
                pool.shutdown(wait=True, cancel_futures=True)


def in_loop(main: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a coroutine function, in an event loop of another thread; Ctrl-C cancels it."""
    started: Future = Future()

    async def body() -> Any:
        started.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await main()

    def interrupt() -> None:
        with suppress(TimeoutError, RuntimeError):  # the loop is not there yet, or closed: the run has just ended
            loop, task = started.result(5)
            loop.call_soon_threadsafe(task.cancel)

    return in_thread(lambda: asyncio.run(body()), interrupt)


class LocalSite(WallSite, ProcessSite):
    """A name and, on a CUDA device, a stream; all sites share the machine."""

    def __init__(self, world: LocalWorld, node: str):
        super().__init__(world.cluster, world.seed, node, world.device)
        self._world, self.fails = world, world.cluster.fails
        self.context = NodeContext(node)
        self.road = MessageDelays(world.cluster, world.seed, node)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def now(self) -> float:
        return self._world.now()

    def _pool(self, work: Work | None) -> ThreadPoolExecutor:
        return self._world.inputs if work is None else self._world.pool

    def _launched(self, function: Callable, *args) -> Any:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            return function(*args)

    def _computed(self, function: Callable, *args) -> Any:
        result = self._launched(function, *args)
        if self._stream:
            self._stream.synchronize()  # others will read the result from their own streams
        return result

    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        if len(meeting.members) == 1:
            return mine.copy()
        return (await self._world.board.combine(meeting, "mean", self.rank, mine, mean)).copy()

    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        return await self._world.board.combine(meeting, "gather", self.rank, mine, list)

    def progress(self, samples: int) -> None:
        self._world.report(samples)
        if self._world.cluster.failures:
            self._world.failure_schedule.computed(self.node, self._delay.computed())

    @property
    def health(self) -> Health:
        return self._delay.health

    def begin(self, ago: float) -> None:
        """The training started so many seconds ago."""
        self._delay.begin(ago)
        self.road.begin(ago)

    def _emptied(self) -> None:
        self._objects = {}
