"""A wall clock: nodes in threads of this process, or in processes of their own, where slow workers, hangs and late messages
really wait; and the cluster that is this machine, on the CPU or one CUDA device.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from joblib import cpu_count

from lib.cluster.base import Cluster, Main, Meeting, Site, run_in_thread, worker_rank
from lib.cluster.failures import TICK, MessageFailures
from lib.cluster.in_process import InProcessHandle, InProcessSite, InProcessWorld, PartSlot, mean
from lib.cluster.spec import Work
from lib.options.checked import Count

INLINE = 1e5
"""Operations or bytes below which a computation runs on the event loop: a thread costs more than it gains."""


class WallClockSite(Site):
    """A node whose small computations run on the event loop and whose others run in threads.

    A slowed computation ends when the slowdown would have it end on a worker that takes as long, undisturbed, as the shortest
    computation so far took of its processor. What contention on this machine costs is hidden in that wait, if the wait is longer.
    The first computation is neither slowed nor counted: it compiles and allocates.
    """

    threads: Executor
    input_threads: Executor
    """For computations, and for what has no modelled cost."""

    def __init__(self, cluster: Cluster, seed: int, node: str, device: torch.device, batches: int = 0):
        """`batches`: the number that the node had computed in its generations before."""
        self.node, self.device = node, device
        self.rank = worker_rank(node)
        self.failures = cluster.failures_of(seed, node, batches)
        self.delays = MessageDelays(cluster, seed, node)
        self._stretch = cluster.slowdown_function(seed, node)
        self._processor_time = time.thread_time if device.type == "cpu" else time.perf_counter
        self._started: float | None = None
        self._shortest, self._warm = math.inf, False
        self.objects = {}

    def start_clock(self, ago: float) -> None:
        """The training started so many seconds ago."""
        self._started = time.perf_counter() - ago
        self.delays.start_clock(ago)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def compute(
        self, work: Work | None, function: Callable, *args, after: Collection[asyncio.Future] = ()
    ) -> Any:
        if after:
            await asyncio.wait(after)
        return await self._run(work, function, *args)

    async def launch(self, work: Work | None, function: Callable, *args) -> Any:
        if work is None and self.device.type == "cpu":  # a thread would cost more than a copy
            return function(*args)
        return await self._run(work, function, *args)

    def _too_small_for_thread(self, work: Work | None) -> bool:
        """Whether a computation is too small for a thread and for a slowdown."""
        return work is not None and work.flops < INLINE and work.bytes < INLINE and not self.failures.outages

    async def _run(self, work: Work | None, function: Callable, *args) -> Any:
        if self._too_small_for_thread(work):
            return function(*args)
        start = time.perf_counter()
        if self._started is None:
            self._started = start
        threads = self.input_threads if work is None else self.threads
        running = asyncio.get_running_loop().run_in_executor(threads, self._measure, function, args)
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


class MessageDelays:
    """What a wall clock adds to the messages between one node and the others, each way its own. Times are the event loop's."""

    def __init__(self, cluster: Cluster, seed: int, source: str):
        self._cluster, self._seed, self._source = cluster, seed, source
        self._started: float | None = None
        """When the training started: no message is late before."""
        self._connections: dict[tuple[str, str], MessageFailures] = {}

    def start_clock(self, ago: float = 0.0) -> None:
        """The training started so many seconds ago."""
        self._started = asyncio.get_running_loop().time() - ago

    def arrival_time(self, other: str, answer: bool = False) -> float | None:
        """When a message to a node, or its `answer`, arrives that is sent now; None: at once. No message overtakes another."""
        source, target = (other, self._source) if answer else (self._source, other)
        if self._started is None:
            return None
        if (source, target) not in self._connections:
            plan = self._cluster.failures, self._cluster.mishaps
            self._connections[source, target] = MessageFailures(*plan, self._seed, source, target)
        connection = self._connections[source, target]
        if not connection:
            return None
        now = asyncio.get_running_loop().time() - self._started
        return self._started + connection.arrival_time(now, now + TICK)


