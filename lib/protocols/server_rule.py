"""Server rules: gradients travel to a server, and the rule says what becomes of them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from lib.errors import BadOption
from lib.protocols.rule import Rule


@dataclass(frozen=True, slots=True)
class Push:
    """What a rule knows of a gradient that reached the server."""

    worker: int
    token: int
    """The answer of `on_start` when its step began."""
    batch: int
    read: int = 0
    """Updates that were in this server's store when the step's parameters were read. Reading takes time, so these can be more
    than when the step began."""


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
    """These pushes are thrown away. A push that is in no decision waits."""

    pushes: tuple[Push, ...]


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server rule; the same fields for all, so that one protocol can take over from another."""

    active: frozenset[int]
    """Workers that have not left."""
    clocks: tuple[int, ...]
    """Gradients received from each worker."""
    step: int = 0
    """Updates applied: the global step."""
    issued: int = 0
    """Tokens handed out."""
    pending: tuple[Push, ...] = ()
    """Pushes that wait for their update."""
    pending_workers: frozenset[int] = frozenset()
    """The workers of the waiting pushes; a barrier needs them often."""

    def receive(self, push: Push) -> ServerState:
        """Count a gradient and let it wait."""
        workers = self.pending_workers | {push.worker}
        return replace(self.drop(push), pending=(*self.pending, push), pending_workers=workers)

    def drop(self, push: Push) -> ServerState:
        """Count a gradient that is dropped on arrival."""
        return replace(self, clocks=with_value(self.clocks, push.worker, self.clocks[push.worker] + 1))

    def release(self) -> ServerState:
        """Apply all waiting pushes as one update."""
        return replace(self, step=self.step + 1, pending=(), pending_workers=frozenset())


Decisions = tuple[Apply | Drop, ...]


def with_value(values: tuple, place: int, value: Any) -> tuple:
    """The values with another one in this place."""
    return (*values[:place], value, *values[place + 1 :])


@dataclass(frozen=True, kw_only=True)
class ServerRule(Rule):
    """May this worker start? Which token does it carry? What becomes of this gradient?"""

    family: ClassVar = "server"
    states: ClassVar = (ServerState, Push)
    row_weights: ClassVar[Callable[..., np.ndarray] | None] = None
    """`row_weights(token, stamps)`: a weight for each row of one push, given the step at which each was last updated; None:
    the push's own weight."""
    compensate: ClassVar[Callable[..., tuple[np.ndarray, np.ndarray | None]] | None] = None
    """`compensate(gradient, now, read, memory)`: the gradient that an update takes in place of a worker's, dense or of rows, and
    the new memory, an array of the same shape or None. `now` are the values that the update changes, `read` those that the
    worker read, `memory` the last memory of the same parameters, zeros at first. None: the gradient as it is."""
    pull_ahead: ClassVar[int] = 0
    """Batches whose parameters a worker pulls before it comes to them; a rule with a choice has a field of that name. At most
    one more of a worker's batches are then pulled and not pushed."""
    first_come: ClassVar[bool] = False
    """Whether the gate has a number of places, and who comes first has one. The first server alone hands them out then, before a
    worker asks the others: two servers could each give the last place to another worker."""
    cache_steps: ClassVar[int] = 0
    """Further steps for which a worker trains on a copy of what it pulled, with its own updates; fewer by as many steps as it
    was ahead of the slowest worker at the pull. 0: it pulls before each step."""

    rows_divided_by: Literal["met", "all"] = "met"
    """A row's summed gradient is divided by the pushes that met its id (GBA, Algorithm 2), or by the update's divisor."""

    def updates_serially(self, workers: int) -> bool:
        """Whether an update waits for those before it. Updates of one gradient each, on arrival, run side by side."""
        return self.batches_a_step(workers) > 1

    def init(self, workers: int) -> ServerState:
        return ServerState(active=frozenset(range(workers)), clocks=(0,) * workers)

    def may_start(self, state: ServerState, worker: int) -> bool:
        return True

    def on_start(self, state: ServerState, worker: int) -> tuple[ServerState, int]:
        """Give a starting worker its token, by default the global step; `Push.read` says which version it then reads."""
        return replace(state, issued=state.issued + 1), state.step

    @abstractmethod
    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]: ...

    def on_leave(self, state: ServerState, worker: int) -> tuple[ServerState, Decisions]:
        """A worker has no more data, or died: others must not wait for it."""
        return replace(state, active=state.active - {worker}), ()

    def on_pause(self, state: ServerState) -> ServerState:
        """The run pauses for a checkpoint; all workers go on together, if they share a queue after different numbers of steps."""
        return state

    def on_join(self, state: ServerState, worker: int) -> ServerState:
        """A worker that died is back. Its clock is that of the slowest other, so that none waits for it, but not behind its own,
        so that it makes no step twice."""
        level = max(state.clocks[worker], min((state.clocks[other] for other in state.active), default=0))
        return replace(state, active=state.active | {worker}, clocks=with_value(state.clocks, worker, level))


