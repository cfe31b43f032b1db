"""One node of a Ray cluster: the actor that holds its parts, what they see of their world, the handles that call them, and the
machine and shares that it asks Ray for."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from lib.cluster.base import Cluster, Handle, Meeting, Retries
from lib.cluster.local import MessageDelays, WallClockSite, sleep_until
from lib.device_array import DeviceArray, to_native
from lib.errors import BadOption, MemberLost, NodeLost, first_in_group

COLLECTIVE = timedelta(minutes=5)
"""How long a group waits for a member before it counts as lost."""
MORTAL_COLLECTIVE = timedelta(seconds=30)
"""The same where members may die while their group forms: the others have no other sign of it."""


Place = tuple[Any, int] | None
"""A node's actor and its generation; None: it never returns."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a node's process starts from."""

    generation: int
    batches: int
    """Computed in the generations before."""
    clock_offset: float
    """Seconds to add to this machine's clock for the run's."""
    run: str
    """A name of the run that is unique on its machines."""
    places: dict[str, Place]
    """The nodes that have returned, see `Caller.places`."""
    gpus: float
    """The process's share of a GPU."""


class Host:
    """A node: an actor that holds parts and runs their methods in the order of each caller's calls."""

    def __init__(self, cluster: Cluster, seed: int, node: str, start: Start, path: list[str]):
        # A user's own protocol or workload is found where the driver found it.
        sys.path.extend(entry for entry in path if entry not in sys.path)
        torch.set_num_threads(1)
        self.site = RaySite(cluster, seed, node, start)
        self._parts: dict[int, Any] = {}
        self._next: defaultdict[str, int] = defaultdict(int)
        self._early: dict[tuple[str, int], asyncio.Future] = {}

    async def create_part(self, part_number: int, part: type, args: tuple, again: bool = False) -> str:
        """Make a part and return Ray's name of the machine. `again`: it must find its survivors."""
        self._parts[part_number] = made = part(self.site, *args)
        if again and not made.attached:
            raise NodeLost(self.site.node)
        import ray

        return ray.get_runtime_context().get_node_id()

    async def wait_for_death(self) -> None:
        """Never return: a call of this fails when the process ends."""
        await asyncio.Event().wait()

    async def update_place(self, node: str, place: Place) -> None:
        self.site.caller.update_place(node, place)

    async def clear(self) -> None:
        self._parts.clear()
        gc.collect()  # rows in shared memory go with their parts

    async def call(self, caller: str, turn: int, part_number: int, method: str, *args) -> Any:
        # Ray may start an actor's async calls out of order; a pull must not overtake the push before it.
        if turn != self._next[caller]:
            self._early[caller, turn] = asyncio.get_running_loop().create_future()
            await self._early[caller, turn]
        self._next[caller] += 1
        running = asyncio.ensure_future(getattr(self._parts[part_number], method)(*args))
        await asyncio.sleep(0)  # let it start before the next in turn
        waiting = self._early.pop((caller, self._next[caller]), None)
        if waiting is not None:
            waiting.set_result(None)
        return await running

    async def start_clock(self, ago: float) -> None:
        """The training started so many seconds ago."""
        self.site.start_clock(ago)

    async def set_clock(self, clock_offset: float) -> None:
        self.site.clock_offset = clock_offset

    async def wait_for_last_batch(self) -> int:
        """Wait until this node has computed the batch after which it dies; the number of its batches."""
        return await self.site.stopped

    async def freeze(self) -> tuple[int, list[Any]]:
        """Stop all messages from here; the number of batches that were computed, and the records of the parts."""
        self.site.caller.frozen = True
        return self.site.failures.batches, [part.record for part in self._parts.values() if hasattr(part, "record")]

    async def take_progress(self) -> int:
        samples, self.site.samples = self.site.samples, 0
        return samples

    async def connect_store(self, where: tuple[str, int]) -> None:
        """Connect to the store through which the workers' process groups form."""
        self.site.store = distributed.TCPStore(*where)

    async def form_process_group(self, meeting: Meeting) -> None:
        await self.site.collective(self.site.group, meeting)


