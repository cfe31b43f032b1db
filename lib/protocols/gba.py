"""GBA: Su et al., "GBA: A Tuning-free Approach to Switch between Synchronous and Asynchronous Training for
Recommendation Models", NeurIPS 2022.

The rule in one sentence: each batch carries the token of the global step that it belongs to, and an update aggregates the
next M gradients that arrive, without those whose token is too old.

Paper -> code: token t_i = floor(i / M) -> `on_start`; the gradient buffer (Fig. 5) -> `ServerState.held`; f (Eq. 1) ->
`_keeps`; the decay of embeddings by the id's own last step (Algorithm 2) -> `row_weights`; division by the workers that
met the id -> `rows_divided_by="met"`.

Special cases: workers of equal speed with M = workers give Sync; M = 1 with iota infinite gives Async.

Departures: the buffer's rest is applied when the last worker leaves (the paper's last step, ceil(Q / M)). A decayed
gradient still counts in the divisor, as "divided by N_a" in Algorithm 2 says. The paper prints t_i = floor(i / K) once;
only M in its place gives the repeats that its text describes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lib.errors import BadOption
from lib.protocols.server_rule import Apply, Decisions, Push, ServerRule, ServerState


@dataclass(frozen=True, kw_only=True)
class GBA(ServerRule):
    """Token-controlled global batches: the global batch of synchronous training at the speed of asynchronous training."""

    name: ClassVar = "gba"
    cite: ClassVar = "Su et al., GBA, NeurIPS 2022 (arXiv:2205.11048)"
    blocks: ClassVar = False
    drops: ClassVar = True
    data: ClassVar = "queue"

    buffer: int | None = None
    """M: gradients in one update; None: as many as there are workers, as the paper advises."""
    iota: float = 3
    """Threshold of tolerance: a gradient more than this many steps old has weight 0."""

    def __post_init__(self):
        if self.buffer is not None and self.buffer < 1:
            raise BadOption(f"gba: buffer must be at least 1, not {self.buffer}")
        if not self.iota >= 0:
            raise BadOption(f"gba: iota must be 0 or more, not {self.iota}")

    @property
    def max_staleness(self) -> float:
        return self.iota

    def batches_a_step(self, workers: int) -> int:
        return self.buffer or workers

    def on_start(self, state: ServerState, worker: int) -> tuple[ServerState, int]:
        return replace(state, issued=state.issued + 1), state.issued // self.batches_a_step(len(state.clocks))

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        state = state.receive(push)
        return self._apply(state) if len(state.held) >= self.batches_a_step(len(state.clocks)) else (state, ())

    def on_leave(self, state: ServerState, worker: int) -> tuple[ServerState, Decisions]:
        state = replace(state, active=state.active - {worker})
        return self._apply(state) if state.held and not state.active else (state, ())

    def row_weights(self, token: int, stamps: np.ndarray) -> np.ndarray:
        return self._keeps(token, stamps).astype(np.float32)

    def _apply(self, state: ServerState) -> tuple[ServerState, Decisions]:
        held = state.held
        weights = tuple(float(self._keeps(push.token, state.step)) for push in held)
        return state.release(), (Apply(held, weights, len(held)),)

    def _keeps(self, token, step):
        return step - token <= self.iota
