"""Bounded staleness and backup workers over a parameter server, as GBA's paper measures them under Hop's names: Luo et al., "Hop:
Heterogeneity-aware Decentralized Training", ASPLOS 2019.

Paper -> code: b1, the largest difference between two workers' versions -> `HopBS.bound`; b3, the stragglers that a step does
not wait for -> `HopBW.spare`; s, the clocks by which a cached parameter may lag behind its reader -> `SSP.bound`.

Special cases: HopBS with bound 0 and SGD is Sync with the learning rate multiplied by `workers`; HopBW with no spare is Sync.

Departures: Hop itself has no server; here, as in GBA's comparison, gradients travel to one. A bound is counted in the steps
that workers have finished, as in stale synchronous parallel (Ho et al., NIPS 2013). SSP's cache there ages row by row; here all
of it is as old as its oldest part, and is read again in one go.

Staleness that is bounded where work is let in, as in asynchronous reinforcement learning.

Fu et al., "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning", 2025 (arXiv:2505.24298).

The rule of admission in one sentence: a worker may start only while all that was let in, also what is still computed, would be
used up within so many updates; an update takes the first N gradients to arrive.

Paper -> code: floor((N_r - 1) / B) <= i + eta, where N_r counts all trajectories let in until version i -> `may_start`, which
counts what is in flight or waits, N_r - i B; B -> `size`; eta -> `lag`.

Special cases: lag = 0 is Sync whose gradients are computed by the workers that are free, so that a fast one may bring several.
From `lag` x `size` >= the number of workers on, no worker waits, and it is BSP.

Departure: the bound is one at the door, as the paper's: a gradient of a worker that is slow from then on can be older than
`lag`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lib.options.checked import Natural
from lib.protocols.baselines import BSP, Sync
from lib.protocols.server_rule import Apply, Decisions, Drop, Push, ServerRule, ServerState, with_value


@dataclass(frozen=True, slots=True)
class StepCounts(ServerState):
    """Counts steps since the run's last checkpoint too, from which all workers go on together."""

    begun: tuple[int, ...] = ()
    """Steps that each worker started; more than `done` where it pulls ahead."""
    done: tuple[int, ...] = ()
    """Steps of each worker whose gradients arrived."""

    def receive(self, push: Push) -> StepCounts:
        done = with_value(self.done, push.worker, self.done[push.worker] + 1)
        return replace(ServerState.receive(self, push), done=done)


@dataclass(frozen=True, kw_only=True)
class StepCountingRule(ServerRule):
    """A rule whose gate looks at the steps that workers have started and finished."""

    states: ClassVar = (StepCounts, Push)

    def init(self, workers: int) -> StepCounts:
        none = (0,) * workers
        return StepCounts(active=frozenset(range(workers)), clocks=none, begun=none, done=none)

    def on_start(self, state: StepCounts, worker: int) -> tuple[StepCounts, int]:
        state, token = super().on_start(state, worker)
        return replace(state, begun=with_value(state.begun, worker, state.begun[worker] + 1)), token

    def on_pause(self, state: StepCounts) -> StepCounts:
        """Count anew: a worker that waits here for one with fewer steps could keep that one waiting in an all-reduce."""
        none = (0,) * len(state.done)
        return replace(state, begun=none, done=none)

    def on_join(self, state: StepCounts, worker: int) -> StepCounts:
        """Count its lost steps as neither started nor done, level with the slowest of the others."""
        level = max(state.done[worker], min((state.done[other] for other in state.active), default=0))
        begun, done = (with_value(steps, worker, level) for steps in (state.begun, state.done))
        return replace(super().on_join(state, worker), begun=begun, done=done)


@dataclass(frozen=True, kw_only=True)
class HopBS(StepCountingRule):
    """Bounded staleness: gradients are applied on arrival, and no worker is more than some steps ahead of the slowest.

    Guarantee: with a bound of b, N workers' gradients are at most (N - 1)(2 b + 1) updates old; min(a, b) more where they pull
    a batches ahead.
    """

    name: ClassVar = "hop-bs"
    cite: ClassVar = "Ho et al., SSP, NIPS 2013; Luo et al., Hop, ASPLOS 2019"
    blocks: ClassVar = True
    drops: ClassVar = False

    bound: Natural = 2
    """b1: a worker may have started at most so many steps more than the slowest has finished when it starts the next."""
    pull_ahead: Natural = 0
    """Batches whose parameters a worker pulls before it comes to them, as far as the bound permits."""

    def may_start(self, state: StepCounts, worker: int) -> bool:
        done = state.done
        if len(state.active) < len(
            done
        ):  # else as they are: with hundreds of workers at the gate this is most of a run
            done = tuple(done[other] for other in state.active)
        return state.begun[worker] - min(done) <= self.bound

    def on_push(self, state: StepCounts, push: Push) -> tuple[StepCounts, Decisions]:
        return state.receive(push).release(), (Apply((push,), (1.0,), 1),)


@dataclass(frozen=True, kw_only=True)
class SSP(HopBS):
    """Bounded staleness with a cache: a worker pulls all again only when its copy is too old, and sees its own updates.

    Guarantee: a worker that has done c steps sees all gradients of others' first c - b; with N workers no gradient is more than
    (N - 1)(2 b + 1) + b updates old.
    """

    name: ClassVar = "ssp"
    cite: ClassVar = (
        "Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013"
    )

    pull_ahead: ClassVar = 0

    @property
    def cache_steps(self) -> int:
        """The bound holds for what a worker reads as it does for its start."""
        return self.bound


@dataclass(frozen=True, kw_only=True)
class HopBW(Sync):
    """Backup workers: a step ends with its first gradients, and those of the slowest workers are thrown away.

    Guarantee: staleness 0; every update has one gradient from each worker but the spare ones.
    """

    name: ClassVar = "hop-bw"
    cite: ClassVar = "Chen et al., Revisiting Distributed Synchronous SGD, 2016; Luo et al., Hop, ASPLOS 2019"
    drops: ClassVar = True
    data: ClassVar = "queue"

    spare: Natural | None = None
    """b3: workers that a step does not wait for; None: a fifth of all."""

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        if push.token < state.step:
            return state.drop(push), (Drop((push,)),)
        return super().on_push(state, push)

    def _apply_if_complete(self, state: ServerState) -> tuple[ServerState, Decisions]:
        workers = len(state.clocks)
        spare = workers // 5 if self.spare is None else self.spare
        needed = max(1, min(workers - spare, len(state.active)))
        if len(state.pending) < needed:
            return state, ()
        return self._mean(state)


@dataclass(frozen=True, kw_only=True)
class Admission(StepCountingRule, BSP):
    """Any N gradients make an update, and a worker may start only while at most `lag` updates' worth of others are ahead of it.

    Guarantee: gradients that are computed or wait are never more than (lag + 1) N; with lag = 0 staleness is 0.
    """

    name: ClassVar = "admission"
    cite: ClassVar = "Fu et al., AReaL, 2025 (arXiv:2505.24298), staleness control"
    blocks: ClassVar = True
    first_come: ClassVar = True

    lag: Natural = 0
    """Updates by which a gradient may be late if all workers are equally fast (eta)."""

    @property
    def max_staleness(self) -> float:
        return float("inf") if self.lag else 0

    def may_start(self, state: StepCounts, worker: int) -> bool:
        computed = sum(state.begun[other] - state.done[other] for other in state.active)
        return computed + len(state.pending) < (self.lag + 1) * self.batches_a_step(len(state.clocks))
