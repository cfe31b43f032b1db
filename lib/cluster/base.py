"""The contract that every cluster keeps, so that drivers and protocols never know which one carries them.

A cluster is a description. `cluster.open(seed)` makes a `World` of it; `world.run(main)` runs the coroutine function `main`
in it. `main` hosts parts on nodes and calls them through handles. A part is a plain class whose first argument is its
`Site`: the node that it stands on. Background tasks, locks, events and queues are asyncio's own, in every world.
"""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from lib.cluster.board import Meeting
from lib.cluster.faults.failures import ROLES, Failure, Mishaps, NodeFailures
from lib.cluster.faults.nodes import FailureSchedule
from lib.cluster.slowdowns import Lognormal, Slowdown
from lib.cluster.spec import Usage, Work
from lib.errors import BadOption, NodeLost, first_cause
from lib.options.checked import Checked, Count, NotNegative, Positive

Main = Callable[["World"], Awaitable[Any]]


class Handle:
    """A part somewhere else. `handle.method(...)` issues the call at once and returns an awaitable of its result; calls
    from one node to one part start there in the order in which they were issued."""

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *args: self._call(method, args)

    @abstractmethod
    def bind(self, site: Site) -> Handle:
        """The same part, to be called from that site; a part binds every handle that it is given."""

    @abstractmethod
    def _call(self, method: str, args: tuple) -> Awaitable[Any]: ...


def rank_of(node: str) -> int | None:
    """A worker's rank; None for other nodes."""
    return int(node.removeprefix("worker")) if node.startswith("worker") else None


class Site(ABC):
    """Where a part stands, and all that it may ask of its world."""

    node: str
    device: torch.device
    generation: int = 0
    """How many times this node had died before its current start."""

    @abstractmethod
    def now(self) -> float:
        """Seconds on the cluster's clock."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def compute(
        self, work: Work | None, function: Callable, *args, after: Collection[asyncio.Future] = ()
    ) -> Any:
        """Run a function on this node's processor. `work` is its modelled cost; None: it is not modelled.

        It begins when all of `after` is done, and in virtual time takes its place among the node's computations at once."""

    async def prepare(self, samples: int, function: Callable, *args) -> Any:
        """Run a function that makes so many samples of raw data."""
        return await self.compute(None, function, *args)

    async def launch(self, work: Work | None, function: Callable, *args) -> Any:
        """`compute`, which on a device need not be over when this returns: what is launched next comes after it there, and who
        takes a result to the host waits for it."""
        return await self.compute(work, function, *args)

    async def staged(
        self, work: Work, shares: Sequence[float], emit: Callable[[int, Any], None], function: Callable, *args
    ) -> Any:
        """`compute`, for a function that tells its parts while it runs: `function(*args, tell)` calls `tell(k, part)`, and
        `emit(k, part)` follows on the event loop; in virtual time as soon as that share of the work is done."""
        loop = asyncio.get_running_loop()
        return await self.compute(work, function, *args, lambda k, part: loop.call_soon_threadsafe(emit, k, part))

    @abstractmethod
    async def mean(self, meeting: Meeting, mine: np.ndarray) -> np.ndarray:
        """The members' element-wise mean; every member calls it, and gets an array of its own."""

    @abstractmethod
    async def gather(self, meeting: Meeting, mine: np.ndarray) -> list[np.ndarray]:
        """Every member's one-dimensional array, by ascending rank; they may differ in length."""

    @abstractmethod
    def shared(self, key: str, make: Callable[[], Any]) -> Any:
        """An object that parts may share as long as they use it inside `compute` alone."""

    @abstractmethod
    def progress(self, samples: int) -> None:
        """Samples that were trained on since the last call."""