class Caller:
    """A caller's name, the number of its calls to each actor, and the delays of its messages."""

    def __init__(self, name: str, delays: MessageDelays | None = None):
        """`delays`: None where nothing may go wrong."""
        self.name, self.delays = name, delays
        self.frozen = False
        """Whether its node has died, though its process still runs: no message leaves it any more."""
        self.turns: defaultdict[str, int] = defaultdict(int)
        self.places: dict[str, Place] = {}
        """The nodes that have died and returned with their parts, or never will."""
        self._moves: dict[str, asyncio.Future] = {}
        self._retries: dict[str, Retries] = {}

    def update_place(self, node: str, place: Place) -> None:
        """A node has returned, or never will."""
        self.places[node] = place
        if move := self._moves.pop(node, None):
            move.set_result(place is not None)

    def retries(self, node: str) -> Retries:
        if node not in self._retries:
            self._retries[node] = Retries(node, partial(self._generation, node), partial(self._wait_until_up, node))
        return self._retries[node]

    def _generation(self, node: str) -> int:
        return (self.places.get(node) or (None, 0))[1]

    async def _wait_until_up(self, node: str) -> bool:
        if self.places.get(node, ()) is None:
            return False
        return await self._moves.setdefault(node, asyncio.get_running_loop().create_future())


class RaySite(WallClockSite):
    """A node's process."""

    store: distributed.Store
    """Through which this worker's process groups find their members."""

    def __init__(self, cluster: Cluster, seed: int, node: str, start: Start):
        super().__init__(cluster, seed, node, torch.device("cuda" if start.gpus else "cpu"), start.batches)
        # NCCL cannot have two ranks on one GPU; what gloo averages lies on the host.
        self._averaged_on = self.device if start.gpus == 1 else torch.device("cpu")
        self.generation, self.clock_offset = start.generation, start.clock_offset
        self.samples = 0
        self.caller = Caller(f"{node}/{start.generation}", self.delays if cluster.may_fail else None)
        self.caller.places |= start.places
        self._name = f"{start.run}-{node}"
        self.stopped = asyncio.get_running_loop().create_future()
        self._groups: dict[tuple, Any] = {}
        self.threads = self.input_threads = ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,))
        # Collectives of one process must run in one order, so they have one thread.
        self._collectives = ThreadPoolExecutor(1)

    def now(self) -> float:
        return time.time() + self.clock_offset

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
            if self.caller.delays is None:
                raise
            # It closes the group's connections, which ends the wait of the other members.
            self._groups.pop(_group_key(meeting), None)
            raise MemberLost(f"a member of {meeting.members} died: {error}") from error

    def _mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        array = mine.tensor if isinstance(mine, DeviceArray) else torch.tensor(mine)
        tensor = array.to(self._averaged_on, copy=isinstance(mine, DeviceArray))
        self.group(meeting).allreduce(tensor).wait()
        tensor.div_(len(meeting.members))
        return to_native(tensor.to(self.device)) if isinstance(mine, DeviceArray) else tensor.cpu().numpy()

    def _gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        group = self.group(meeting)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self._averaged_on) for _ in meeting.members]
        group.allgather([sizes], [torch.tensor([len(mine)], device=self._averaged_on)]).wait()
        longest = max(int(size) for size in sizes)
        padded = np.zeros(longest, mine.dtype)
        padded[: len(mine)] = mine
        kind = torch.from_numpy(padded).dtype
        parts = [torch.empty(longest, dtype=kind, device=self._averaged_on) for _ in meeting.members]
        group.allgather([parts], [torch.from_numpy(padded).to(self._averaged_on)]).wait()
        return [part[: int(size)].cpu().numpy() for part, size in zip(parts, sizes, strict=True)]

    def group(self, meeting: Meeting) -> Any:
        """One process group for each distinct set of members, made by them alone when they first meet.

        `new_group(use_local_synchronization=True)` would name a group by how many its process made before, so members
        that were in different numbers of groups would wait for each other for ever."""
        key = _group_key(meeting)
        if key not in self._groups:
            nccl = self._averaged_on.type == "cuda"
            kind = distributed.ProcessGroupNCCL if nccl else distributed.ProcessGroupGloo
            store = distributed.PrefixStore("-".join(map(str, key)), self.store)
            rank = meeting.members.index(self.rank)
            patience = COLLECTIVE if self.caller.delays is None else MORTAL_COLLECTIVE
            self._groups[key] = kind(store, rank, len(meeting.members), patience)
        return self._groups[key]

    def persistent_object(self, key: str, make: Callable[[str | None], Any]) -> Any:
        return make(f"{self._name}-{key}")

    def note_batch_done(self, samples: int) -> None:
        self.samples += samples
        if self.caller.delays is not None:
            batches = self.failures.count_batch(time.perf_counter() - (self._started or 0.0))
            if self.failures.deaths_at_batch(batches):
                self.caller.frozen = True
                self.stopped.set_result(batches)


