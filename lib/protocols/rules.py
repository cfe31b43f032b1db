"""The three contracts: what a protocol decides, and nothing of how it is carried out.

A rule is a frozen dataclass, so its fields are its configuration, with an explicit state that the driver carries from hook
to hook. Hooks are pure: they return a new state and decisions; they never wait, draw random numbers or look at a clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from lib.errors import BadOption

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """What every protocol declares about itself; `tests/test_protocols.py` measures each declaration."""

    name: ClassVar[str]
    """The registered name."""
    cite: ClassVar[str]
    """Where it comes from."""
    family: ClassVar[Literal["server", "replica", "pipeline"]]
    blocks: ClassVar[bool]
    """Whether a fast worker ever waits for a slower one."""
    drops: ClassVar[bool]
    """Whether a gradient that was computed may be thrown away."""
    data: ClassVar[Literal["split", "queue"]] = "split"
    """How workers share the batches: by rank, or whoever asks next takes the next (no gain where `blocks`)."""

    @property
    def max_staleness(self) -> float:
        """No applied gradient is older than this many updates."""
        return float("inf")

    def batches_a_step(self, workers: int) -> int:
        """Batches that go into one step: into one update, or into one step of each worker."""
        return 1

    @property
    def sparse(self) -> Rule:
        """The rule that the rows follow; a protocol may name another than its own."""
        return self

    @property
    def dense(self) -> Rule:
        """The rule that the dense parameters follow."""
        return self


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two rules as one protocol: rows follow `sparse`, dense parameters follow `dense`."""

    sparse: Rule
    dense: Rule

    def __post_init__(self):
        allowed = {"server": {"server"}, "replica": {"server", "replica"}, "pipeline": {"pipeline"}}
        if self.sparse.family not in allowed[self.dense.family]:
            raise BadOption(
                f"dense {self.dense.name!r} ({self.dense.family}) cannot carry sparse {self.sparse.name!r} "
                f"({self.sparse.family}); its rows may follow a rule of: {', '.join(sorted(allowed[self.dense.family]))}"
            )

    @property
    def name(self) -> str:
        return f"{self.sparse.name}+{self.dense.name}"

    @property
    def data(self) -> str:
        """Batches are shared by rank only where both halves want it: a gated half would starve the queue's fast workers."""
        return "split" if "split" in (self.sparse.data, self.dense.data) else "queue"


# Server rules: gradients travel to a server.


@dataclass(frozen=True, slots=True)
class Push:
    """What a rule knows of a gradient that reached the server."""

    worker: int
    token: int
    batch: int


@dataclass(frozen=True, slots=True)
class Apply:
    """One update from these pushes: the sum of weight x gradient, over `divisor`."""

    pushes: tuple[Push, ...]
    weights: tuple[float, ...]
    divisor: float


@dataclass(frozen=True, slots=True)
class Drop:
    """These pushes are thrown away. A push that is in no decision is held."""

    pushes: tuple[Push, ...]


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server rule remembers; the same for all, so that one protocol can take over from another."""

    active: frozenset[int]
    """Workers that have not left."""
    clocks: tuple[int, ...]
    """Gradients received from each worker."""
    step: int = 0
    """Updates applied: the global step."""
    issued: int = 0
    """Tokens handed out."""
    held: tuple[Push, ...] = ()
    """Pushes that wait for their update."""

    def receive(self, push: Push) -> ServerState:
        clocks = (*self.clocks[: push.worker], self.clocks[push.worker] + 1, *self.clocks[push.worker + 1 :])
        return replace(self, clocks=clocks, held=(*self.held, push))

    def release(self) -> ServerState:
        """All that was held is applied as one update."""
        return replace(self, step=self.step + 1, held=())


Decisions = tuple[Apply | Drop, ...]


@dataclass(frozen=True, kw_only=True)
class ServerRule(Rule):
    """May this worker start? Which token does it carry? What becomes of this gradient?"""

    family: ClassVar = "server"

    rows_divided_by: Literal["met", "all"] = "met"
    """A row's summed gradient is divided by the pushes that met its id (GBA, Algorithm 2), or by the update's divisor."""

    def init(self, workers: int) -> ServerState:
        return ServerState(active=frozenset(range(workers)), clocks=(0,) * workers)

    def may_start(self, state: ServerState, worker: int) -> bool:
        return True

    def on_start(self, state: ServerState, worker: int) -> tuple[ServerState, int]:
        """The token of a starting worker: by default the global step whose parameters it reads."""
        return replace(state, issued=state.issued + 1), state.step

    @abstractmethod
    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]: ...

    def on_leave(self, state: ServerState, worker: int) -> tuple[ServerState, Decisions]:
        """A worker has no more data, or died: whoever waited for it must not wait for ever."""
        return replace(state, active=state.active - {worker}), ()

    def on_join(self, state: ServerState, worker: int) -> ServerState:
        """A worker that died is there again: level with the slowest of the others, so that it is nobody's straggler."""
        level = min((state.clocks[other] for other in state.active), default=state.step)
        clocks = (*state.clocks[:worker], level, *state.clocks[worker + 1 :])
        return replace(state, active=state.active | {worker}, clocks=clocks)

    def row_weights(self, token: int, stamps: np.ndarray) -> np.ndarray | None:
        """A weight for each row of one push, given the step at which each was last updated; None: the push's own weight."""
        return None


# Replica rules: every worker updates its own copy, copies are mixed.


