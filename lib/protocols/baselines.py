"""The protocols that the papers compare theirs with."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lib.options.checked import Count, Natural
from lib.protocols.server_rule import Apply, Decisions, Drop, Push, ServerRule, ServerState


@dataclass(frozen=True, kw_only=True)
class Sync(ServerRule):
    """Every update is the mean of one gradient from each worker; no worker starts the next step before it.

    Guarantee: staleness 0; the result is that of one worker with the joined batch (with `rows_divided_by="all"`).
    A worker that leaves shrinks the barrier, so the last step of uneven data is the mean over the workers that are left.
    """

    name: ClassVar = "sync"
    cite: ClassVar = "Chen et al., Revisiting Distributed Synchronous SGD, 2016 (arXiv:1604.00981)"
    blocks: ClassVar = True
    drops: ClassVar = False
    max_staleness: ClassVar = 0

    def batches_a_step(self, workers: int) -> int:
        return workers

    def may_start(self, state: ServerState, worker: int) -> bool:
        return worker not in state.pending_workers

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        return self._apply_if_complete(state.receive(push))

    def on_leave(self, state: ServerState, worker: int) -> tuple[ServerState, Decisions]:
        return self._apply_if_complete(replace(state, active=state.active - {worker}))

    def _apply_if_complete(self, state: ServerState) -> tuple[ServerState, Decisions]:
        if not state.pending or len(state.pending) < len(state.active) or not state.active <= state.pending_workers:
            return state, ()
        return self._mean(state)

    def _mean(self, state: ServerState) -> tuple[ServerState, Decisions]:
        return state.release(), (Apply(state.pending, (1.0,) * len(state.pending), len(state.pending)),)


@dataclass(frozen=True, kw_only=True)
class Async(ServerRule):
    """Every gradient is applied the moment it arrives (Hogwild over a parameter server). No bound on staleness.

    Pulling ahead hides the transfers behind the computation, and makes each gradient older by as many steps of all workers.
    """

    name: ClassVar = "async"
    cite: ClassVar = "Dean et al., Large Scale Distributed Deep Networks, NeurIPS 2012 (Downpour SGD)"
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"

    pull_ahead: Natural = 0
    """Batches whose parameters a worker pulls before it comes to them."""

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        return state.receive(push).release(), (Apply((push,), (1.0,), 1),)


@dataclass(frozen=True, kw_only=True)
class BSP(ServerRule):
    """Any K gradients make an update, their mean, whatever parameters each was computed from. No bound on staleness.

    Special case: K = 1 is Async.
    """

    name: ClassVar = "bsp"
    cite: ClassVar = (
        "Valiant, A Bridging Model for Parallel Computation, 1990; as measured by Su et al., GBA, NeurIPS 2022"
    )
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"

    size: Count | None = None
    """K, GBA's b2: gradients in one update; None: as many as there are workers."""

    def batches_a_step(self, workers: int) -> int:
        return self.size or workers

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        state = state.receive(push)
        return self._apply(state) if len(state.pending) >= self.batches_a_step(len(state.clocks)) else (state, ())

    def on_leave(self, state: ServerState, worker: int) -> tuple[ServerState, Decisions]:
        """Make one more update of the rest when the last worker leaves."""
        state = replace(state, active=state.active - {worker})
        return self._apply(state) if state.pending and not state.active else (state, ())

    def weights(self, state: ServerState) -> tuple[float, ...]:
        """Weights of the waiting gradients in their update."""
        return (1.0,) * len(state.pending)

    def _apply(self, state: ServerState) -> tuple[ServerState, Decisions]:
        return state.release(), (Apply(state.pending, self.weights(state), len(state.pending)),)


@dataclass(frozen=True, kw_only=True)
class Frozen(ServerRule):
    """Every gradient is thrown away, so the model stays as it was: the difference to another protocol is all that can be lost."""

    name: ClassVar = "frozen"
    cite: ClassVar = "none: the control of every figure of quality"
    blocks: ClassVar = False
    drops: ClassVar = True
    data: ClassVar = "queue"
    max_staleness: ClassVar = 0

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        return state.drop(push), (Drop((push,)),)