class World(ABC):
    """A cluster that is running.

    A call to a node that is dead, or dies before it answers, raises `NodeLost`; a mean or gathering that a member can no
    longer come to raises `MemberLost`. A part's attribute `record`, if it has one, outlives its node: see `take_records`.
    """

    failure_schedule: FailureSchedule
    records: dict[str, list[Any]]
    """What the parts of nodes that died had written down."""

    @abstractmethod
    async def host(self, part: type, *args, node: str) -> Handle:
        """Put `part(site, *args)` on a node: "server0", "worker3" or "master"."""

    @abstractmethod
    def now(self) -> float: ...

    def start_clock(self) -> None:  # noqa: B027 - most worlds need nothing where nothing fails
        """Start the clock of the failures, unless it runs; training starts or goes on now on the nodes that are up."""

    async def dead_node_in(self, error: BaseException) -> str | None:
        """The node whose death led to that error; None if the cause was another."""
        lost = first_cause(error)
        return lost.node if isinstance(lost, NodeLost) else None

    async def wait_until_up(self, node: str) -> bool:
        """Wait until a node that may die is up; False if it never will be again."""
        return await self.failure_schedule.wait_until_up(node)

    def take_records(self, node: str) -> list[Any]:
        """Hand over the records of the parts that died with a node."""
        return self.records.pop(node, [])

    @abstractmethod
    async def restart(self) -> list[Any]:
        """End every part on every node and start the nodes again, empty; the records of all parts."""

    async def clear(self) -> None:
        """Remove all parts that were hosted so far; their nodes stay up."""
        self.records.clear()

    def is_dead(self, node: str) -> bool:
        return self.failure_schedule.is_dead(node)

    async def drain(self) -> None:  # noqa: B027 - most worlds have no calls that outlive their caller
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
        """Callbacks that a modelled world has run; None on a wall clock."""
        return None

    def usage(self) -> list[Usage]:
        """How much each node and link did, where the world can tell."""
        return []

    @abstractmethod
    def run(self, main: Main, progress: Callable[[int], None] | None = None) -> Any:
        """The result of `await main(self)`. Ctrl-C stops everything that the world started, then comes through."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Checked, ABC):
    """A description of where to run."""

    name: ClassVar[str]
    clock: ClassVar[Literal["virtual", "wall"]]

    workers: Count | None = None
    """Number of workers; None: as many as there are speeds, else 4, or the one device of a pipeline."""
    servers: Count = 1
    """Number of parameter servers."""
    slowdown: Slowdown = field(default=Lognormal(sigma=0.0))
    """Stragglers among the workers; a number is the sigma of independent lognormal slowdowns of each batch, a word the name of a
    preset or of a YAML file. On a wall clock a worker really waits that much longer."""
    speeds: tuple[Positive, ...] = ()
    """Steady speed of each worker relative to the others, by rank; empty: all equal."""
    failures: tuple[Failure, ...] = ()
    """What goes wrong with nodes and connections."""
    mishaps: Mishaps = field(default=Mishaps())
    """What goes wrong with single messages."""
    patience: NotNegative = 1.0
    """Seconds for which the others hear nothing of a node until they go on without it."""

    @classmethod
    def owner(cls) -> str:
        return f"{cls.name} cluster"

    def __post_init__(self):
        if self.speeds and self.workers is None:
            object.__setattr__(self, "workers", len(self.speeds))
        if self.speeds and len(self.speeds) != self.workers:
            raise BadOption(f"{self.name} cluster: {len(self.speeds)} speeds for {self.workers} workers")
        for number, failure in enumerate(self.failures):
            for end in failure.connection or (failure.node,):
                self._check_node(f"failures[{number}].node", end, many=True)

    @property
    def fails(self) -> bool:
        """Whether anything goes wrong here."""
        return bool(self.failures or self.mishaps)

    @abstractmethod
    def open(self, seed: int, workers: int) -> World: ...

    def stretch(self, seed: int, node: str) -> Callable[[float, float], float] | None:
        """How long a worker's computation of `seconds` takes when it begins at `start`; None: other nodes are not slowed."""
        if (rank := rank_of(node)) is None:
            return None
        speed = self.speeds[rank] if self.speeds else 1.0
        path = self.slowdown.sample_path(seed, node, rank)
        return lambda start, seconds: path.stretch(start, seconds / speed)

    def failures_of(self, seed: int, node: str) -> NodeFailures:
        """What is to befall a node."""
        return NodeFailures.of(self.failures, seed, node, self.patience)

    def _check_node(self, where: str, name: str, *, many: bool = False) -> None:
        """An error for a node that there is not; `many`: "worker*" and "*" stand for several."""
        role = name.rstrip("*0123456789" if many else "0123456789")
        number = name[len(role) :]
        last = {**dict.fromkeys(ROLES, math.inf), "worker": self.workers or 4, "server": self.servers}
        known = role in last and (number.isdigit() or (many and number == "*"))
        if not known and name != ("*" if many else "master"):
            nodes = "worker0 ..., server0 ..., sync0, reader0, embedding0, " + (
                "worker* and the like" if many else "master"
            )
            raise BadOption(f"{self.owner()}: {where}: no node {name!r}; nodes are {nodes}")
        if number.isdigit() and int(number) >= last[role]:
            raise BadOption(f"{self.owner()}: {where}: no node {name!r}; the last {role} is {role}{last[role] - 1}")


def nbytes(message: Any) -> int:
    """The bytes of all arrays in a message: what it weighs on the way, and what is counted of it."""
    kind = type(message)
    if kind is np.ndarray:
        return message.nbytes
    if kind is dict:
        message = message.values()
    elif kind is not tuple and kind is not list:
        message = [getattr(message, name) for name in _names(kind)]
    total = 0
    for part in message:
        if type(part) is np.ndarray:
            total += part.nbytes
        elif type(part) not in _WEIGHTLESS:
            total += nbytes(part)
    return total


_WEIGHTLESS = frozenset((int, float, NoneType, bool, str))


@cache
def _names(kind: type) -> tuple[str, ...]:
    """The fields of a message that may hold arrays, but for those that it calls `weightless`."""
    weightless = getattr(kind, "weightless", ())
    return tuple(each.name for each in fields(kind) if each.name not in weightless) if is_dataclass(kind) else ()


def in_thread(target: Callable[[], Any], interrupt: Callable[[], None]) -> Any:
    """Run `target` in a thread of its own (in Jupyter this one already runs an event loop) and return its result.

    Ctrl-C calls `interrupt`, waits for the thread to clean up, and is raised here."""
    running: Future = Future()  # a join that Ctrl-C interrupts takes the thread for ended (CPython 3.11's bpo-45274)

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
    thread.join()  # a process that ends while it lets go of torch's memory is aborted
    if interrupted:
        raise KeyboardInterrupt
    if (error := running.exception()) is not None:
        raise first_cause(error)
    return running.result()
