"""DiLoCo that goes on training while it communicates.

Douillard et al., "Streaming DiLoCo with Overlapping Communication", 2025 (arXiv:2501.18512); Kale et al., "Eager Updates for
Overlapped Communication and Computation in DiLoCo", 2025 (arXiv:2502.12996).

Paper -> code: the fragments, whose send times t_p are spread over the H steps -> `fragments`, one in turn every H /
P steps, and strided as the paper's layers are; tau, the steps for which a fragment travels -> `overlap`; the merge alpha
theta_m + (1 - alpha) theta -> `StreamingDiLoCo.merge`. Eager: the own share of this phase's outer gradient instead of that of
the last one, while the others' of the last one have arrived -> `EagerDiLoCo.merge`.

The hook `Loop.overlap`, for all rules whose groups take a mean in the loop: a rule neither waits nor counts steps, and `place`
reaches no further than the step that mixes.

Special cases: one fragment with overlap = 0 and alpha = 0 is DiLoCo, to the bit; alpha = 1 is no synchronisation. Eager with
one worker is DiLoCo whose first outer step comes one phase late.

Departures: fragments are strides of the parameters, not of layers, and are sent in full precision, where the paper has four
bits; a fragment is merged at the latest when the next is sent. Eager has one fragment, and its first outer step comes with the
first mean. A pause merges what travels. Rows of embedding tables follow Async.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.options.checked import Count, Natural, Share
from lib.protocols.baselines import Async
from lib.protocols.local_sgd import DiLoCo
from lib.protocols.mixing import Loop, Mix


@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo whose parameters go in fragments, one after another, each of which travels while all go on training."""

    name: ClassVar = "streaming-diloco"
    cite: ClassVar = "Douillard et al., Streaming DiLoCo, 2025 (arXiv:2501.18512)"
    rows: ClassVar = Async()

    fragments: Count = 2
    """Parts of the parameters (P), of which one is sent every H / P steps, rounded up."""
    overlap: Natural = 1
    """Steps for which a fragment travels (tau)."""
    alpha: Share = 0.5
    """What a replica keeps of its own fragment when it takes the outer copy's (alpha)."""

    @property
    def when(self) -> Loop:
        return Loop(every=-(-self.every // self.fragments), overlap=self.overlap)

    def send(self, memory, mine: np.ndarray, round: int) -> np.ndarray:
        return mine[self._fragment(round)].copy()

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        part, outer, velocity, merged = self._fragment(mix.round), *(each.copy() for each in (*memory, mine))
        outer[part], velocity[part] = self.outer_step(outer[part], velocity[part], outer[part] - mix.theirs)
        merged[part] = self.alpha * mine[part] + (1 - self.alpha) * outer[part]
        return (outer, velocity), merged

    def _fragment(self, round: int) -> slice:
        return slice(round % self.fragments, None, self.fragments)


@dataclass(frozen=True, kw_only=True)
class EagerDiLoCo(DiLoCo):
    """DiLoCo whose outer gradients travel for a whole phase; meanwhile a worker counts on its own newest one."""

    name: ClassVar = "eager-diloco"
    cite: ClassVar = (
        "Kale et al., Eager Updates for Overlapped Communication and Computation in DiLoCo, 2025 (arXiv:2502.12996)"
    )
    rows: ClassVar = Async()
    model: ClassVar = "average"

    @property
    def when(self) -> Loop:
        return Loop(every=self.every, overlap=self.every)

    def init(self, start: np.ndarray):
        """The outer copy, its momentum, and what the copy has of this worker's gradient that is sent next, or travels."""
        return *super().init(start), np.zeros_like(start)

    def memory_on_rejoin(self, donor_memory, donor_replica: np.ndarray):
        return *donor_memory[:2], np.zeros_like(donor_replica)

    def send(self, memory, mine: np.ndarray, round: int) -> np.ndarray:
        outer, _, counted = memory
        return counted + (outer - mine)

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        outer, velocity, counted = memory
        # Since the replica sent: it had moved from the copy by what is not counted.
        fresh = outer - (mix.sent - counted) - mine
        gradient = mix.theirs + (fresh - counted) / np.float32(len(mix.members))
        outer, velocity = self.outer_step(outer, velocity, gradient)
        return (outer, velocity, fresh), outer
