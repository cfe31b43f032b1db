"""Ray: every node is an async actor in a process of its own, on this machine or on many; collectives by torch.distributed."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as distributed
from joblib import cpu_count

from lib.cluster.base import Cluster, Main, World
from lib.cluster.board import Meeting
from lib.cluster.faults.failures import check_wall
from lib.cluster.faults.nodes import FailureSchedule
from lib.cluster.faults.wall_clock import MessageDelays
from lib.cluster.local import in_loop
from lib.cluster.ray.machines import asked
from lib.cluster.ray.node import Caller, Host, RayHandle, Start, cause_of
from lib.cluster.ray.start import import_ray, start, uninterrupted
from lib.errors import BadOption, LockstepError, NodeLost
from lib.options.checked import Natural


@dataclass(frozen=True, kw_only=True)
class RayCluster(Cluster):
    """Real processes, on one machine or many."""

    name: ClassVar = "ray"
    clock: ClassVar = "wall"

    address: str | None = None
    """A running Ray cluster to join, as `ray.init` takes it; None: start one on this machine and stop it at the end."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where workers compute; "cuda": each worker gets a GPU of its own, and collectives use NCCL."""
    object_store: int = 512 * 2**20
    """Bytes of shared memory for messages, when Ray is started here."""
    restarts: Natural = 3
    """Processes that may die of themselves before a run gives up; each time it goes back to its last cut, or to its start, unless
    it was a server's whose rows outlive it (`store.shared_memory`): then another goes on where it was."""
    placement: Literal["spread", "packed"] = "spread"
    """Servers in turn over the machines; or as Ray packs them."""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Node, or each of a role ("server*") -> labels of Ray's that its machine must have: `ray start --labels disk=fast`."""

    def __post_init__(self):
        super().__post_init__()
        if self.device == "cuda" and self.address is None and not torch.cuda.is_available():
            raise BadOption('ray cluster: device="cuda", but torch sees no CUDA device here; use device="cpu"')
        if self.object_store < 80 * 2**20:
            raise BadOption(f"ray cluster: object_store must be at least {80 * 2**20} bytes, not {self.object_store}")
        check_wall(self.failures, self.name)
        for name in self.labels:
            self._check_node("labels", name, many=True)

    def open(self, seed: int, workers: int) -> RayWorld:
        return RayWorld(self, seed, workers)


