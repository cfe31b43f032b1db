"""NoLoCo: Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models", 2025
(arXiv:2506.10911).

The rule in one sentence: after some local steps two workers meet, others each time, and each makes an outer step by their mean
gradient and towards their mean copy.

Paper -> code: delta <- alpha delta - (beta / n) sum Delta_j - gamma (phi_i - (1 / n) sum phi_j), phi <- phi + delta ->
`merge`; what is sent, phi and theta -> `send`; random pairs, alike for all -> `groups`, by a hash of round and rank.

Special cases: among workers whose copies are equal, as with two workers, gamma has no part; with gamma = beta = 1 and alpha =
0 a pair takes the mean of its replicas.

Departures: with an odd number of workers one is alone in a round. The paper also sends activations of its pipeline's stages to
random replicas, which here have none. Rows of embedding tables follow Async.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.options.checked import NotNegative, Positive
from lib.protocols.baselines import Async
from lib.protocols.local_sgd import OuterCopy
from lib.protocols.mixing import Mix, scrambled
from lib.protocols.replica_rule import Groups


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
        order = np.argsort(scrambled(workers, round)).tolist()
        return tuple(tuple(order[first : first + 2]) for first in range(0, workers, 2))

    def send(self, memory, mine: np.ndarray, round: int) -> np.ndarray:
        return np.concatenate([memory[0], mine])

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        outer, velocity = memory
        copies, replicas = np.split(mix.theirs, 2)
        velocity = self.momentum * velocity + self.rate * (replicas - copies) + self.pull * (copies - outer)
        outer = outer + velocity
        return (outer, velocity), outer
