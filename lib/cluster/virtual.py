"""A modelled cluster in virtual time: real gradients, modelled seconds, the same bits every time.

A node has lanes that compute and an interface that sends and receives, each a queue in virtual time.

The event loop runs asyncio's own tasks, locks, events, conditions and queues, and nothing that needs the outside world. When
nothing is ready, its clock jumps to the next timer. One thread, one heap ordered by (time, order of scheduling): the same program
gives the same run to the bit.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import os
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import yaml

from lib.cluster.base import Cluster, Main, Meeting, nbytes, run_in_thread, worker_rank
from lib.cluster.collectives import COLLECTIVES, all_gather, schedule_transfers, transfers
from lib.cluster.failures import MessageFailures
from lib.cluster.in_process import InProcessHandle, InProcessSite, InProcessWorld, NodeContext, mean, private_copy
from lib.cluster.spec import Link, Network, Node, Uplink, Usage, Work, node_usage, send
from lib.errors import BadOption, Deadlock, unknown
from lib.options.checked import to_plain
from lib.options.yaml_source import load, read


class _Callback(partial):
    """A callback that may be cancelled. The loop asks each whether it is: `bool()` says no without a frame of Python."""

    cancelled = staticmethod(bool)

    def cancel(self) -> None:
        self.cancelled = lambda: True


class VirtualLoop(asyncio.AbstractEventLoop):
    """`time()` is virtual. A loop that can never wake again raises `Deadlock` with the names of what waits."""

    get_debug = is_closed = staticmethod(bool)  # False; asyncio asks for each future

    def __init__(self):
        self.now = 0.0
        self.create_future, self.create_task = (partial(kind, loop=self) for kind in (asyncio.Future, asyncio.Task))
        self._ready: deque[_Callback | asyncio.Future] = deque()
        """What is to be called, and futures of sleeps that are over."""
        self._timers: list[tuple[float, int, _Callback | asyncio.Future]] = []
        self._scheduled = 0
        self._error: BaseException | None = None
        self._interrupted = False
        self.events = 0

    def time(self) -> float:
        return self.now

    def set_time(self, now: float) -> None:
        """Set the clock, also backwards; no timer may be waited for."""
        if not all(callback.cancelled() for _, _, callback in self._timers):
            raise RuntimeError("time cannot be set while timers are waited for")
        self._timers.clear()
        self.now = now

    def call_soon(self, callback, *args, context=None) -> _Callback:
        callback = _Callback((contextvars.copy_context() if context is None else context).run, callback, *args)
        self._ready.append(callback)
        return callback

    def call_at(self, when, callback, *args, context=None) -> _Callback:
        callback = _Callback((contextvars.copy_context() if context is None else context).run, callback, *args)
        self._scheduled += 1
        heapq.heappush(self._timers, (when, self._scheduled, callback))
        return callback

    def call_later(self, delay, callback, *args, context=None) -> _Callback:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def sleep_until(self, when: float) -> asyncio.Future:
        """Done at that time."""
        future = asyncio.Future(loop=self)
        self._scheduled += 1
        heapq.heappush(self._timers, (when, self._scheduled, future))
        return future

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._error = self._error or context.get("exception") or RuntimeError(context.get("message"))

    def interrupt(self) -> None:
        """Stop as soon as the running callback ends; safe to call from another thread."""
        self._interrupted = True

    def run_until_complete(self, main: Coroutine) -> Any:
        events._set_running_loop(self)
        try:
            task = self.create_task(main, name="main")
            try:
                self._run(task)
            finally:
                self._cancel_remaining_tasks()
            return task.result()
        finally:
            events._set_running_loop(None)

    def _run(self, main: asyncio.Task) -> None:
        ready, timers = self._ready, self._timers
        while not main.done():
            if self._interrupted:
                raise KeyboardInterrupt
            if self._error is not None:
                raise self._error
            if not ready:
                while timers and timers[0][2].cancelled():  # a cancelled timer moves no clock
                    heapq.heappop(timers)
                if not timers:
                    raise Deadlock(self._describe_waiting_tasks(main))
                self.now, _, callback = heapq.heappop(timers)
                ready.append(callback)
                while timers and timers[0][0] == self.now:
                    ready.append(heapq.heappop(timers)[2])
            self.events += len(ready)
            for _ in range(len(ready)):
                callback = ready.popleft()
                if callback.cancelled():
                    continue
                if type(callback) is asyncio.Future:
                    callback.set_result(None)
                else:
                    callback()

    def _cancel_remaining_tasks(self) -> None:
        rest = [task for task in asyncio.all_tasks(self) if not task.done()]
        for task in rest:
            task.cancel()
        # A task that is cancelled may only clean up: its timers are not waited for.
        while self._ready:
            callback = self._ready.popleft()
            if isinstance(callback, _Callback) and not callback.cancelled():
                callback()
        self._timers.clear()

    def _describe_waiting_tasks(self, main: asyncio.Task) -> str:
        tasks = asyncio.all_tasks(self)
        waiting = sorted(_describe_task(task) for task in (tasks - {main} or tasks))
        shown = "\n  ".join(waiting[:20]) + (f"\n  and {len(waiting) - 20} more" if len(waiting) > 20 else "")
        return f"deadlock at virtual time {self.now:.6f} s: nothing is ready, no timer is set; waiting are\n  {shown}"


def _describe_task(task: asyncio.Task) -> str:
    """A task's name and the coroutines that it is in, outermost first."""
    chain, awaited = [], task.get_coro()
    while hasattr(awaited, "cr_code"):
        chain.append(f"{awaited.cr_code.co_qualname}:{awaited.cr_frame.f_lineno}" if awaited.cr_frame else "?")
        awaited = awaited.cr_await
    return f"{task.get_name()} in {' > '.join(chain)}"


