"""Asynchronous local SGD: Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024 (arXiv:2401.09135).

The rule in one sentence: a worker sends what its local steps came to as a gradient, and fetches the copy that this has moved.
The copy's momentum moves with every N-th gradient only, by their mean (delayed Nesterov). Between two exchanges a worker makes as
many steps as its speed allows (dynamic local updates, DyLU).

Paper -> code: the delayed Nesterov update with c = 0 -> `lib.store.optim.DelayedNesterov`, the copy's optimiser; epsilon,
beta, N -> `rate`, `momentum`, `delay`; H -> `every`; DyLU's H v / max v steps -> `period`, the seconds in which the fastest
makes H.

Special cases: delay = 1 is asynchronous DiLoCo with torch's Nesterov step, and with one worker DiLoCo.

Departures: DyLU's server measures the speeds; here who chooses `period` does. Data shards are one queue, which serves the same
end as the paper's sampling of shards. Rows of embedding tables follow Async.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Lt

from lib.options.checked import Count, Positive
from lib.options.units import Seconds
from lib.protocols.easgd import Downpour
from lib.protocols.mixing import Centre, Loop


@dataclass(frozen=True, kw_only=True)
class AsyncLocalSGD(Downpour):
    """Every few steps a worker brings the centre what it has moved, as a gradient of a Nesterov step with delayed momentum."""

    name: ClassVar = "async-local-sgd"
    cite: ClassVar = "Liu et al., Asynchronous Local-SGD Training for Language Modeling, 2024 (arXiv:2401.09135)"

    every: Count = 4
    """Local steps between two exchanges (H)."""
    period: Seconds = 0.0
    """Seconds between two exchanges, in which each worker makes the steps that it can (DyLU); 0: `every` steps are made."""
    rate: Positive = 0.7
    """The outer learning rate (epsilon)."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Of the outer step (beta)."""
    delay: Count = 4
    """Gradients from one move of the momentum to the next (N)."""
    optimizer: ClassVar = None

    @property
    def when(self) -> Loop:
        return Loop(seconds=self.period) if self.period else Loop(every=self.every)

    @property
    def exchange(self) -> Centre:
        outer = {"name": "delayed-nesterov", "lr": self.rate, "momentum": self.momentum, "every": self.delay}
        return Centre(servers=self.sync_servers, optimizer=outer)
