"""Staleness that is bounded where work is let in, as in asynchronous reinforcement learning.

Fu et al., "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning", 2025 (arXiv:2505.24298).

The rule in one sentence: a worker may start only while all that was let in, also what is still computed, would be used up
within so many updates; an update takes the first N gradients to arrive.

Paper -> code: floor((N_r - 1) / B) <= i + eta, where N_r counts all trajectories let in until version i -> `may_start`, which
counts what is in flight or waits, N_r - i B; B -> `size`; eta -> `lag`.

Special cases: lag = 0 is Sync whose gradients are computed by the workers that are free, so that a fast one may bring several.
From `lag` x `size` >= the number of workers on, no worker waits, and it is BSP.

Departure: the bound is one at the door, as the paper's: a gradient of a worker that is slow from then on can be older than
`lag`.
"""

from dataclasses import dataclass
from typing import ClassVar

from lib.options.checked import Natural
from lib.protocols.baselines import BSP
from lib.protocols.hop import Begun, CountsSteps


@dataclass(frozen=True, kw_only=True)
class Admission(CountsSteps, BSP):
    """Any N gradients make an update, and a worker may start only while at most `lag` updates' worth of others are ahead of it.

    Guarantee: gradients that are computed or wait are never more than (lag + 1) N; with lag = 0 staleness is 0.
    """

    name: ClassVar = "admission"
    cite: ClassVar = "Fu et al., AReaL, 2025 (arXiv:2505.24298), staleness control"
    blocks: ClassVar = True

    lag: Natural = 0
    """Updates by which a gradient may be late if all workers are equally fast (eta)."""

    @property
    def max_staleness(self) -> float:
        return float("inf") if self.lag else 0

    def may_start(self, state: Begun, worker: int) -> bool:
        computed = sum(state.begun[other] - state.done[other] for other in state.active)
        return computed + len(state.pending) < (self.lag + 1) * self.batches_a_step(len(state.clocks))
