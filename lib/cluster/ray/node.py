"""One node of a Ray cluster: the actor that holds its parts, what they see of their world, and the handles that call them."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from lib.cluster.base import Cluster, Handle
from lib.cluster.board import Meeting
from lib.cluster.faults.wall_clock import MessageDelays, until
from lib.cluster.spec import Work
from lib.cluster.wall_site import WallSite
from lib.errors import MemberLost, NodeLost, first_cause

COLLECTIVE = timedelta(minutes=5)
"""A member of a group that has not come by then is taken for lost."""
MORTAL_COLLECTIVE = timedelta(seconds=30)
"""The same where members may die while their group forms: nothing else tells the others."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a node's process starts from."""

    incarnation: int
    """Which of the node's processes it is, from 1 on."""
    batches: int
    """Computed in those before."""
    ahead: float
    """By how much the run's clock says more than this machine's."""
    memory: str
    """What the memory is called that outlives a process of the run."""
    stands: dict[str, tuple[Any, int]]
    """Nodes that were started again with their parts, and where they are now."""


class Host:
    """A node: an actor that holds parts and runs their methods in the order of each caller's calls."""

    def __init__(self, cluster: Cluster, seed: int, node: str, start: Start, device: str, path: list[str]):
        # A user's own protocol or workload is found where the driver found it.
        sys.path.extend(entry for entry in path if entry not in sys.path)
        torch.set_num_threads(1)
        self.site = RaySite(cluster, seed, node, start, device)
        self._parts: dict[int, Any] = {}
        self._next: defaultdict[str, int] = defaultdict(int)
        self._early: dict[tuple[str, int], asyncio.Future] = {}

    async def create(self, number: int, part: type, args: tuple, again: bool = False) -> str:
        """Which machine it is on. `again`: it must find what outlived the process before."""
        self._parts[number] = made = part(self.site, *args)
        if again and not made.attached:
            raise NodeLost(self.site.node)
        import ray

        return ray.get_runtime_context().get_node_id()

    async def clear(self) -> None:
        self._parts.clear()
        gc.collect()  # what outlives this process outlives its parts no longer

    async def serve(self) -> None:
        """For ever: who waits for it hears of the process's end."""
        await asyncio.Event().wait()

    async def moved(self, node: str, stand: tuple[Any, int] | None) -> None:
        self.site.caller.moved(node, stand)

    async def call(self, caller: str, turn: int, number: int, method: str, *args) -> Any:
        # Ray may start an actor's async calls out of order; a pull must not overtake the push before it.
        if turn != self._next[caller]:
            self._early[caller, turn] = asyncio.get_running_loop().create_future()
            await self._early[caller, turn]
        self._next[caller] += 1
        running = asyncio.ensure_future(getattr(self._parts[number], method)(*args))
        await asyncio.sleep(0)  # let it start before the next in turn
        waiting = self._early.pop((caller, self._next[caller]), None)
        if waiting is not None:
            waiting.set_result(None)
        return await running

    async def begin(self, ago: float) -> None:
        self.site.begin(ago)

    async def go_on(self, ahead: float) -> None:
        """The run goes on in this process."""
        self.site.ahead = ahead

    async def doomed(self) -> int:
        """The number of batches after which this node stops."""
        return await self.site.stopped

    async def freeze(self) -> tuple[int, list[Any]]:
        """Stop here and now; the batches that were computed, and what the parts have written down."""
        self.site.frozen = True
        return self.site.batches, [part.record for part in self._parts.values() if hasattr(part, "record")]

    async def take_progress(self) -> int:
        samples, self.site.samples = self.site.samples, 0
        return samples

    async def join(self, where: tuple[str, int]) -> None:
        """Know the store at which the workers' process groups form."""
        self.site.store = distributed.TCPStore(*where)

    async def meet(self, meeting: Meeting) -> None:
        await self.site.collective(self.site.group, meeting)


Made = tuple[int, int, Coroutine]
"""A call: to which incarnation of a node, how many the caller had made to it before, and what it comes to."""