def check_push(rule: ServerRule, before: ServerState, push: Push, answer: Any) -> tuple[ServerState, Decisions]:
    """Return the answer of `on_push` if it took the push."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], ServerState):
        raise BadOption(f"{rule.name}: on_push must return the new state and a tuple of decisions, not {answer!r:.80}")
    if answer[0].clocks[push.worker] != before.clocks[push.worker] + 1:
        raise BadOption(
            f"{rule.name}: on_push does not count the gradient of worker {push.worker}: begin with "
            "state.receive(push), or with state.drop(push) if it is dropped on arrival"
        )
    return answer


def check_decisions(
    rule: ServerRule, before: ServerState, after: ServerState, decisions: Any, waiting: Collection[Push]
) -> None:
    """Check that each push is decided once, in an update that can be made, and that the state counts the decisions."""
    kinds = {*map(type, decisions)} if isinstance(decisions, tuple) else {None}
    if not kinds <= {Apply, Drop}:
        right = "a tuple of Apply and Drop, () where there are none"
        raise BadOption(f"{rule.name}: decisions are {right}; got {decisions!r:.80}")
    decided, updates = [], 0
    for decision in decisions:
        decided += decision.pushes
        if isinstance(decision, Apply):
            _check_update(rule, decision)
            updates += 1
    if decided and (len({*decided}) < len(decided) or not {*decided} <= {*waiting}):
        raise BadOption(f"{rule.name}: decides twice of a push, or of one that is not there: {decided!r:.120}")
    left = len(waiting) - len(decided)
    if len(after.pending) != left:
        raise BadOption(
            f"{rule.name}: the state holds {len(after.pending)} pushes where {left} are not decided yet; hold a "
            "push by state.receive(push), and let go of what is applied by state.release()"
        )
    if after.step != before.step + updates:
        raise BadOption(
            f"{rule.name}: {updates} updates take the state from step {before.step} to {after.step}; state.release() counts each"
        )


def check_trained(rule: ServerRule, state: ServerState, waiting: int) -> None:
    """Refuse a rule that decided nothing in a whole run: it has trained nothing."""
    if waiting and not state.step and not state.active and waiting == sum(state.clocks):
        raise BadOption(
            f"{rule.name}: on_push never decided what becomes of a gradient, and {waiting} are held at the end: return (Apply("
            "...),) when there are enough, and what is left when the last worker leaves (on_leave)"
        )


def _check_update(rule: ServerRule, update: Apply) -> None:
    if len(update.weights) != len(update.pushes) or not all(map(math.isfinite, update.weights)):
        raise BadOption(f"{rule.name}: an update needs a finite weight for each of its pushes, not {update.weights}")
    if not (update.divisor > 0 and math.isfinite(update.divisor)):
        raise BadOption(f"{rule.name}: an update's divisor must be a positive number, not {update.divisor}")
    if not (update.rate >= 0 and math.isfinite(update.rate)):
        raise BadOption(f"{rule.name}: an update's rate is a factor of the learning rate, 0 or more, not {update.rate}")
