"""The contract of every cluster, by which drivers and protocols run on any of them.

A cluster is a description. `cluster.open(seed, workers)` makes a `World` of it; `world.run(main)` runs the coroutine function
`main` in it. `main` hosts parts on nodes and calls them through handles. A part is a plain class whose first argument is its
`Site`, the node that it runs on. Background tasks, locks, events and queues are asyncio's own, in every world.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from operator import itemgetter
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from lib.cluster.failures import ROLES, Failure, FailureSchedule, Mishaps, NodeFailures
from lib.cluster.slowdowns import Lognormal, Slowdown
from lib.cluster.spec import Usage, Work
from lib.device_array import DeviceArray, to_native
from lib.errors import BadOption, NodeLost, first_in_group
from lib.options.checked import Checked, Count, Positive
from lib.options.units import Seconds

Main = Callable[["World"], Awaitable[Any]]


class Handle:
    """A reference to a part. `handle.method(...)` issues a call at once and returns an awaitable of its result; calls from one
    node to one part start in the order in which they were issued."""

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("__"):
            raise AttributeError(method)
        call = partial(self._call, method) if self.retries is None else partial(self._call_with_retries, method)
        self.__dict__[method] = call  # so that it is made once
        return call

    retries: Retries | None = None
    """What makes the calls of a part that returns again."""

    @abstractmethod
    def bind(self, site: Site) -> Handle:
        """The same part, to be called from that site; a part binds every handle that it is given."""

    def _call_with_retries(self, method: str, *args) -> Awaitable[Any]:
        return self.retries.call(partial(self._call, method, *args))

    @abstractmethod
    def _call(self, method: str, *args) -> Awaitable[Any]: ...


class Retries:
    """The calls to one node that are made again, in their order, as often as it dies and is up again with its parts."""

    def __init__(self, node: str, generation: Callable[[], int], wait_until_up: Callable[[], Awaitable[bool]]):
        """`generation`: the node's own, as far as it is known here; `wait_until_up`: False if it will never be up again."""
        self._node, self._generation, self._wait_until_up = node, generation, wait_until_up
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, Callable, asyncio.Future]] = []
        self._return: asyncio.Task | None = None

    def call(self, issue: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        """Issue a call at once; return the awaitable of its result."""
        return self._result(next(self._numbers), self._generation(), issue(), issue)

    async def _result(self, number: int, generation: int, call: Awaitable, issue: Callable[[], Awaitable]) -> Any:
        while True:
            try:
                return await call
            except NodeLost as lost:
                if lost.node != self._node:
                    raise
            if generation == self._generation():
                issued = asyncio.get_running_loop().create_future()
                self._waiting.append((number, issue, issued))
                self._return = self._return or asyncio.ensure_future(self._resume())
                call = await issued
            else:
                call = issue()
            generation = self._generation()

    async def _resume(self) -> None:
        up = await self._wait_until_up()
        waiting, self._waiting, self._return = self._waiting, [], None
        for _, issue, issued in sorted(waiting, key=itemgetter(0)):
            if up and not issued.cancelled():
                issued.set_result(issue())
            elif not issued.cancelled():
                issued.set_exception(NodeLost(self._node))


@dataclass(frozen=True, slots=True)
class Meeting:
    """Workers that mix together once."""

    key: str
    """Unique in the run."""
    members: tuple[int, ...]
    """Their ranks, ascending."""
    round: int = 0
    """The round of the rule."""
    generations: tuple[int, ...] = ()
    """Each member's `Site.generation`; () if every one is 0."""


def worker_rank(node: str) -> int | None:
    """A worker's rank; None for other nodes."""
    return int(node.removeprefix("worker")) if node.startswith("worker") else None


class Site(ABC):
    """The node that a part runs on, and all that the part may use of its world."""

    node: str
    rank: int | None
    """A worker's rank; None for other nodes."""
    device: torch.device
    objects: dict[str, Any]
    """What its parts share: of one node where computations of several run at the same time, else of all."""
    generation: int = 0
    """How many times this node had died before its current start."""

    now: Callable[[], float]
    """Seconds on the cluster's clock."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def compute(
        self, work: Work | None, function: Callable, *args, after: Collection[asyncio.Future] = ()
    ) -> Any:
        """Run a function on this node's processor. `work` is its modelled cost; None: it has none.

        It begins when all of `after` are done; in virtual time it takes its place among the node's computations at once."""

    async def prepare(self, samples: int, function: Callable, *args) -> Any:
        """Run a function that reads so many samples of raw data."""
        return await self.compute(None, function, *args)

    async def launch(self, work: Work | None, function: Callable, *args) -> Any:
        """`compute`, which on a device may still run when this returns: later launches come after it, and a copy of its result to
        the host waits for it."""
        return await self.compute(work, function, *args)

    async def compute_in_stages(
        self, work: Work, shares: Sequence[float], emit: Callable[[int, Any], None], function: Callable, *args
    ) -> Any:
        """`compute`, for a function that delivers its result in stages: `function(*args, deliver)` calls `deliver(k, part)`, and
        `emit(k, part)` follows on the event loop; in virtual time as soon as that share of the work is done."""
        loop = asyncio.get_running_loop()
        return await self.compute(work, function, *args, lambda k, part: loop.call_soon_threadsafe(emit, k, part))

    def to_message(self, tensor: torch.Tensor) -> Any:
        """What other parts are sent of a tensor: an array; where all parts share a process, one on the tensor's device."""
        return np.asarray(to_native(tensor))

    @abstractmethod
    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        """Return the members' element-wise mean; every member calls it and gets an array of its own."""

    @abstractmethod
    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        """Return every member's one-dimensional array, by ascending rank; they may differ in length."""

    def shared_object(self, key: str, make: Callable[[], Any]) -> Any:
        """Return an object that parts share, and that they use inside `compute` alone; `make` makes it at first."""
        if key not in self.objects:
            self.objects[key] = make()
        return self.objects[key]

    @abstractmethod
    def persistent_object(self, key: str, make: Callable[[str | None], Any]) -> Any:
        """Return what of a part that returns outlives this node's process: `make(name)` finds it under a name that is unique on
        its machine. Where all nodes share a process it is an object, made once by `make(None)`."""

    @abstractmethod
    def note_batch_done(self, samples: int) -> None:
        """Report samples that were trained on since the last call: one more batch."""


class World(ABC):
    """A cluster that is running.

    A call to a node that is dead, or dies before it answers, raises `NodeLost`; a mean or gather that a member can no longer
    join raises `MemberLost`. A part's attribute `record`, if it has one, outlives its node: see `take_records_of_dead`.
    """

    failure_schedule: FailureSchedule
    records: dict[str, list[Any]]
    """Node -> the records of its parts that died with it."""
    collective_backend: str | None = None
    """What workers average with, where they are processes: "nccl" or "gloo"."""

    @abstractmethod
    async def host(self, part: type, *args, node: str, returns: bool = False) -> Handle:
        """Put `part(site, *args)` on a node: "server0", "worker3" or "master".

        `returns`: when the node is up again after a death, so is the part, with its survivors, and calls that it had not answered
        are made again in their order. It must recognise a call that it has begun before.
        """

    @abstractmethod
    def now(self) -> float: ...

    def start_failure_clock(self) -> None:  # noqa: B027 - most worlds need nothing where nothing fails
        """Start the clock of the failures, unless it runs: training starts or continues now on the nodes that are up."""

    async def dead_node_in(self, error: BaseException) -> str | None:
        """The node whose death led to that error; None if the cause was another."""
        lost = first_in_group(error)
        return lost.node if isinstance(lost, NodeLost) else None

    async def wait_until_up(self, node: str) -> bool:
        """Wait until a node that may die is up; False if it never will be again."""
        return await self.failure_schedule.wait_until_up(node)

    def take_records_of_dead(self, node: str) -> list[Any]:
        """Hand over the records of the parts that died with a node."""
        return self.records.pop(node, [])

    @abstractmethod
    async def restart_all_nodes(self) -> list[Any]:
        """End every part on every node and start the nodes again, empty; the records of all parts."""

    async def clear_parts(self) -> None:
        """Remove all parts that were hosted so far; their nodes stay up."""
        self.records.clear()

    def is_dead(self, node: str) -> bool:
        return self.failure_schedule.is_dead(node)

    async def drain_orphaned_calls(self) -> None:  # noqa: B027 - most worlds have no calls that outlive their caller
        """Wait until every call that a dead node had issued has ended."""

    def paused_clock(self) -> AbstractContextManager:
        """Make calls take no modelled time inside the context."""
        return nullcontext()

    checkpoints: bool = False
    """Whether `state` will be called; set before anything is hosted."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs to continue from here; called while no call is under way."""
        return {"clock": self.now()}

    @abstractmethod
    async def restore(self, state: dict[str, Any]) -> None:
        """Continue from that state, at its time, in a fresh world with no call under way."""

    def events(self) -> int | None:
        """The number of callbacks that a modelled world has run; None on a wall clock."""
        return None

    def usage(self) -> list[Usage]:
        """What each node and link did, if the world knows."""
        return []

    @abstractmethod
    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        """Return the result of `await main(self)`. Ctrl-C stops everything that the world started, then is raised."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Checked, ABC):
    """A description of where to run."""

    name: ClassVar[str]
    clock: ClassVar[Literal["virtual", "wall"]]

    workers: Count | None = None
    """Number of workers; None: as many as there are speeds, else 4; a pipeline has one device."""
    servers: Count = 1
    """Number of parameter servers."""
    slowdown: Slowdown = field(default=Lognormal(sigma=0.0))
    """Stragglers among the workers; a number is the sigma of independent lognormal slowdowns of each batch, a word the name of a
    preset or of a YAML file. On a wall clock a worker really waits that much longer."""
    speeds: tuple[Positive, ...] = ()
    """Steady speed of each worker relative to the others, by rank; empty: all equal."""
    failures: tuple[Failure, ...] = ()
    """Failures of nodes and connections."""
    mishaps: Mishaps = field(default=Mishaps())
    """Late and lost messages."""
    patience: Seconds = 1.0
    """Seconds of silence after which the others continue without a node."""
    device: str = "cpu"
    """Where gradients are computed and models evaluated: "cpu", "cuda" or "cuda:1"."""
    captured: bool = False
    """Replay a step's forward and backward pass as one CUDA graph where the shapes of a worker's batches repeat, with rows padded
    to buckets; the summary's `steps_captured` says of how many. A model that cannot be captured is an error. It keeps a copy of a
    step's memory for each shape, and is not run on a card yet. Without a CUDA device it gains nothing."""

    @classmethod
    def error_label(cls) -> str:
        return f"{cls.name} cluster"

    def __post_init__(self):
        if self.speeds and self.workers is None:
            object.__setattr__(self, "workers", len(self.speeds))
        if self.speeds and len(self.speeds) != self.workers:
            raise BadOption(f"{self.name} cluster: {len(self.speeds)} speeds for {self.workers} workers")
        for number, failure in enumerate(self.failures):
            for end in failure.connection or (failure.node,):
                self._check_node(f"failures[{number}].node", end, many=True)
        self._check_device()

    @property
    def may_fail(self) -> bool:
        """Whether anything may go wrong in this cluster."""
        return bool(self.failures or self.mishaps)

    @property
    def evaluation_device(self) -> str:
        """Where this process evaluates the model, and servers compute."""
        return self.device

    @abstractmethod
    def open(self, seed: int, workers: int) -> World: ...

    def slowdown_function(self, seed: int, node: str) -> Callable[[float, float], float] | None:
        """Return the function of a start and seconds that says how long a worker takes; None for nodes that nothing slows."""
        rank, even = worker_rank(node), self.slowdown == Lognormal(sigma=0.0) and not self.speeds
        if rank is None or even:
            return None
        speed = self.speeds[rank] if self.speeds else 1.0
        path = self.slowdown.sample_path(seed, node, rank)
        return lambda start, seconds: path.stretch(start, seconds / speed)

    def failures_of(self, seed: int, node: str, batches_before: int = 0) -> NodeFailures:
        """A node's failures; `batches_before`: the number that it has computed in its generations before."""
        return NodeFailures(self.failures, seed, node, self.patience, batches_before)

    def _check_device(self) -> None:
        try:
            kind = torch.device(self.device).type
        except RuntimeError as error:
            raise BadOption(f"{self.error_label()}: device {self.device!r} is none that torch knows") from error
        if kind == "cuda" and not torch.cuda.is_available():
            raise BadOption(
                f'{self.error_label()}: torch sees no CUDA device for device="{self.device}"; use device="cpu"'
            )

    def _check_node(self, where: str, name: str, *, many: bool = False) -> None:
        """Raise an error if there is no such node; `many`: "worker*" and "*" stand for several."""
        role = name.rstrip("*0123456789" if many else "0123456789")
        number = name[len(role) :]
        last = {**dict.fromkeys(ROLES, math.inf), "worker": self.workers or 4, "server": self.servers}
        known = role in last and (number.isdigit() or (many and number == "*"))
        if not known and name != ("*" if many else "master"):
            several = "worker* and the like" if many else "master"
            nodes = f"worker0 ..., server0 ..., sync0, reader0, embedding0, {several}"
            raise BadOption(f"{self.error_label()}: {where}: no node {name!r}; nodes are {nodes}")
        if number.isdigit() and int(number) >= last[role]:
            raise BadOption(
                f"{self.error_label()}: {where}: no node {name!r}; the last {role} is {role}{last[role] - 1}"
            )


def nbytes(message: Any) -> int:
    """Return the bytes of all arrays in a message: its size on the network and in the books."""
    total, parts = 0, [message]
    while parts:
        part = parts.pop()
        kind = type(part)
        if kind is np.ndarray or kind is DeviceArray:
            total += part.nbytes
        elif kind is tuple or kind is list:
            parts += part
        elif kind is dict:
            parts += part.values()
        else:
            for name in _array_fields(kind):
                parts.append(getattr(part, name))
    return total


@cache
def _array_fields(kind: type) -> tuple[str, ...]:
    """The fields of a message that may hold arrays, without those that its class lists as `weightless`."""
    weightless = getattr(kind, "weightless", ())
    return tuple(each.name for each in fields(kind) if each.name not in weightless) if is_dataclass(kind) else ()


def run_in_thread(target: Callable[[], Any], interrupt: Callable[[], None]) -> Any:
    """Run `target` in a thread of its own (in Jupyter this one already runs an event loop) and return its result.

    Ctrl-C calls `interrupt`, waits for the thread to clean up, and is raised here."""
    running: Future = Future()  # an interrupted join would take the thread for ended (CPython 3.11's bpo-45274)

    def body() -> None:
        try:
            running.set_result(target())
        except BaseException as error:
            running.set_exception(error)

    thread = threading.Thread(target=body, name="lockstep", daemon=True)
    thread.start()
    interrupted = False
    while not running.done():
        try:
            wait([running], 0.2)
        except KeyboardInterrupt:
            interrupted = True
            interrupt()
    thread.join()  # a process that ends while a thread frees torch's memory is aborted
    if interrupted:
        raise KeyboardInterrupt
    if (error := running.exception()) is not None:
        raise first_in_group(error)
    return running.result()