class RayWorld(World):
    """The actors of one run."""

    def __init__(self, cluster: RayCluster, seed: int, workers: int):
        self.ray = import_ray()
        self.cluster = cluster
        self.seed, self.workers = seed, workers
        self.failure_schedule = FailureSchedule(partial(cluster.failures_of, seed), self._kill)
        self._actors: dict[str, Any] = {}
        self._generations: Counter[str] = Counter()
        self._heard: set[tuple[str, int]] = set()
        """Lives whose end at a batch is listened for."""
        self._batches: Counter[str] = Counter()
        """What nodes had computed in their generations before."""
        self.records = {}
        self._ends: set[asyncio.Task] = set()
        self._deaths = 0
        """Processes that died of themselves."""
        self._ids = itertools.count()
        self._ahead = 0.0
        """What makes one clock of those of the processes that a run was in."""
        self._caller = Caller("main", MessageDelays(cluster, seed, "master") if cluster.fails else None)

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        started = not self.ray.is_initialized()
        try:
            if started:
                self._start()
            return in_loop(lambda: self._watched(main, progress))
        finally:
            with uninterrupted():
                for actor in self._actors.values():
                    self.ray.kill(actor)
                if started:
                    self.ray.shutdown()

    def _start(self) -> None:
        quiet = {"log_to_driver": False, "configure_logging": False}
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change to come
        if self.cluster.address is not None:
            options = {"address": self.cluster.address, **quiet}
        else:
            # They also say how many processes Ray starts at the same time.
            cores = min(cpu_count(), self.workers + self.cluster.servers)
            memory = self.cluster.object_store
            # "local", or it joins what somebody else has running here, which refuses to be told its cores.
            here = {"address": "local", "num_cpus": cores, "object_store_memory": memory, "include_dashboard": False}
            options = {**here, **quiet}
        start(self.cluster.address, options)

    async def _watched(self, main: Main, progress: Callable[[int], None] | None) -> Any:
        self._store = distributed.TCPStore(_address(), 0, is_master=True, wait_for_workers=False)
        self._man()
        watcher = asyncio.create_task(self._watch(progress)) if progress else None
        try:
            result = await main(self)
            if progress:
                await self._advance(progress)
            return result
        except self.ray.exceptions.RayTaskError as error:
            raise cause_of(error) from error
        finally:
            if watcher:
                watcher.cancel()

    def _man(self) -> None:
        """Start the workers' processes, all at once: each takes seconds."""
        for node in (f"worker{rank}" for rank in range(self.workers)):
            if not self.failure_schedule.is_dead(node):
                self._actors[node] = self._actor(node)
        self._connected = asyncio.ensure_future(self._connect())
        # Who waits for it hears of an error; where nobody does, the run has met another.
        self._connected.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _watch(self, progress: Callable[[int], None]) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self._advance(progress)

    async def _advance(self, progress: Callable[[int], None]) -> None:
        workers = [actor for node, actor in self._actors.items() if node.startswith("worker")]
        for samples in await asyncio.gather(
            *(actor.take_progress.remote() for actor in workers), return_exceptions=True
        ):
            progress(samples if isinstance(samples, int) else 0)  # who has just died has made none

    async def host(self, part: type, *args, node: str) -> RayHandle:
        if node == "master" and not self.cluster.fails:
            # A process of its own would cost seconds to start and do next to nothing.
            node = "server0" if "server0" in self._actors else "worker0"
        if self.failure_schedule.is_dead(node):
            raise NodeLost(node)
        if node not in self._actors:
            self._actors[node] = self._actor(node)
            if node.startswith("worker"):  # it was lost before
                await self._alive(node, self._actors[node].join.remote((self._store.host, self._store.port)))
        elif node.startswith("worker"):
            await self._connected
        if node not in self._actors:  # it died meanwhile
            raise NodeLost(node)
        actor, generation = self._actors[node], self._generations[node]
        again = generation > 1 and self.failure_schedule.running
        if again:
            self._watch_over(node)
        number = next(self._ids)
        await self._alive(node, actor.create.remote(number, part, args))
        if again:
            self.failure_schedule.start_clock([node])
        return RayHandle(actor, number, node, generation, self._caller)

    async def _alive(self, node: str, answer: Awaitable) -> Any:
        try:
            return await answer
        except self.ray.exceptions.RayActorError as error:
            raise NodeLost(node) from error

    async def dead_node_in(self, error: BaseException) -> str | None:
        """One that died of itself may have been noticed by what others were doing with it."""
        if (node := await super().dead_node_in(error)) is not None:
            return node
        nodes, actors = list(self._actors), list(self._actors.values())
        answers = await asyncio.gather(*(actor.take_progress.remote() for actor in actors), return_exceptions=True)
        dead = self.ray.exceptions.RayActorError
        return next((node for node, answer in zip(nodes, answers, strict=True) if isinstance(answer, dead)), None)

    async def wait_until_up(self, node: str) -> bool:
        if node not in self._actors:  # its death was planned
            back = await super().wait_until_up(node)
            self.failure_schedule.pause(node)  # its process takes seconds to start: until then it is dead
            return back
        self._deaths += 1
        if self._deaths > self.cluster.restarts:
            raise LockstepError(
                f"{node}'s process died of itself, and a run with restarts={self.cluster.restarts} returns to its cut no more; "
                "Ray's logs say why (memory that ran out, a machine that is gone)"
            )
        return True

    def _actor(self, node: str) -> Any:
        gpus = 1 if self.cluster.device == "cuda" and node.startswith("worker") else 0
        # Every node may hold any number of waiting calls: gates are inside the parts.
        wanted = {"labels": self.cluster.labels, "spread": self.cluster.placement == "spread"}
        placed = asked(node, self.ray.nodes(), processes=self.workers + self.cluster.servers, **wanted)
        actor = self.ray.remote(**placed, num_gpus=gpus, max_concurrency=1_000_000)(Host)
        path = [os.path.abspath(entry) for entry in sys.path]
        self._generations[node] += 1
        start = Start(self._generations[node], self._batches[node], self._ahead)
        return actor.remote(self.cluster, self.seed, node, start, "cuda" if gpus else "cpu", path)

    async def _connect(self) -> None:
        """Make the workers' process group."""
        if self.workers == 1:
            return
        workers = {node: actor for node, actor in self._actors.items() if node.startswith("worker")}
        where = self._store.host, self._store.port
        await asyncio.gather(*(self._alive(node, actor.join.remote(where)) for node, actor in workers.items()))
        if len(workers) == self.workers and not self.cluster.fails:
            generations = tuple(self._generations[node] - 1 for node in workers)
            everyone = Meeting("all", tuple(range(self.workers)), 0, generations if any(generations) else ())
            await asyncio.gather(*(self._alive(node, actor.meet.remote(everyone)) for node, actor in workers.items()))

    def start_clock(self) -> None:
        if not self.failure_schedule.running:
            self._began = time.time()
        self.failure_schedule.start_clock(list(self._actors))
        if self._caller.road:
            self._caller.road.begin(asyncio.get_running_loop().time() - self.failure_schedule.start)
        for node in self._actors:
            self._watch_over(node)

    async def clear(self) -> None:
        calls = (actor.clear.remote() for actor in self._actors.values())
        await asyncio.gather(*calls, return_exceptions=True)  # the dead hold nothing
        await super().clear()

    async def restart(self) -> list[Any]:
        nodes = list(self._actors)
        self.failure_schedule.pause()
        self._connected.cancel()
        await asyncio.gather(*(self._end(node) for node in nodes))
        self._man()
        return [record for node in nodes for record in self.take_records(node)]

    def _watch_over(self, node: str) -> None:
        """Let a node know that the training goes on, and hear when it has come to its last batch."""
        self._actors[node].begin.remote(time.time() - self._began)
        generation = node, self._generations[node]
        if generation not in self._heard and any(f.at_batch for f in self.cluster.failures if f.hits(node)):
            self._heard.add(generation)
            self._aside(self._listen(node, self._actors[node]))

    async def _listen(self, node: str, actor: Any) -> None:
        """Hear when a worker has come to the batch after which it dies."""
        try:
            self.failure_schedule.computed(node, await actor.doomed.remote())
        except self.ray.exceptions.RayActorError:  # it died of something else
            return

    def _kill(self, node: str) -> None:
        self._aside(self._end(node))

    async def _end(self, node: str) -> None:
        """Take the notes out of a node's process, then kill it."""
        actor = self._actors.pop(node, None)
        if actor is None:
            return
        with suppress(self.ray.exceptions.RayActorError):  # what died of itself tells nothing
            self._batches[node], records = await actor.freeze.remote()
            self.records[node] = [*self.records.get(node, []), *records]
        self.ray.kill(actor)

    def _aside(self, work: Coroutine) -> None:
        task = asyncio.ensure_future(work)
        self._ends.add(task)  # the loop itself keeps no hold of it
        task.add_done_callback(self._ends.discard)

    def now(self) -> float:
        return time.time() + self._ahead

    async def restore(self, state: dict[str, Any]) -> None:
        self._ahead += state["clock"] - self.now()
        await asyncio.gather(*(actor.set_clock.remote(self._ahead) for actor in self._actors.values()))
        self.start_clock()


def _address() -> str:
    """This machine's address as its peers see it; the loopback's where it has no other."""
    import ray

    return ray.util.get_node_ip_address()
