"""SPARTA: in every step all workers average a few parameters, others each time.

Beton et al., "Improving the Efficiency of Distributed Training using Sparse Parameter Averaging", ICLR workshop MCDC 2025: every
step, a random share p of the parameters is averaged over all workers.

Paper -> code: the share p -> `share`; the random index set of a step, the same for all -> `_chosen`, which is a hash of round and
place, since a rule draws no random numbers.

Special case: share = 1 is local SGD with H = 1. Departure: rows of embedding tables follow Async.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lib.options.checked import Share
from lib.protocols.baselines import Async
from lib.protocols.mixing import Mean, Mix, hash_places
from lib.protocols.replica_rule import ReplicaRule


@dataclass(frozen=True, kw_only=True)
class SPARTA(ReplicaRule):
    """In every step, all workers take the mean of a small share of the parameters, another share each time."""

    name: ClassVar = "sparta"
    cite: ClassVar = "Beton et al., Sparse Parameter Averaging, MCDC workshop at ICLR 2025"
    blocks: ClassVar = True
    drops: ClassVar = False
    rows: ClassVar = Async()
    exchange: ClassVar = Mean()

    share: Share = 0.1
    """Of the parameters, averaged in one step (p)."""

    def send(self, memory, mine: np.ndarray, round: int) -> np.ndarray:
        return mine[self._chosen(mine.size, round)]

    def merge(self, memory: Any, mine: np.ndarray, mix: Mix) -> tuple[Any, np.ndarray]:
        merged = mine.copy()
        merged[self._chosen(mine.size, mix.round)] = mix.theirs
        return memory, merged

    def _chosen(self, size: int, round: int) -> np.ndarray:
        """Where the round's parameters are: those whose hash is below the share."""
        return np.flatnonzero((hash_places(size, round) >> np.uint64(11)) < self.share * 2.0**53)