HEADER = 64
"""Bytes of a message in addition to its arrays."""


@dataclass(frozen=True, kw_only=True)
class VirtualCluster(Cluster):
    """Up to thousands of modelled workers on one thread of this machine."""

    name: ClassVar = "virtual"
    clock: ClassVar = "virtual"

    worker: Node = field(default=Node())
    """What each worker runs on."""
    server: Node = field(default=Node(cores=8, bandwidth=3.125e9))
    """What each server runs on, and every node that is neither."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Nodes that differ, by name: "worker3", "server0", "sync0", "reader0", "embedding0",
    "master"."""
    links: tuple[Link, ...] = ()
    """Private connections of two nodes, in addition to their network interfaces."""
    uplinks: tuple[Uplink, ...] = ()
    """What several nodes share on their way to the others: of a machine of several GPUs, or of a rack."""
    collective: str = "auto"
    """How groups average: ring or tree, in chunks; auto, which of these two takes less time for the vector, as libraries choose;
    whole-ring or whole-tree, hop by hop as DS-Sync counts; hierarchical, in chunks, those behind one uplink first, then between
    uplinks."""

    def __post_init__(self):
        super().__post_init__()
        if self.collective not in COLLECTIVES:
            raise unknown("collective", self.collective, COLLECTIVES)
        for where, names in (
            ("nodes", self.nodes),
            ("links.ends", [end for link in self.links for end in link.ends]),
            ("uplinks.nodes", behind := [node for uplink in self.uplinks for node in uplink.nodes]),
        ):
            for name in names:
                self._check_node(where, name)
        if twice := [node for node in behind if behind.count(node) > 1]:
            raise BadOption(f"virtual cluster: uplinks: {twice[0]} is behind one uplink, and not behind two")

    @classmethod
    def load(cls, path: str | Path) -> VirtualCluster:
        """A specification from YAML; an error names the file and the field's path."""
        return read(cls, load(path), path)

    @classmethod
    def read(cls, data: Any) -> VirtualCluster:
        if isinstance(data, Mapping):  # `calibrate` adds to the nodes what they were made of
            data = {name: value for name, value in data.items() if name not in ("measured", "provenance")}
        return super().read({} if data is None else data)

    def dump(self) -> str:
        """The specification as YAML, without what is as by default."""
        return yaml.safe_dump(to_plain(self), sort_keys=False)

    def node_spec(self, name: str) -> Node:
        role = name.rstrip("0123456789")
        return self.nodes.get(name, self.worker if role == "worker" else self.server)

    def open(self, seed: int, workers: int) -> VirtualWorld:
        return VirtualWorld(self, seed, workers)


