"""Server rules: gradients travel to a server, and the rule says what becomes of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from lib.protocols.rule import Rule


@dataclass(frozen=True, slots=True)
class Push:
    """What a rule knows of a gradient that reached the server."""

    worker: int
    token: int
    """What `on_start` gave its worker."""
    batch: int
    read: int = 0
    """Updates that were in this server's store when its parameters were read: where reading takes time, or who starts is told
    later what to read, more than there were when the worker started."""


@dataclass(frozen=True, slots=True)
class Apply:
    """One update from these pushes: the sum of weight x gradient, over `divisor`."""

    pushes: tuple[Push, ...]
    weights: tuple[float, ...]
    divisor: float
    rate: float = 1.0
    """Times the optimisers' learning rates."""


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
    holders: frozenset[int] = frozenset()
    """Their workers, since a barrier asks for them often."""

    def receive(self, push: Push) -> ServerState:
        clocks = (*self.clocks[: push.worker], self.clocks[push.worker] + 1, *self.clocks[push.worker + 1 :])
        return replace(self, clocks=clocks, held=(*self.held, push), holders=self.holders | {push.worker})

    def release(self) -> ServerState:
        """All that was held is applied as one update."""
        return replace(self, step=self.step + 1, held=(), holders=frozenset())


Decisions = tuple[Apply | Drop, ...]


@dataclass(frozen=True, kw_only=True)
class ServerRule(Rule):
    """May this worker start? Which token does it carry? What becomes of this gradient?"""

    family: ClassVar = "server"
    states: ClassVar = (ServerState, Push)
    row_weights: ClassVar[Callable[..., np.ndarray] | None] = None
    """`row_weights(token, stamps)`: a weight for each row of one push, given the step at which each was last updated; None:
    the push's own weight."""
    corrected: ClassVar[Callable[..., tuple[np.ndarray, np.ndarray | None]] | None] = None
    """`corrected(gradient, now, read, memory)`: what an update takes in place of a gradient, given the values that it changes,
    those that the worker read, dense ones or rows, and what it gave beside the last one of the same parameters, zeros at first;
    and what is to be remembered now, an array of the gradient's shape, or None. None: the gradient as it is."""
    ahead: ClassVar[int] = 0
    """Batches whose parameters a worker reads before it comes to them; a rule that lets one choose has a field of that name. A
    worker's batches that were read and not yet pushed are then at most one more."""

    cache_steps: ClassVar[int] = 0
    """A worker trains on a copy of what it read, with its own updates of it, for at most so many steps more; fewer by as many as
    it was ahead of the slowest worker when it read. 0: it reads before each step."""

    rows_divided_by: Literal["met", "all"] = "met"
    """A row's summed gradient is divided by the pushes that met its id (GBA, Algorithm 2), or by the update's divisor."""

    def ordered(self, workers: int) -> bool:
        """Whether an update must find all before it in the store. Those of one gradient at arrival run side by side."""
        return self.batches_a_step(workers) > 1

    def init(self, workers: int) -> ServerState:
        return ServerState(active=frozenset(range(workers)), clocks=(0,) * workers)

    def may_start(self, state: ServerState, worker: int) -> bool:
        return True

    def on_start(self, state: ServerState, worker: int) -> tuple[ServerState, int]:
        """The token of a starting worker: by default the global step at which it starts; `Push.read` tells what it reads."""
        return replace(state, issued=state.issued + 1), state.step

    @abstractmethod
    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]: ...

    def on_leave(self, state: ServerState, worker: int) -> tuple[ServerState, Decisions]:
        """A worker has no more data, or died: whoever waited for it must not wait for ever."""
        return replace(state, active=state.active - {worker}), ()

    def on_cut(self, state: ServerState) -> ServerState:
        """Nothing is under way, and all workers go on together: from a queue, after unlike numbers of steps."""
        return state

    def on_join(self, state: ServerState, worker: int) -> ServerState:
        """A worker that died is there again: level with the slowest of the others, so that it is nobody's straggler, but not
        behind itself, so that it makes no step twice."""
        level = max(state.clocks[worker], min((state.clocks[other] for other in state.active), default=0))
        clocks = (*state.clocks[:worker], level, *state.clocks[worker + 1 :])
        return replace(state, active=state.active | {worker}, clocks=clocks)