class Caller:
    """Who calls, and how often it has called each actor."""

    def __init__(self, name: str, road: MessageDelays | None = None):
        self.name, self.road = name, road
        """`road`: what befalls its messages, where nodes may die."""
        self.frozen = False
        self.turns: defaultdict[str, int] = defaultdict(int)
        self.stands: dict[str, tuple[Any, int] | None] = {}
        """Where nodes are now that died with parts that last, and in which incarnation; None: they never will be again."""
        self._asking: defaultdict[str, list[tuple[int, Callable[[], Made], asyncio.Future]]] = defaultdict(list)
        """Node -> the calls that its death met: each one's turn, how it is made again, and who gets it then."""

    def moved(self, node: str, stand: tuple[Any, int] | None) -> None:
        """A node is there again, or never will be; all calls that wait for it are made, in their order."""
        self.stands[node] = stand
        for _, ask, made in sorted(self._asking.pop(node, ()), key=itemgetter(0)):
            if not made.cancelled():
                made.set_result(stand and ask())

    async def again(self, node: str, incarnation: int, turn: int, ask: Callable[[], Made]) -> Made | None:
        """Make a call again that met the death of that incarnation, when the node is there; None: it never will be."""
        if node in self.stands and (self.stands[node] is None or self.stands[node][1] > incarnation):
            return self.stands[node] and ask()
        self._asking[node].append((turn, ask, made := asyncio.get_running_loop().create_future()))
        return await made


class RaySite(WallSite):
    """A node's process."""

    store: distributed.Store
    """Where this worker's process groups find their members."""

    def __init__(self, cluster: Cluster, seed: int, node: str, start: Start, device: str):
        super().__init__(cluster, seed, node, torch.device(device), start.batches)
        self.life, self.ahead, self._memory = start.incarnation - 1, start.ahead, start.memory
        self.samples = 0
        self.caller = Caller(
            f"{node}/{start.incarnation}", MessageDelays(cluster, seed, node) if cluster.fails else None
        )
        self.caller.stands |= start.stands
        self.stopped = asyncio.get_running_loop().create_future()
        self._groups: dict[tuple, Any] = {}
        self._threads = ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,))
        # Collectives of one process must run in one order, so they have one thread.
        self._collectives = ThreadPoolExecutor(1)

    @property
    def frozen(self) -> bool:
        """Whether this node has died, though its process is still there: nothing leaves it any more."""
        return self.caller.frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self.caller.frozen = frozen

    @property
    def batches(self) -> int:
        """Computed in this incarnation and those before."""
        return self._delay.health.batches

    def begin(self, ago: float) -> None:
        """The training started so many seconds ago."""
        self._delay.begin(ago)
        if self.caller.road:
            self.caller.road.begin(ago)

    def now(self) -> float:
        return time.time() + self.ahead

    def _pool(self, work: Work | None) -> ThreadPoolExecutor:
        return self._threads

    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        if len(meeting.members) == 1:
            return mine.copy()
        return await self.collective(self._mean, meeting, mine)

    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        if len(meeting.members) == 1:
            return [mine]
        return await self.collective(self._gather, meeting, mine)

    async def collective(self, function: Callable, meeting: Meeting, *args) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._collectives, function, meeting, *args)
        except RuntimeError as error:
            if self.caller.road is None:
                raise
            # Closing the group's connections tells the members who wait for this one.
            self._groups.pop(_identity(meeting), None)
            raise MemberLost(f"a member of {meeting.members} died: {error}") from error

    def _mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        tensor = torch.tensor(mine, device=self.device)
        self.group(meeting).allreduce(tensor).wait()
        return tensor.div_(len(meeting.members)).cpu().numpy()

    def _gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        group = self.group(meeting)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in meeting.members]
        group.allgather([sizes], [torch.tensor([len(mine)], device=self.device)]).wait()
        longest = max(int(size) for size in sizes)
        padded = np.zeros(longest, mine.dtype)
        padded[: len(mine)] = mine
        parts = [
            torch.empty(longest, dtype=torch.from_numpy(padded).dtype, device=self.device) for _ in meeting.members
        ]
        group.allgather([parts], [torch.from_numpy(padded).to(self.device)]).wait()
        return [part[: int(size)].cpu().numpy() for part, size in zip(parts, sizes, strict=True)]

    def group(self, meeting: Meeting) -> Any:
        """One process group for each distinct set of members, made by them alone when they first meet.

        `new_group(use_local_synchronization=True)` would name a group by how many its process made before, so members
        that were in different numbers of groups would wait for each other for ever."""
        identity = _identity(meeting)
        if identity not in self._groups:
            kind = distributed.ProcessGroupNCCL if self.device.type == "cuda" else distributed.ProcessGroupGloo
            store = distributed.PrefixStore("-".join(map(str, identity)), self.store)
            rank = meeting.members.index(self.rank)
            patience = COLLECTIVE if self.caller.road is None else MORTAL_COLLECTIVE
            self._groups[identity] = kind(store, rank, len(meeting.members), patience)
        return self._groups[identity]

    def outliving(self, key: str, make: Callable[[str | None], Any]) -> Any:
        return make(f"{self._memory}-{key}")

    def progress(self, samples: int) -> None:
        self.samples += samples
        if self.caller.road is not None:
            batches = self._delay.computed()
            if self._delay.health.dies_after(batches):
                self.frozen = True
                self.stopped.set_result(batches)