async def sleep_until(when: float | None) -> None:
    """Sleep to a moment of the event loop's clock: sleepers wake in the order of their moments, however late they began."""
    if when is None:
        return
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.call_at(when, lambda: woken.done() or woken.set_result(None))
    await woken


def run_in_event_loop_thread(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function in an event loop of another thread and return its result; Ctrl-C cancels it."""
    started: Future = Future()

    async def body() -> Any:
        started.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await main()

    def interrupt() -> None:
        with suppress(TimeoutError, RuntimeError):  # the loop is not there yet, or closed: the run has just ended
            loop, task = started.result(5)
            loop.call_soon_threadsafe(task.cancel)

    return run_in_thread(lambda: asyncio.run(body()), interrupt)


@dataclass(frozen=True, kw_only=True)
class LocalCluster(Cluster):
    """Real threads on this machine."""

    name: ClassVar = "local"
    clock: ClassVar = "wall"

    threads: Count | None = None
    """Computations at the same time; None: as many as cores."""

    def open(self, seed: int, workers: int) -> LocalWorld:
        return LocalWorld(self, seed)


class LocalHandle(InProcessHandle):
    """A part of this process. A call is a task, so that calls start in the order in which they were issued."""

    def __init__(self, caller: LocalSite, slot: PartSlot):
        super().__init__(caller, slot)
        self._generation = caller.context

    def _call(self, method: str, *args) -> Awaitable[Any]:
        function = getattr(self._slot.part, method)
        if not self._caller.may_fail:
            return asyncio.get_running_loop().create_task(function(*args))
        arrival = self._caller.delays.arrival_time(self._site.node)
        return self._slot.context.call(self._carry(arrival, function, args))

    async def _carry(self, arrival: float | None, function: Callable, args: tuple) -> Any:
        """Make a call of a node that may die, or whose messages may be late."""
        await sleep_until(arrival)
        if self._generation.ended:  # a dead caller's message never arrives, though its task has not ended yet
            raise asyncio.CancelledError
        result = await function(*args)
        await sleep_until(self._caller.delays.arrival_time(self._site.node, answer=True))
        return result


class LocalWorld(InProcessWorld):
    """An event loop for the parts, threads for their computations."""

    handle = LocalHandle

    def __init__(self, cluster: LocalCluster, seed: int):
        super().__init__(cluster, seed)
        self.device = torch.device(cluster.device)
        one_thread = {"initializer": torch.set_num_threads, "initargs": (1,)}
        self.threads = ThreadPoolExecutor(cluster.threads or cpu_count(), "lockstep", **one_thread)
        # Their own threads, so that the next batch is never queued behind computations.
        self.input_threads = ThreadPoolExecutor(max(2, cpu_count() // 2), "lockstep-input", **one_thread)
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
        self.start_failure_clock()

    def start_failure_clock(self) -> None:
        super().start_failure_clock()
        ago = asyncio.get_running_loop().time() - self.failure_schedule.start
        for site in self._sites.values():
            site.start_clock(ago)

    def now(self) -> float:
        return time.perf_counter() + self._clock_offset

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        self.report = progress or self.report
        try:
            return run_in_event_loop_thread(lambda: main(self))
        finally:
            for pool in (self.threads, self.input_threads):
                pool.shutdown(wait=True, cancel_futures=True)


class LocalSite(WallClockSite, InProcessSite):
    """A name; all sites share the machine, and a device's stream, which computes in the order of the launches: no part waits for
    another's arrays."""

    def __init__(self, world: LocalWorld, node: str):
        WallClockSite.__init__(self, world.cluster, world.seed, node, world.device)
        InProcessSite.__init__(self, world, node)
        self.threads, self.input_threads = world.threads, world.input_threads

    def now(self) -> float:
        return self.world.now()

    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        if len(meeting.members) == 1:
            return mine.copy()
        return (await self.world.collectives.reduce(meeting, "mean", self.rank, mine, mean)).copy()

    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        return await self.world.collectives.reduce(meeting, "gather", self.rank, mine, list)

    def _reset_after_death(self) -> None:
        self.objects = {}
