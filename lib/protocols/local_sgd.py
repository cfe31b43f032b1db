"""Local SGD and what grew out of it: replicas that train alone for some steps, then all take what their mean says.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; Lin et al., "Don't Use Large Mini-Batches, Use Local SGD",
ICLR 2020 (post-local SGD); Wang et al., "SlowMo", ICLR 2020; Douillard et al., "DiLoCo: Distributed Low-Communication Training of
Language Models", 2023 (arXiv:2311.08105).

Kamp et al., "Efficient Decentralized Deep Learning by Dynamic Model Averaging", ECML PKDD 2018 (dynamic averaging).

Paper -> code: H local steps -> `every`; post-local SGD's t' -> `until`; SlowMo's Algorithm 1, lines 7 and 8 -> `SlowMo.merge`;
DiLoCo's outer gradient, the outer copy minus the mean, and its Nesterov step, torch's -> `DiLoCo.outer_step`.

Guarantee: all replicas are equal after every mix. Special cases: post-local SGD with until = 0 is local SGD; SlowMo without
momentum and alpha = 1, and DiLoCo with momentum 0 and rate 1, are local SGD.

Departures: where one learner violates dynamic averaging's condition, all take the mean, as in its first form; the paper's
coordinator may do with some of them. Rows of embedding tables are the replica's and averaged with it, and have no part in that
condition; outer optimisers are for the dense parameters alone. The inner optimiser is the workload's, and its state stays local.

DES-LOC: Iacob et al., "DES-LOC: Desynced Low Communication Adaptive Optimizers for Training Foundation Models", ICLR 2026
(arXiv:2505.22549).

The rule of des-loc in one sentence: local steps of an adaptive optimiser, whose parameters are averaged often and whose moments,
which change more slowly, are averaged more rarely.

Paper -> code: K_x -> `every`; K_u and K_v, as multiples of K_x -> `first` and `second`, the paper's 3 and 6.

The hook `averaged_state`, for all means of groups: a rule sees parameters alone, and this one decides about the optimiser's
state.

Special cases: first = second = 1 is Local Adam; with SGD, which has no moments, it is local SGD.

Departures: moments are averaged after the step that they have made, with the parameters; the paper averages them in the midst
of it. With momentum its buffer is the first moment, with Adagrad its sum the second. Moments of rows in a replica are averaged
as the network's are.

NoLoCo: Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models", 2025
(arXiv:2506.10911).

The rule of noloco in one sentence: after some local steps two workers meet, others each time, and each makes an outer step by
their mean gradient and towards their mean copy.

Paper -> code: delta <- alpha delta - (beta / n) sum Delta_j - gamma (phi_i - (1 / n) sum phi_j), phi <- phi + delta ->
`merge`; what is sent, phi and theta -> `send`; random pairs, alike for all -> `groups`, by a hash of round and rank.

Special cases: among workers whose copies are equal, as with two workers, gamma has no part; with gamma = beta = 1 and alpha =
0 a pair takes the mean of its replicas.

Departures: with an odd number of workers one is alone in a round. The paper also sends activations of its pipeline's stages to
random replicas, which here have none. Rows of embedding tables follow Async.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.options.checked import Count, Natural, NotNegative, Positive, Share
from lib.protocols.baselines import Async
from lib.protocols.mixing import Loop, Mean, Mix, hash_places
from lib.protocols.replica_rule import Groups, ReplicaRule


@dataclass(frozen=True, kw_only=True)
class LocalSGD(ReplicaRule):
    """Every worker trains alone for a few steps, then all take the mean."""

    name: ClassVar = "local-sgd"
    cite: ClassVar = "Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019"
    blocks: ClassVar = True
    drops: ClassVar = False

    every: Count = 4
    """Local steps (H)."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every)

    @property
    def max_staleness(self) -> float:
        return 0 if self.sparse is self else self.sparse.max_staleness


@dataclass(frozen=True, kw_only=True)
class PostLocalSGD(LocalSGD):
    """Local SGD that begins as its synchronous self."""

    name: ClassVar = "post-local-sgd"
    cite: ClassVar = "Lin et al., Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020"

    until: Natural = 4
    """Steps in which all workers mix each time (t')."""

    def is_due(self, step: int, seconds: float) -> bool:
        return step <= self.until or (step - self.until) % self.every == 0