class VirtualHandle(InProcessHandle):
    """Arguments travel to the part's node and the result travels back, at the cost of their bytes."""

    def _call(self, method: str, *args) -> Awaitable[Any]:
        caller, site, context = self._caller, self._site, self._slot.context
        function = getattr(self._slot.part, method)
        if caller is site:
            return function(*args)
        if caller.world.clock_paused:
            return context.call(function(*args)) if site.may_fail else function(*args)
        return self._carry(caller.send(site, nbytes(args)), context, function, args)

    async def _carry(self, arrival: float, context: NodeContext, function: Callable, args: tuple) -> Any:
        caller, site = self._caller, self._site
        await caller.sleep_until(arrival)
        result = await (context.call(function(*args)) if site.may_fail else function(*args))
        size = 0 if result is None else nbytes(result)  # as of most pushes
        await caller.sleep_until(site.send(caller, size))
        return result


class VirtualWorld(InProcessWorld):
    """The clock, the network and the nodes of one virtual run."""

    handle = VirtualHandle

    def __init__(self, cluster: VirtualCluster, seed: int, workers: int):
        super().__init__(cluster, seed)
        self.loop = VirtualLoop()
        failures_between = partial(MessageFailures, cluster.failures, cluster.mishaps, seed)
        self.network = Network(cluster.links, cluster.uplinks, failures_between)
        self.transfers = partial(transfers, cluster.collective)
        self.clock_paused = False
        self.objects: dict[str, Any] = {}

    def site(self, node: str) -> VirtualSite:
        if node not in self._sites:
            self._sites[node] = VirtualSite(self, node)
        return self._sites[node]

    def now(self) -> float:
        return self.loop.now

    @contextmanager
    def paused_clock(self) -> Iterator[None]:
        self.clock_paused = True
        try:
            yield
        finally:
            self.clock_paused = False

    def state(self) -> dict[str, Any]:
        """The clock, the failures, the books of idle interfaces, and the calls of each slowdown.

        A slowdown's state follows from its calls, so `restore` makes them again.
        """
        sites = {name: {"computed": site.computed, "calls": np.array(site.calls)} for name, site in self._sites.items()}
        return {**super().state(), "sites": sites, "network": self.network.state()}

    async def restore(self, state: dict[str, Any]) -> None:
        for name, kept in state["sites"].items():
            site = self.site(name)
            site.computed = kept["computed"]
            site.replay_slowdown_calls(kept["calls"])
        self.network.restore(state["network"])
        self.failure_schedule.pause()
        self.loop.set_time(state["now"])
        await super().restore(state)

    def events(self) -> int:
        return self.loop.events

    def usage(self) -> list[Usage]:
        nodes = [node_usage(site.node, site.interface, site.computed, site.spec.lanes) for site in self._sites.values()]
        links = [node_usage(" - ".join(ends), pair[0]) for ends, pair in self.network.links.items()]
        uplinks = [node_usage(name, each) for name, each in self.network.uplinks.items()]
        return [*nodes, *links, *uplinks]

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        self.report = progress or self.report
        return run_in_thread(lambda: self._run(main), self.loop.interrupt)

    def _run(self, main: Main) -> Any:
        # One thread of torch: reductions split over threads would make the bits depend on their number.
        torch.set_num_threads(1)
        if self.cluster.device != "cpu":  # nor may sums be in the order in which a device's threads come to them
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        return self.loop.run_until_complete(main(self))


