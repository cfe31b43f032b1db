"""EASGD and Downpour: replicas that train alone and meet a copy in the middle every few steps.

Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD", NeurIPS 2015, Algorithm 1 (asynchronous EASGD); Dean et
al., "Large Scale Distributed Deep Networks", NeurIPS 2012, Section 4.1 (Downpour SGD).

Paper -> code: x~ <- x~ + alpha (x_i - x~) -> `EASGD.update_centre`; x_i <- x_i - alpha (x_i - x~) -> `EASGD.merge`; Downpour's
accrued gradient -> `Downpour.send`; its fetch -> `Downpour.merge`.

Special cases: EASGD with alpha = 0 is no sync; Downpour with n = 1 and SGD makes Async's updates, at the worker.

Departures: Downpour pushes and fetches in one exchange (apart, n_push and n_fetch are `Async(fetch=..., sums=...)`), and what is
pushed is what the workload's optimiser made of the gradients; with SGD it is their sum, which `optimizer` steps the centre by,
as the paper's server does by Adagrad. Rows of embedding tables follow Async in both.

Asynchronous local SGD: Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024 (arXiv:2401.09135).

The rule of async-local-sgd in one sentence: a worker sends what its local steps came to as a gradient, and fetches the copy
that this has moved. The copy's momentum moves with every N-th gradient only, by their mean (delayed Nesterov). Between two
exchanges a worker makes as many steps as its speed allows (dynamic local updates, DyLU).

Paper -> code: the delayed Nesterov update with c = 0 -> `lib.store.optim.DelayedNesterov`, the copy's optimiser; epsilon,
beta, N -> `rate`, `momentum`, `delay`; H -> `every`; DyLU's H v / max v steps -> `period`, the seconds in which the fastest
makes H.

Special cases: delay = 1 is asynchronous DiLoCo with torch's Nesterov step, and with one worker DiLoCo.

Departures: DyLU's server measures the speeds; here the user does, to choose `period`. Data shards are one queue, which serves
the same end as the paper's sampling of shards. Rows of embedding tables follow Async.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Lt

from lib.options.checked import Count, Positive, Share
from lib.options.units import Seconds
from lib.protocols.baselines import Async
from lib.protocols.mixing import Centre, Loop, Mix
from lib.protocols.replica_rule import ReplicaRule


@dataclass(frozen=True, kw_only=True)
class _CentreRule(ReplicaRule):
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"
    rows: ClassVar = Async()
    model: ClassVar = "centre"

    every: Count = 1
    """Steps between two exchanges (EASGD's tau, Downpour's n_push = n_fetch)."""
    sync_servers: Count = 1
    """Parts of the centre."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every)

    @property
    def exchange(self) -> Centre:
        return Centre(servers=self.sync_servers)


@dataclass(frozen=True, kw_only=True)
class EASGD(_CentreRule):
    """Every few steps a worker and the centre move towards each other, by the same elastic force; the centre is the model."""

    name: ClassVar = "easgd"
    cite: ClassVar = "Zhang et al., Deep learning with Elastic Averaging SGD, NeurIPS 2015, Algorithm 1"

    alpha: Share = 0.25
    """Elastic force (alpha)."""

    def update_centre(self, centre: np.ndarray, message: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return centre + self.alpha * (message - centre), centre

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        return memory, mine - self.alpha * (mix.sent - mix.theirs)


@dataclass(frozen=True, kw_only=True)
class Downpour(_CentreRule):
    """Every few steps a worker adds to the centre by how much it has moved since it last fetched it, and fetches it anew."""

    name: ClassVar = "downpour"
    cite: ClassVar = "Dean et al., Large Scale Distributed Deep Networks, NeurIPS 2012, Section 4.1"

    optimizer: Any = None
    """Of the centre, which steps by how far workers have moved against their gradients (the paper's has Adagrad); None: it moves
    as far."""

    @property
    def exchange(self) -> Centre:
        return Centre(servers=self.sync_servers, optimizer=self.optimizer)

    def init(self, start: np.ndarray) -> np.ndarray:
        """The centre as it was fetched."""
        return start.copy()

    def memory_on_rejoin(self, donor_memory: np.ndarray, donor_replica: np.ndarray) -> np.ndarray:
        """What the donor had not pushed is the donor's to push."""
        return donor_replica.copy()

    def send(self, memory: np.ndarray, mine: np.ndarray, round: int) -> np.ndarray:
        return memory - mine

    def update_centre(self, centre: np.ndarray, message: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        moved = centre - message
        return moved, moved

    def merge(self, memory: np.ndarray, mine: np.ndarray, mix: Mix):
        return mix.theirs.copy(), mix.theirs + (mine - memory + mix.sent)


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