@dataclass(frozen=True, kw_only=True)
class DynamicAveraging(LocalSGD):
    """Local SGD that takes the mean only where, every few steps, a replica is found to be too far from the last one."""

    name: ClassVar = "dynamic-averaging"
    cite: ClassVar = "Kamp et al., Efficient Decentralized Deep Learning by Dynamic Model Averaging, ECML PKDD 2018"
    exchange: ClassVar = Mean(ahead=False)

    distance: NotNegative = 0.3
    """How far, in L2 norm, a replica may go from the last mean (the root of Delta)."""

    def should_mix(self, moved: Mapping[int, float]) -> bool:
        return max(moved.values()) > self.distance


@dataclass(frozen=True, kw_only=True)
class OuterCopy(LocalSGD):
    """What it remembers is an outer copy and its momentum; the copy is the model."""

    def init(self, start: np.ndarray):
        return start.copy(), np.zeros_like(start)

    def as_model(self, memory, mine: np.ndarray) -> np.ndarray:
        return memory[0]


@dataclass(frozen=True, kw_only=True)
class SlowMo(OuterCopy):
    """Local SGD whose means are gradients of an outer copy with momentum; that copy is the model."""

    name: ClassVar = "slowmo"
    cite: ClassVar = "Wang et al., SlowMo: Improving Communication-Efficient Distributed SGD, ICLR 2020, Algorithm 1"

    beta: Share = 0.7
    """Slow momentum (beta)."""
    alpha: Positive = 1.0
    """Slow learning rate (alpha)."""
    rate: Positive = 0.1
    """The local steps' learning rate (gamma)."""

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        outer, momentum = memory
        momentum = self.beta * momentum + (outer - mix.theirs) / self.rate
        outer = outer - self.alpha * self.rate * momentum
        return (outer, momentum), outer


@dataclass(frozen=True, kw_only=True)
class DiLoCo(OuterCopy):
    """Local SGD whose mean minus the outer copy is the gradient of a Nesterov step of that copy, which is the model."""

    name: ClassVar = "diloco"
    cite: ClassVar = "Douillard et al., DiLoCo, 2023 (arXiv:2311.08105), Algorithm 1"

    rate: Positive = 0.7
    """The outer learning rate."""
    momentum: NotNegative = 0.9
    """Of the outer Nesterov step."""

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        outer, velocity = self.outer_step(*memory, memory[0] - mix.theirs)
        return (outer, velocity), outer

    def outer_step(self, outer: np.ndarray, velocity: np.ndarray, gradient: np.ndarray):
        """The outer copy and its momentum after a Nesterov step, as torch.optim's."""
        velocity = self.momentum * velocity + gradient
        return outer - self.rate * (gradient + self.momentum * velocity), velocity


@dataclass(frozen=True, kw_only=True)
class DESLOC(LocalSGD):
    """Local SGD that averages the optimiser's first moment in every few of its means, and the second in fewer."""

    name: ClassVar = "des-loc"
    cite: ClassVar = "Iacob et al., DES-LOC, ICLR 2026 (arXiv:2505.22549)"

    first: Count = 3
    """Means of the parameters from one of the first moment to the next (K_u / K_x)."""
    second: Count = 6
    """The same of the second moment (K_v / K_x)."""

    def averaged_state(self, round: int) -> tuple[str, ...]:
        first = () if (round + 1) % self.first else ("exp_avg", "momentum_buffer")
        return first if (round + 1) % self.second else (*first, "exp_avg_sq", "sum")


@dataclass(frozen=True, kw_only=True)
class NoLoCo(OuterCopy):
    """Local steps, then an outer step of two workers that a hash pairs: by their mean gradient, and towards their mean copy."""

    name: ClassVar = "noloco"
    cite: ClassVar = "Kolehmainen et al., NoLoCo, 2025 (arXiv:2506.10911)"
    rows: ClassVar = Async()
    model: ClassVar = "average"

    momentum: NotNegative = 0.5
    """Of the outer step (alpha)."""
    rate: Positive = 0.7
    """The outer learning rate (beta)."""
    pull: NotNegative = 0.7
    """How far an outer step goes towards the pair's mean copy (gamma)."""

    def groups(self, round: int, workers: int) -> Groups:
        order = np.argsort(hash_places(workers, round)).tolist()
        return tuple(tuple(order[first : first + 2]) for first in range(0, workers, 2))

    def send(self, memory, mine: np.ndarray, round: int) -> np.ndarray:
        return np.concatenate([memory[0], mine])

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        outer, velocity = memory
        copies, replicas = np.split(mix.theirs, 2)
        velocity = self.momentum * velocity + self.rate * (replicas - copies) + self.pull * (copies - outer)
        outer = outer + velocity
        return (outer, velocity), outer
