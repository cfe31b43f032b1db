"""Ray: every node is an async actor in a process of its own, on this machine or on many; collectives by torch.distributed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as distributed

from lib.cluster.base import Cluster, Handle, Main, Meeting, Site, World, in_thread
from lib.cluster.delay import INLINE, Delay
from lib.cluster.local import _Runner
from lib.cluster.spec import Work
from lib.errors import BadOption, LockstepError, first_cause

COLLECTIVE = timedelta(minutes=5)
"""A member of a group that has not come by then is taken for lost."""


@dataclass(frozen=True, kw_only=True)
class RayCluster(Cluster):
    """Real processes, on one machine or many."""

    name: ClassVar = "ray"
    clock: ClassVar = "wall"

    address: str | None = None
    """A running Ray cluster to join, as `ray.init` takes it; None: start one on this machine and stop it at the end."""
    device: str = "cpu"
    """Where workers compute; "cuda": each worker gets a GPU of its own, and collectives use NCCL."""
    object_store: int = 512 * 2**20
    """Bytes of shared memory for messages, when Ray is started here."""

    def __post_init__(self):
        super().__post_init__()
        if self.device not in ("cpu", "cuda"):
            raise BadOption(f'ray cluster: device must be "cpu" or "cuda", not {self.device!r}')
        if self.device == "cuda" and self.address is None and not torch.cuda.is_available():
            raise BadOption('ray cluster: device="cuda", but torch sees no CUDA device here; use device="cpu"')
        if self.object_store < 80 * 2**20:
            raise BadOption(f"ray cluster: object_store must be at least {80 * 2**20} bytes, not {self.object_store}")

    def open(self, seed: int, workers: int) -> RayWorld:
        return RayWorld(self, seed, workers)


class RayWorld(World):
    """The actors of one run."""

    def __init__(self, cluster: RayCluster, seed: int, workers: int):
        self.ray = _import_ray()
        self.cluster = cluster
        self.seed, self.workers = seed, workers
        self._actors: dict[str, Any] = {}
        self._ids = itertools.count()
        self._caller = _Caller("main")

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        started = not self.ray.is_initialized()
        try:
            if started:
                with _uninterrupted():
                    self._start()
            runner = _Runner(lambda world: self._watched(main, progress), self)
            return in_thread(runner.run, runner.interrupt)
        finally:
            with _uninterrupted():
                for actor in self._actors.values():
                    self.ray.kill(actor)
                if started:
                    self.ray.shutdown()

    def _start(self) -> None:
        quiet = {"log_to_driver": False, "configure_logging": False}
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change to come
        if self.cluster.address is not None:
            self.ray.init(address=self.cluster.address, **quiet)
        else:
            # Actors take none of these cores, which say how many processes Ray starts at the same time.
            cores = min(os.cpu_count(), self.workers + self.cluster.servers)
            memory = self.cluster.object_store
            self.ray.init(num_cpus=cores, object_store_memory=memory, include_dashboard=False, **quiet)

    async def _watched(self, main: Main, progress: Callable[[int], None] | None) -> Any:
        for rank in range(self.workers):  # all processes start at once: each takes seconds
            self._actors[f"worker{rank}"] = self._actor(f"worker{rank}")
        self._connected = asyncio.ensure_future(self._connect())
        watcher = asyncio.create_task(self._watch(progress)) if progress else None
        try:
            result = await main(self)
            if progress:
                await self._advance(progress)
            return result
        except self.ray.exceptions.RayTaskError as error:
            raise self._cause(error) from error
        finally:
            if watcher:
                watcher.cancel()

    def _cause(self, error: BaseException) -> BaseException:
        """What went wrong in the first place: an error may have passed through several actors and groups of tasks."""
        error = first_cause(error)
        inner = error.cause if isinstance(error, self.ray.exceptions.RayTaskError) else None
        return error if inner is None else self._cause(inner)

    async def _watch(self, progress: Callable[[int], None]) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self._advance(progress)

    async def _advance(self, progress: Callable[[int], None]) -> None:
        workers = [actor for node, actor in self._actors.items() if node.startswith("worker")]
        for samples in await asyncio.gather(*(actor.take_progress.remote() for actor in workers)):
            progress(samples)

    async def host(self, part: type, *args, node: str) -> RayHandle:
        if node == "master":  # a process of its own would cost seconds to start and do next to nothing
            node = "server0" if "server0" in self._actors else "worker0"
        if node not in self._actors:
            self._actors[node] = self._actor(node)
        elif node.startswith("worker"):
            await self._connected
        number = next(self._ids)
        await self._actors[node].create.remote(number, part, args)
        return RayHandle(self._actors[node], number, node, self._caller)

    def _actor(self, node: str) -> Any:
        gpus = 1 if self.cluster.device == "cuda" and node.startswith("worker") else 0
        # Every node may hold any number of waiting calls: gates are inside the parts.
        actor = self.ray.remote(num_cpus=0, num_gpus=gpus, max_concurrency=1_000_000)(_Host)
        path = [os.path.abspath(entry) for entry in sys.path]
        return actor.remote(node, "cuda" if gpus else "cpu", Delay(self.cluster, self.seed, node), path)

    async def _connect(self) -> None:
        """Make the workers' process group."""
        if self.workers == 1:
            return
        first, *others = (self._actors[f"worker{rank}"] for rank in range(self.workers))
        where = await first.rendezvous.remote()
        await asyncio.gather(*(other.join.remote(where) for other in others))
        everyone = tuple(range(self.workers))
        await asyncio.gather(*(worker.meet.remote(everyone) for worker in (first, *others)))

    def now(self) -> float:
        return time.time()