class RayHandle(Handle):
    """A part in an actor. Arrays travel as numpy's, which Ray moves without pickling them."""

    def __init__(self, actor: Any, number: int, node: str, generation: int, returns: bool, caller: Caller):
        self._target, self._caller = (actor, number, node, generation, returns), caller
        self.retries = caller.retries(node) if returns else None

    def __reduce__(self):
        return RayHandle, (*self._target, Caller("unbound"))

    def bind(self, site: RaySite) -> RayHandle:
        return RayHandle(*self._target, site.caller)

    def _call_with_retries(self, method: str, *args) -> Awaitable[Any]:
        return asyncio.ensure_future(super()._call_with_retries(method, *args))

    def _call(self, method: str, *args) -> Awaitable[Any]:
        (actor, number, node, generation, _), caller = self._target, self._caller
        if (place := caller.places.get(node)) and place[1] > generation:
            actor, generation = place
        target = f"{node}/{generation}"
        ask = partial(actor.call.remote, caller.name, caller.turns[target], number, method, *args)
        caller.turns[target] += 1
        if caller.delays is None:
            return asyncio.ensure_future(self._answer(node, ask()))
        return asyncio.ensure_future(self._send(node, caller.delays.arrival_time(node), ask))

    async def _answer(self, node: str, call: Awaitable) -> Any:
        import ray

        try:
            return await call
        except ray.exceptions.RayActorError as error:
            raise NodeLost(node) from error
        except ray.exceptions.RayTaskError as error:
            raise cause_of(error) from error

    async def _send(self, node: str, arrival: float | None, ask: Callable[[], Awaitable]) -> Any:
        """Call a node that may die when its plan says so, from one that may."""
        await sleep_until(arrival)
        if self._caller.frozen:
            await asyncio.Event().wait()
        result = await self._answer(node, ask())
        await sleep_until(self._caller.delays.arrival_time(node, answer=True))
        return result


def cause_of(error: BaseException) -> BaseException:
    """What went wrong in the first place: an error may have passed through several actors and groups of tasks."""
    error = first_in_group(error)
    inner = getattr(error, "cause", None)
    return cause_of(inner) if isinstance(inner, BaseException) else error


def _group_key(meeting: Meeting) -> tuple:
    """The name of a process group: its members, each in one of its generations."""
    return (*meeting.members, "generations", *meeting.generations) if any(meeting.generations) else meeting.members


def actor_options(
    node: str, machines: Sequence[Mapping[str, Any]], processes: int, machine: str | None = None
) -> dict[str, Any]:
    """Return the share of a core that a node's actor asks Ray for and, for a server, its machine: each in turn.

    `machines` are as `ray.nodes()` gives them. The shares of all `processes`, workers and servers, fit on what is left when the
    largest machine is lost, else Ray would wait for ever; other nodes ask for no share. `machine`: the only one for this node.
    """
    role = node.rstrip("0123456789")
    alive = [each for each in machines if each["Alive"]]
    cores = sorted(int(each["Resources"].get("CPU", 0)) for each in alive)
    left = sum(cores[:-1] or cores)
    share = _largest_share(processes, left) if role in ("worker", "server") else 0.0
    if role != "server":
        return {"num_cpus": share}
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    names = sorted(each["NodeID"] for each in alive)
    name = machine or names[int(node[len(role) :]) % len(names)]
    affinity = NodeAffinitySchedulingStrategy(name, soft=not machine, _spill_on_unavailable=not machine)
    return {"num_cpus": share, "scheduling_strategy": affinity}


def require_gpu_share(machines: Sequence[Mapping[str, Any]], workers: int) -> float:
    """The share of a GPU that each worker's actor asks Ray for: a whole one, or 1/k where k workers have to share one."""
    gpus = sum(int(each["Resources"].get("GPU", 0)) for each in machines if each["Alive"])
    if not gpus:
        raise BadOption('ray cluster: no machine of the Ray cluster has a GPU for device="cuda"; use device="cpu"')
    return _largest_share(workers, gpus)


def _largest_share(processes: int, places: int) -> float:
    """The largest share 1/k, in Ray's ten-thousandths, of which so many processes fit into the places; 0 where there is none."""
    return next((int(1e4 / k) / 1e4 for k in range(1, processes + 1) if k * places >= processes), 0.0)