@dataclass(frozen=True, kw_only=True)
class ReplicaRule(Rule):
    """Who mixes with whom, when, in the background or in the loop? How do mine and theirs merge?"""

    family: ClassVar = "replica"
    mixes: ClassVar[Literal["parameters", "gradients"]] = "parameters"
    background: ClassVar[bool] = False
    """A shadow task mixes while training goes on; else the worker mixes in its loop."""
    scheduled: ClassVar[bool] = True
    """Groups are known beforehand, and asked for while the worker computes; else when it is ready to mix."""
    centre: ClassVar[bool] = False
    """Each worker mixes with a copy on a sync server, whenever it likes; else workers meet in groups."""

    buckets: ClassVar[int] = 1
    """Parts in which a gradient is mixed."""

    every: int = 1
    """Steps between two mixes in the loop (k); a shadow task mixes as often as the network lets it."""

    def __post_init__(self):
        if self.every < 1:
            raise BadOption(f"{self.name}: every must be at least 1, not {self.every}")

    def batches_a_step(self, workers: int) -> int:
        return workers

    def init(self, start: np.ndarray) -> Any:
        """What one replica remembers between mixes (BMUF's global copy, for one); None where nothing."""
        return None

    def groups(self, round: int, workers: int) -> Groups:
        """The scheduled groups of a mixing round: a partition of the ranks."""
        return (tuple(range(workers)),)

    def form(self, waiting: Mapping[int, int], active: frozenset[int], workers: int) -> Groups:
        """The groups that can go now, given who waits at which round. By default: scheduled groups whose members that
        are still active all wait at the same round, without those who wait at a later one (they were lost, or the group
        broke when another was); a rule of dynamic groups decides by who is there."""
        formed, seen = [], set()
        for rank, round in sorted(waiting.items()):
            if rank in seen or rank not in active:
                continue
            scheduled = next(group for group in self.groups(round, workers) if rank in group)
            group = tuple(member for member in scheduled if member in active and waiting.get(member, round) <= round)
            if all(waiting.get(member) == round for member in group):
                formed.append(group)
                seen.update(group)
        return tuple(formed)

    def absorb(self, centre: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """The sync server's copy after a worker brought its own."""
        raise NotImplementedError(f"{self.name} has no sync server")

    def merge(self, memory: Any, mine: np.ndarray, theirs: np.ndarray) -> tuple[Any, np.ndarray]:
        """A replica after it met `theirs`: the group's mean, or the sync server's copy."""
        return memory, theirs


# Pipeline rules: one device, many batches in flight over a host store.


@dataclass(frozen=True, slots=True)
class Admission:
    """What a batch learns on the host just before its rows are read."""

    seen: int
    """Updates that are in the store."""
    safe: int
    """STE: cached rows up to this timestamp can never be needed again."""


@dataclass(frozen=True, slots=True)
class HostState:
    """What a pipeline rule remembers beside the host store."""

    finished: int = -1
    """MFT: the largest timestamp such that it and all before it are written."""
    early: frozenset[int] = frozenset()
    """Timestamps written out of order, beyond `finished` + 1."""
    outstanding: Mapping[int, int] = field(default_factory=dict)
    """Batch -> the MFT it was admitted with, from its reading to its writing."""


@dataclass(frozen=True, kw_only=True)
class PipelineRule(Rule):
    """How many batches may be in flight? Is a batch's read set validated before it is computed?"""

    family: ClassVar = "pipeline"
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"

    validates: ClassVar[bool]
    """Values that a batch read are replaced by newer ones of the device's cache before compute."""

    in_flight: int = 8
    """Most batches between the start of their reading and the end of their writing."""
    readers: int = 4
    """Reader tasks: host store to device queue."""
    writers: int = 4
    """Writer tasks: device to host store."""

    def __post_init__(self):
        for option in ("in_flight", "readers", "writers"):
            if getattr(self, option) < 1:
                raise BadOption(f"{self.name}: {option} must be at least 1, not {getattr(self, option)}")

    def init(self) -> HostState:
        return HostState()

    def may_read(self, state: HostState) -> bool:
        return len(state.outstanding) < self.in_flight

    def on_read(self, state: HostState, batch: int) -> tuple[HostState, Admission]:
        """Atomic with the reading of MFT: the batch becomes outstanding and learns what may be evicted."""
        outstanding = {**state.outstanding, batch: state.finished}
        seen = state.finished + 1 + len(state.early)
        return replace(state, outstanding=outstanding), Admission(seen, min(outstanding.values()))

    def on_written(self, state: HostState, batch: int, stamp: int) -> HostState:
        """A batch is in the store; MFT moves over all timestamps that are now without a gap."""
        early, finished = set(state.early) | {stamp}, state.finished
        while finished + 1 in early:
            finished += 1
            early.discard(finished)
        outstanding = {key: value for key, value in state.outstanding.items() if key != batch}
        return HostState(finished=finished, early=frozenset(early), outstanding=outstanding)

    def on_abandoned(self, state: HostState, batch: int) -> HostState:
        """A batch that was read will never be written."""
        return replace(state, outstanding={key: value for key, value in state.outstanding.items() if key != batch})

    def stale(self, read: np.ndarray, cached: np.ndarray) -> np.ndarray:
        """Which values of a batch must give way, by the timestamp that was read and the cache's (-1: not cached)."""
        return cached > read if self.validates else np.zeros(len(read), dtype=bool)
