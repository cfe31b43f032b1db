"""Ray: every node is an async actor in a process of its own, on this machine or on many; collectives by torch.distributed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import psutil
import torch.distributed as distributed
from joblib import cpu_count

from lib.cluster.base import Cluster, Main, Meeting, World
from lib.cluster.failures import FailureSchedule
from lib.cluster.local import MessageDelays, run_in_event_loop_thread
from lib.cluster.ray.node import Caller, Host, Place, RayHandle, Start, actor_options, cause_of, require_gpu_share
from lib.errors import LockstepError, NodeLost
from lib.options.checked import Natural

OBJECT_STORE = 512 * 2**20
"""Bytes of shared memory for messages, where Ray is started here."""
PAUSE = 5.0
"""Seconds after which Ray is started once more if it did not start: on a busy machine its parts may time out."""


@dataclass(frozen=True, kw_only=True)
class RayCluster(Cluster):
    """Real processes, on one machine or many."""

    name: ClassVar = "ray"
    clock: ClassVar = "wall"

    address: str | None = None
    """A running Ray cluster to join, as `ray.init` takes it; None: start one on this machine and stop it at the end."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where workers compute; "cuda": each worker gets a GPU of its own, and collectives use NCCL. Where there are fewer GPUs than
    workers, several share one, and collectives use gloo, since NCCL cannot have two ranks on a GPU; `provenance` says which."""
    restarts: Natural = 3
    """Processes that may die of themselves before a run gives up; each time it returns to its last checkpoint, or its start."""

    evaluation_device: ClassVar = "cpu"

    def _check_device(self) -> None:
        if self.address is None:  # else the machines of the cluster have the devices
            super()._check_device()

    def open(self, seed: int, workers: int) -> RayWorld:
        return RayWorld(self, seed, workers)


class RayWorld(World):
    """The actors of one run."""

    def __init__(self, cluster: RayCluster, seed: int, workers: int):
        self.ray = import_ray(cluster.address is None)
        self.cluster = cluster
        self.seed, self.workers = seed, workers
        self.failure_schedule = FailureSchedule(partial(cluster.failures_of, seed), self._kill)
        self.records = {}
        self._actors: dict[str, Any] = {}
        self._starts: Counter[str] = Counter()
        """How often each node was started."""
        self._batches: Counter[str] = Counter()
        """What nodes had computed in their generations before."""
        self._returning: defaultdict[str, list[tuple[int, type, tuple]]] = defaultdict(list)
        """Node -> its parts that are made again when its process is up again."""
        self._machines: dict[str, str] = {}
        """Node -> Ray's name of its machine."""
        self._name = _new_run_name()
        self._attending: list[asyncio.Task] = []
        self._tasks: set[asyncio.Task] = set()
        self._deaths = 0
        """Processes that died of themselves."""
        self._ids = itertools.count()
        self._clock_offset = 0.0
        """Seconds to add to this machine's clock: a resumed run has one clock over all its processes."""
        self._caller = Caller("main", MessageDelays(cluster, seed, "master") if cluster.may_fail else None)

    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        started, logs = not self.ray.is_initialized(), None
        try:
            if started:
                logs = self._open_ray_session()
            result = run_in_event_loop_thread(lambda: self._run(main, progress))
        finally:
            with defer_keyboard_interrupt():
                for actor in self._actors.values():
                    self.ray.kill(actor)
                if started:
                    self.ray.shutdown()
        if logs and self.cluster.address is None:  # of a run that failed they may be needed
            shutil.rmtree(logs, ignore_errors=True)
        return result

    def _open_ray_session(self) -> str:
        """Return Ray's folder of this session."""
        options = {"log_to_driver": False, "configure_logging": False}
        if self.cluster.address is not None:
            options |= {"address": self.cluster.address}
        else:
            # "local", or it joins another Ray that runs on this machine, which refuses these options. The number of cores is also
            # the number of processes that Ray starts at the same time.
            cores = min(cpu_count(), self.workers + self.cluster.servers)
            options |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
            options |= {"object_store_memory": OBJECT_STORE}
        return start_ray(self.cluster.address, options)

    async def _run(self, main: Main, progress: Callable[[int], None] | None) -> Any:
        self._store = _serve_store(self.ray.util.get_node_ip_address())
        self._launch_workers()
        watching = asyncio.create_task(self._report_progress_repeatedly(progress)) if progress else None
        try:
            result = await main(self)
            if progress:
                await self._collect_progress(progress)
            return result
        except self.ray.exceptions.RayTaskError as error:
            raise cause_of(error) from error
        finally:
            if watching:
                watching.cancel()
            await self._stop_restarting()

    def _launch_workers(self) -> None:
        """Start the workers' processes, all at once: each takes seconds. Those that return later get the same share of a GPU."""
        self._gpus = require_gpu_share(self.ray.nodes(), self.workers) if self.cluster.device == "cuda" else 0
        self.collective_backend = "nccl" if self._gpus == 1 else "gloo"
        for node in (f"worker{rank}" for rank in range(self.workers)):
            if not self.failure_schedule.is_dead(node):
                self._actors[node] = self._start_actor(node)
        self._connected = asyncio.ensure_future(self._form_process_group())
        # `host` awaits it and meets its error; if nothing does, the run has met another error.
        self._connected.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _report_progress_repeatedly(self, progress: Callable[[int], None]) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self._collect_progress(progress)

    async def _collect_progress(self, progress: Callable[[int], None]) -> None:
        counts = [actor.take_progress.remote() for node, actor in self._actors.items() if node.startswith("worker")]
        for samples in await asyncio.gather(*counts, return_exceptions=True):
            progress(samples if isinstance(samples, int) else 0)  # 0: it has just died

    async def host(self, part: type, *args, node: str, returns: bool = False) -> RayHandle:
        if node == "master" and not self.cluster.may_fail:
            # A process of its own would cost seconds to start and do next to nothing.
            node = "server0" if "server0" in self._actors and "server0" not in self._returning else "worker0"
        if self.failure_schedule.is_dead(node):
            raise NodeLost(node)
        if node not in self._actors:
            self._actors[node] = self._start_actor(node)
            if node.startswith("worker"):  # it was lost before
                await self._await_answer(
                    node, self._actors[node].connect_store.remote((self._store.host, self._store.port))
                )
        elif node.startswith("worker"):
            await self._connected
        if node not in self._actors:  # it died meanwhile
            raise NodeLost(node)
        actor, generation = self._actors[node], self._starts[node] - 1
        again = generation > 0 and self.failure_schedule.running
        if again:
            self._start_clock_of(node)
        number = next(self._ids)
        self._machines[node] = await self._await_answer(node, actor.create_part.remote(number, part, args))
        if again:
            self.failure_schedule.arm_failures([node])
        if returns:
            if node not in self._returning:
                self._attending.append(asyncio.ensure_future(self._restart_after_deaths(node)))
            self._returning[node].append((number, part, args))
        return RayHandle(actor, number, node, generation, returns, self._caller)

    async def _restart_after_deaths(self, node: str) -> None:
        """Start a node's process again as often as it dies, as long as its parts find their survivors."""
        place = self._actors[node], self._starts[node] - 1
        while place:
            with suppress(self.ray.exceptions.RayActorError):
                await place[0].wait_for_death.remote()
            place = await self._restart_process(node)
            self._caller.update_place(node, place)
            for actor in self._actors.values():
                actor.update_place.remote(node, place)

    async def _restart_process(self, node: str) -> Place:
        try:
            if not await self.wait_until_up(node):
                return None
            self._actors[node] = actor = self._start_actor(node, self._machines[node])
            for number, part, args in self._returning[node]:
                await actor.create_part.remote(number, part, args, True)
        except (LockstepError, self.ray.exceptions.RayError):  # its survivors or its machine are gone, or too many died
            return None
        if self.failure_schedule.running:
            self._start_clock_of(node)
            self.failure_schedule.arm_failures([node])
        return actor, self._starts[node] - 1

    async def _stop_restarting(self) -> None:
        """Let no node return any more, and remove what would have survived."""
        while self._attending:
            self._attending.pop().cancel()
        calls = [self._actors[node].clear.remote() for node in self._returning.keys() & self._actors.keys()]
        self._returning.clear()
        self._caller.places.clear()
        self._name = _new_run_name()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _await_answer(self, node: str, answer: Awaitable) -> Any:
        try:
            return await answer
        except self.ray.exceptions.RayActorError as error:
            raise NodeLost(node) from error

    async def dead_node_in(self, error: BaseException) -> str | None:
        """The same; a process that died of itself may have been noticed by what others were doing with it."""
        if (node := await super().dead_node_in(error)) is not None:
            return node
        nodes, actors = list(self._actors), list(self._actors.values())
        answers = await asyncio.gather(*(actor.take_progress.remote() for actor in actors), return_exceptions=True)
        dead = self.ray.exceptions.RayActorError
        return next((node for node, answer in zip(nodes, answers, strict=True) if isinstance(answer, dead)), None)

    async def wait_until_up(self, node: str) -> bool:
        if node not in self._actors:  # its death was planned
            up = await super().wait_until_up(node)
            self.failure_schedule.pause(node)  # its process takes seconds to start: until then it is dead
            return up
        self._deaths += 1
        if self._deaths > self.cluster.restarts:
            raise LockstepError(
                f"{node}'s process died of itself, and a run with restarts={self.cluster.restarts} returns to its checkpoint no "
                "more; Ray's logs say why (memory that ran out, a machine that is gone)"
            )
        return True

    def _start_actor(self, node: str, machine: str | None = None) -> Any:
        """`machine`: the one that it must be on."""
        gpus = self._gpus if node.startswith("worker") else 0
        placed = actor_options(node, self.ray.nodes(), self.workers + self.cluster.servers, machine)
        # Every node may hold any number of waiting calls: gates are inside the parts.
        actor = self.ray.remote(**placed, num_gpus=gpus, max_concurrency=1_000_000)(Host)
        path = [os.path.abspath(entry) for entry in sys.path]
        places = dict(self._caller.places)
        start = Start(self._starts[node], self._batches[node], self._clock_offset, self._name, places, gpus)
        self._starts[node] += 1
        actor = actor.remote(self.cluster, self.seed, node, start, path)
        if any(failure.at_batch for failure in self.cluster.failures if failure.affects_node(node)):
            self._spawn(self._fail_at_batch(node, actor))
        return actor

    async def _form_process_group(self) -> None:
        """Make the workers' process group."""
        if self.workers == 1:
            return
        workers = {node: actor for node, actor in self._actors.items() if node.startswith("worker")}
        where = self._store.host, self._store.port
        await asyncio.gather(
            *(self._await_answer(node, actor.connect_store.remote(where)) for node, actor in workers.items())
        )
        if len(workers) == self.workers and not self.cluster.may_fail:
            generations = tuple(self._starts[node] - 1 for node in workers)
            everyone = Meeting("all", tuple(range(self.workers)), 0, generations if any(generations) else ())
            await asyncio.gather(
                *(
                    self._await_answer(node, actor.form_process_group.remote(everyone))
                    for node, actor in workers.items()
                )
            )

    def start_failure_clock(self) -> None:
        if not self.failure_schedule.running:
            self._began = time.time()
        self.failure_schedule.arm_failures(list(self._actors))
        if self._caller.delays:
            self._caller.delays.start_clock(asyncio.get_running_loop().time() - self.failure_schedule.start)
        for node in self._actors:
            self._start_clock_of(node)

    async def clear_parts(self) -> None:
        await self._stop_restarting()
        calls = (actor.clear.remote() for actor in self._actors.values())
        await asyncio.gather(*calls, return_exceptions=True)  # the dead hold nothing
        await super().clear_parts()

    async def restart_all_nodes(self) -> list[Any]:
        nodes = list(self._actors)
        self.failure_schedule.pause()
        self._connected.cancel()
        await self._stop_restarting()
        await asyncio.gather(*(self._kill_and_keep_records(node) for node in nodes))
        self._launch_workers()
        return [record for node in nodes for record in self.take_records_of_dead(node)]

    def _start_clock_of(self, node: str) -> None:
        self._actors[node].start_clock.remote(time.time() - self._began)

    async def _fail_at_batch(self, node: str, actor: Any) -> None:
        with suppress(self.ray.exceptions.RayActorError):  # it died of something else
            self.failure_schedule.count_batch(node, await actor.wait_for_last_batch.remote())

    def _kill(self, node: str) -> None:
        self._spawn(self._kill_and_keep_records(node))

    async def _kill_and_keep_records(self, node: str) -> None:
        """Take the records out of a node's process, then kill it."""
        actor = self._actors.pop(node, None)
        if actor is None:
            return
        with suppress(self.ray.exceptions.RayActorError):  # a process that died of itself has no records any more
            if node not in self._returning:  # the records of a part that returns are among its survivors
                self._batches[node], records = await actor.freeze.remote()
                self.records[node] = [*self.records.get(node, []), *records]
        self.ray.kill(actor)

    def _spawn(self, work: Coroutine) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop itself holds no reference to it
        task.add_done_callback(self._tasks.discard)

    def now(self) -> float:
        return time.time() + self._clock_offset

    async def restore(self, state: dict[str, Any]) -> None:
        self._clock_offset += state["clock"] - self.now()
        await asyncio.gather(*(actor.set_clock.remote(self._clock_offset) for actor in self._actors.values()))
        self.start_failure_clock()