class VirtualSite(InProcessSite):
    """What a node's parts see, and what the node has done."""

    def __init__(self, world: VirtualWorld, node: str):
        super().__init__(world, node)
        self.node, self.rank = node, worker_rank(node)
        self.device = torch.device(world.cluster.device)
        self.spec = world.cluster.node_spec(node)
        self.failures = world.cluster.failures_of(world.seed, node)
        self.interface = world.network.add_interface(node, self.spec.bandwidth, self.spec.latency)
        self.computed = 0.0
        """Seconds that its lanes were busy, summed."""
        self.calls: list[tuple[float, float]] = []
        """The slowdown's calls so far, in a run with checkpoints."""
        self.objects = world.objects  # of the whole world: `compute` runs a function to its end before any other
        self._loop, self._lanes = world.loop, [0.0] * self.spec.lanes
        self.now, self.sleep_until = partial(getattr, world.loop, "now"), world.loop.sleep_until
        self._slow_down = world.cluster.slowdown_function(world.seed, node)

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self._loop.now + seconds)

    async def compute(
        self, work: Work | None, function: Callable, *args, after: Collection[asyncio.Future] = ()
    ) -> Any:
        if work is None:
            return function(*args)
        start, seconds = self._occupy_lane(work)
        # The function sees its node's memory as it is when its turn comes.
        if start > self._loop.now:
            await self.sleep_until(start)
        if after:
            await asyncio.wait(after)
            if (now := self._loop.now) > start:
                start, seconds = now, self._seconds(work, now)
        result = function(*args)
        if seconds:
            await self.sleep_until(start + seconds)
        return result

    launch = compute

    async def prepare(self, samples: int, function: Callable, *args) -> Any:
        return await self.compute(Work(samples=samples) if self.spec.reading else None, function, *args)

    async def compute_in_stages(
        self, work: Work, shares: Sequence[float], emit: Callable[[int, Any], None], function: Callable, *args
    ) -> Any:
        start, seconds = self._occupy_lane(work)
        if start > self._loop.now:
            await self.sleep_until(start)
        result = function(*args, lambda k, part: self._loop.call_at(start + shares[k] * seconds, emit, k, part))
        await self.sleep_until(start + seconds)
        return result

    def _occupy_lane(self, work: Work) -> tuple[float, float]:
        """Take the lane that is free first; from when, and for how long."""
        start = max(heapq.heappop(self._lanes), self._loop.now)
        seconds = self._seconds(work, start)
        heapq.heappush(self._lanes, start + seconds)
        self.computed += seconds
        return start, seconds

    def _seconds(self, work: Work, start: float) -> float:
        """How long it takes from that start on, next to the computations of the other lanes."""
        running = 1 + sum(free > start for free in self._lanes) if self.spec.memory else 1
        seconds = self.spec.seconds(work, running)
        if self._slow_down:
            if self.world.checkpoints:
                self.calls.append((start, seconds))
            seconds = self._slow_down(start, seconds)
        if outages := self.failures.outages:
            return outages.stretch(start - self.world.failure_schedule.start, seconds)
        return seconds

    def replay_slowdown_calls(self, calls: np.ndarray) -> None:
        """Make these calls of the slowdown again, on an idle node."""
        for start, seconds in calls[len(self.calls) :].tolist():
            self.calls.append((start, seconds))
            self._slow_down(start, seconds)
        self._lanes = [0.0] * self.spec.lanes

    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        if len(meeting.members) == 1:
            return private_copy(mine)
        return private_copy(await self._run_collective(meeting, "mean", mine, mean, self.world.transfers))

    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        return await self._run_collective(meeting, "gather", mine, list, all_gather)

    def _reset_after_death(self) -> None:
        self._lanes = [0.0] * self.spec.lanes

    def send(self, other: VirtualSite, size: int) -> float:
        """Queue a message to another node and return when it has arrived."""
        network, now = self.world.network, self._loop.now
        ends = network.links.get((self.node, other.node)) or (self.interface, other.interface)
        arrival = send(*ends, now, size + HEADER)
        if not self.may_fail:
            return arrival
        start = self.world.failure_schedule.start
        return start + network.message_failures(self.node, other.node).arrival_time(now - start, arrival - start)

    async def _run_collective(
        self, meeting: Meeting, kind: str, mine: np.ndarray, function: Callable, transfers: Callable
    ) -> Any:
        """What `function` makes of the members' arrays, once this member is done with the transfers of so many bytes a member."""

        def together(arrays: list[np.ndarray]):
            members = [self.world.network.interfaces[f"worker{rank}"] for rank in meeting.members]
            steps = transfers(members, sum(array.nbytes for array in arrays) / len(arrays))
            return function(arrays), schedule_transfers(steps, members, np.full(len(members), self._loop.now))

        result, done = await self.world.collectives.reduce(meeting, kind, self.rank, mine, together)
        await self.sleep_until(done[meeting.members.index(self.rank)])
        return result