class RayHandle(Handle):
    """A part in an actor. Arrays travel as numpy's, which Ray moves without pickling them."""

    def __init__(self, actor: Any, number: int, node: str, incarnation: int, lasts: bool, caller: Caller):
        self._where, self._number, self._lasts = (actor, incarnation), number, lasts
        self._node, self._caller = node, caller

    def __reduce__(self):
        return RayHandle, (self._where[0], self._number, self._node, self._where[1], self._lasts, Caller("unbound"))

    def seen_from(self, site: RaySite) -> RayHandle:
        return RayHandle(self._where[0], self._number, self._node, self._where[1], self._lasts, site.caller)

    def _call(self, method: str, args: tuple):
        ask = partial(self._made, method, args)
        return asyncio.ensure_future(self._lasting(ask(), ask) if self._lasts else ask()[-1])

    def _made(self, method: str, args: tuple) -> Made:
        actor, incarnation = max(self._where, self._caller.stands.get(self._node) or self._where, key=itemgetter(1))
        turn = self._caller.turns[f"{self._node}/{incarnation}"]
        self._caller.turns[f"{self._node}/{incarnation}"] += 1
        ask = partial(actor.call.remote, self._caller.name, turn, self._number, method, *args)
        if self._caller.road is None:
            return incarnation, turn, self._answer(ask())
        return incarnation, turn, self._send(self._caller.road.there(self._node), ask)

    async def _lasting(self, made: Made | None, ask: Callable[[], Made]) -> Any:
        """What a call comes to that is made again as often as the node dies of it."""
        while True:
            incarnation, turn, call = made
            try:
                return await call
            except NodeLost as lost:
                made = None if lost.node != self._node else await self._caller.again(lost.node, incarnation, turn, ask)
                if made is None:
                    raise

    async def _answer(self, asked: Awaitable) -> Any:
        import ray

        try:
            return await asked
        except ray.exceptions.RayActorError as error:
            raise NodeLost(self._node) from error
        except ray.exceptions.RayTaskError as error:
            raise cause_of(error) from error

    async def _send(self, arrival: float | None, ask: Callable[[], Awaitable]) -> Any:
        """Call a node that may die when it is planned, from one that may."""
        await until(arrival)
        if self._caller.frozen:
            await asyncio.Event().wait()
        result = await self._answer(ask())
        await until(self._caller.road.back(self._node))
        return result


def cause_of(error: BaseException) -> BaseException:
    """What went wrong in the first place: an error may have passed through several actors and groups of tasks."""
    error = first_cause(error)
    inner = getattr(error, "cause", None)
    return cause_of(inner) if isinstance(inner, BaseException) else error


def _identity(meeting: Meeting) -> tuple:
    """What a process group is known by: its members, each in one of its incarnations."""
    return (*meeting.members, "incarnations", *meeting.incarnations) if any(meeting.incarnations) else meeting.members