def _new_run_name() -> str:
    """A name for what survives processes of this run, until it starts again."""
    return uuid.uuid4().hex[:12]


def _serve_store(address: str) -> distributed.TCPStore:
    """The store through which process groups form; it listens on that address of this machine only."""
    listening = socket.create_server((address, 0))
    port, options = listening.getsockname()[1], {"is_master": True, "wait_for_workers": False}
    return distributed.TCPStore(address, port, **options, master_listen_fd=listening.detach())


def import_ray(one_machine: bool) -> Any:
    """Import Ray. On one machine its servers listen on the loopback address only, unless Ray was imported before."""
    if one_machine:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # Ray reports a dead process on stdout, where a summary may be expected; the run reports what followed.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change to come
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # in a notebook it asks for widgets, which nothing here shows
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise LockstepError("the ray cluster needs Ray: pip install ray, or use the local cluster") from error
    finally:
        logging.disable(before)
    logging.getLogger("ray").setLevel(logging.ERROR)  # notices about its defaults would appear in every report
    return ray


def start_ray(address: str | None, options: dict[str, Any]) -> str:
    """Start Ray with these options, or join it at an address; if that fails, try once more. Return its session's folder."""
    import ray

    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    for pause in (PAUSE, None):
        # All children: a process that has just been started has no command line yet by which to recognise it as Ray's.
        others = set(psutil.Process().children(recursive=True))
        try:
            if host and port.isdigit():  # where nothing listens Ray would try for a minute and a half
                socket.create_connection((host, int(port)), timeout=5.0).close()
            with defer_keyboard_interrupt():
                found = ray.init(**options)
            return getattr(found, "address_info", {}).get("session_dir", "")  # a client of a far Ray has none
        except Exception as error:  # Ray has no types of its own for these
            with defer_keyboard_interrupt():
                ray.shutdown()
                _kill_leftover_processes(others)
            if pause is None or isinstance(error, (TypeError, ValueError)):
                raise LockstepError(_start_error_message(address, error)) from error
        time.sleep(pause)


def _kill_leftover_processes(others: set[psutil.Process]) -> None:
    """Kill what a failed start has left: its server would take a share of the machine from the next try."""
    left = set(psutil.Process().children(recursive=True)) - others
    for child in left:
        with suppress(psutil.Error):  # it may be gone by now
            if any("ray" in Path(word).parts for word in child.cmdline()):
                child.kill()
    psutil.wait_procs(left, timeout=5)


def _start_error_message(address: str | None, error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    if address is not None:
        return (
            f"no Ray at {address!r} that this process can join ({first}): `ray status --address={address}` says what is there; "
            "Python and Ray must be the same on all machines, and the ports of `ray start` open"
        )
    return (
        f"Ray did not start on this machine in two tries ({first}): it needs memory (`df /dev/shm`) and a core; "
        "`ray stop` ends what others have left, /tmp/ray/session_latest/logs has its logs, and cluster='local' needs no Ray"
    )


@contextmanager
def defer_keyboard_interrupt() -> Iterator[None]:
    """Raise Ctrl-C at the end of the block: Ray interrupted while it starts or stops leaves processes for a minute."""
    if threading.current_thread() is not threading.main_thread():  # Ctrl-C reaches the main thread alone
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
