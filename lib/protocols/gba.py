"""GBA: Su et al., "GBA: A Tuning-free Approach to Switch between Synchronous and Asynchronous Training for
Recommendation Models", NeurIPS 2022.

The rule in one sentence: as BSP, an update takes any M gradients; each carries the token of the global step that it belongs to,
and one whose token is more than iota steps old is left out, but still counts in the divisor.

Paper -> code: the buffer of M gradients (Fig. 5) -> `BSP`; the token t_i = floor(i / M) -> `on_start`; f (Eq. 1) -> `_keeps`.
Algorithm 2, line by line, in the server's turn for the next M gradients: lines 17 and 18, the buffer is full -> `BSP.on_push`;
line 20, a dense gradient's weight by its token and the global step -> `weights`; line 21, a row gradient's weight by its token
and the step at which its id was last updated -> `row_weights`; line 22, the dense sum over N_a -> `Apply.divisor`; line 23, a
row's sum over the workers that met its id -> `rows_divided_by="met"`.

Special cases: M = 1 with iota infinite is Async. Among equal workers, M of them, it is Sync if a step's gradients have all
arrived before the first parameters for the next are read. Otherwise a worker whose gradient arrived early goes on from the
parameters of the step before: its token does not show that lag of one version, and no gradient is decayed for it. So data
staleness, which counts from tokens, is 0, while staleness, which counts updates since parameters were read, is not.

Departures: a server keeps an update's M gradients and sums them at its end, where the authors sum some in advance to save memory
(App. B); a weight depends on versions that change at updates only, so it is known on arrival, and both sums agree to rounding.
The buffer's rest is applied when the last worker leaves (the paper's last step, ceil(Q / M)). A decayed
gradient still counts in the divisor, as "divided by N_a" in Algorithm 2 says. An id's step of appearance is the one before this
update; line 19 sets it first, after which no gradient would be decayed by it. An update that leaves nothing of an id's gradients
is none of its steps. The paper prints t_i = floor(i / K) once; only M in its place gives the repeats that its text describes.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from lib.protocols.baselines import BSP
from lib.protocols.server_rule import ServerState


@dataclass(frozen=True, kw_only=True)
class GBA(BSP):
    """Token-controlled global batches: the global batch of synchronous training at the speed of asynchronous training.

    `size` is the paper's M, the gradients of an update; by default as many as there are workers, as the paper advises.
    Guarantee: no applied gradient's token is more than iota steps old; with M = workers its parameters are at most one more.
    """

    name: ClassVar = "gba"
    cite: ClassVar = "Su et al., GBA, NeurIPS 2022 (arXiv:2205.11048)"
    drops: ClassVar = True

    iota: Annotated[float, Ge(0)] = 3
    """Threshold of tolerance: a gradient more than this many steps old has weight 0."""

    @property
    def max_staleness(self) -> float:
        return self.iota + 1 if self.size is None else float("inf")

    def on_start(self, state: ServerState, worker: int) -> tuple[ServerState, int]:
        return replace(state, issued=state.issued + 1), state.issued // self.batches_a_step(len(state.clocks))

    def weights(self, state: ServerState) -> tuple[float, ...]:
        return tuple(float(self._keeps(push.token, state.step)) for push in state.pending)

    def row_weights(self, token: int, stamps: np.ndarray) -> np.ndarray:
        return self._keeps(token, stamps).astype(np.float32)

    def _keeps(self, token, step):
        return step - token <= self.iota