class _Host:
    """A node: an actor that holds parts and runs their methods in the order of each caller's calls."""

    def __init__(self, node: str, device: str, delay: Delay, path: list[str]):
        # A user's own protocol or workload is found where the driver found it.
        sys.path.extend(entry for entry in path if entry not in sys.path)
        torch.set_num_threads(1)
        self.site = RaySite(node, device, delay)
        self._parts: dict[int, Any] = {}
        self._next: defaultdict[str, int] = defaultdict(int)
        self._early: dict[tuple[str, int], asyncio.Future] = {}

    async def create(self, number: int, part: type, args: tuple) -> None:
        self._parts[number] = part(self.site, *args)

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

    async def take_progress(self) -> int:
        samples, self.site.samples = self.site.samples, 0
        return samples

    async def rendezvous(self) -> tuple[str, int]:
        """Open the store at which the workers' process groups form."""
        address = _address()
        self.site.store = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        return address, self.site.store.port

    async def join(self, where: tuple[str, int]) -> None:
        self.site.store = distributed.TCPStore(*where)

    async def meet(self, members: tuple[int, ...]) -> None:
        await self.site.collective(self.site.group, members)


class _Caller:
    """Who calls, and how often it has called each actor."""

    def __init__(self, name: str):
        self.name = name
        self.turns: defaultdict[str, int] = defaultdict(int)


class RaySite(Site):
    """A node's process."""

    store: distributed.Store
    """Where this worker's process groups find their members."""

    def __init__(self, node: str, device: str, delay: Delay):
        self.node = node
        self.device = torch.device(device)
        self.samples = 0
        self._delay = delay
        self.caller = _Caller(node)
        self._objects: dict[str, Any] = {}
        self._groups: dict[tuple[int, ...], Any] = {}
        self._pool = ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,))
        # Collectives of one process must run in one order, so they have one thread.
        self._collectives = ThreadPoolExecutor(1)

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def compute(self, work: Work | None, function: Callable, *args) -> Any:
        if work is not None and work.flops < INLINE and work.bytes < INLINE:
            return function(*args)
        return await self._delay.after(work, asyncio.get_running_loop().run_in_executor(self._pool, function, *args))

    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        if len(meeting.members) == 1:
            return mine.copy()
        return await self.collective(self._mean, meeting.members, mine)

    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        if len(meeting.members) == 1:
            return [mine]
        return await self.collective(self._gather, meeting.members, mine)

    async def collective(self, function: Callable, *args) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._collectives, function, *args)

    def _mean(self, members: tuple[int, ...], mine: np.ndarray) -> np.ndarray:
        tensor = torch.tensor(mine, device=self.device)
        self.group(members).allreduce(tensor).wait()
        return (tensor / len(members)).cpu().numpy()

    def _gather(self, members: tuple[int, ...], mine: np.ndarray) -> list[np.ndarray]:
        group = self.group(members)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in members]
        group.allgather([sizes], [torch.tensor([len(mine)], device=self.device)]).wait()
        longest = max(int(size) for size in sizes)
        padded = np.zeros(longest, mine.dtype)
        padded[: len(mine)] = mine
        parts = [torch.empty(longest, dtype=torch.from_numpy(padded).dtype, device=self.device) for _ in members]
        group.allgather([parts], [torch.from_numpy(padded).to(self.device)]).wait()
        return [part[: int(size)].cpu().numpy() for part, size in zip(parts, sizes, strict=True)]

    def group(self, members: tuple[int, ...]) -> Any:
        """One process group for each distinct set of members, made by them alone when they first meet.

        `new_group(use_local_synchronization=True)` would name a group by how many its process made before, so members
        that were in different numbers of groups would wait for each other for ever."""
        if members not in self._groups:
            kind = distributed.ProcessGroupNCCL if self.device.type == "cuda" else distributed.ProcessGroupGloo
            store = distributed.PrefixStore("-".join(map(str, members)), self.store)
            rank = members.index(int(self.node.removeprefix("worker")))
            self._groups[members] = kind(store, rank, len(members), COLLECTIVE)
        return self._groups[members]

    def shared(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._objects:
            self._objects[key] = make()
        return self._objects[key]

    def progress(self, samples: int) -> None:
        self.samples += samples


class RayHandle(Handle):
    """A part in an actor. Arrays travel as numpy's, which Ray moves without pickling them."""

    def __init__(self, actor: Any, number: int, node: str, caller: _Caller):
        self._actor, self._number, self._node, self._caller = actor, number, node, caller

    def __reduce__(self):
        return RayHandle, (self._actor, self._number, self._node, _Caller("unbound"))

    def seen_from(self, site: RaySite) -> RayHandle:
        return RayHandle(self._actor, self._number, self._node, site.caller)

    def _call(self, method: str, args: tuple):
        turn = self._caller.turns[self._node]
        self._caller.turns[self._node] += 1
        return self._actor.call.remote(self._caller.name, turn, self._number, method, *args)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C comes through at the end: Ray interrupted while it starts or stops leaves processes for a minute."""
    if threading.current_thread() is not threading.main_thread():  # Ctrl-C goes to the main thread alone
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
    if caught:
        raise KeyboardInterrupt


def _address() -> str:
    """This machine's address as its peers see it; the loopback's where it has no other."""
    import ray

    return ray.util.get_node_ip_address()


def _import_ray() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a notebook it asks for widgets, which nothing here shows
        try:
            import ray
        except ImportError as error:
            raise LockstepError("the ray cluster needs Ray: pip install ray, or use the local cluster") from error
    logging.getLogger("ray").setLevel(logging.ERROR)  # news of its defaults would stand in every report
    return ray
