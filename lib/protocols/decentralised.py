"""D-PSGD and AD-PSGD: no server and no collective, each worker averages with neighbours of its own.

Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017 (D-PSGD, Algorithm 1 on a ring); Lian
et al., "Asynchronous Decentralized Parallel SGD", ICML 2018 (AD-PSGD, Algorithm 1 with the bipartite graph of Appendix A).

Paper -> code: the mixing matrix W -> `DPSGD.weights`; AD-PSGD's atomic average of two -> `ADPSGD.update_centre` and `merge`.

Departures: AD-PSGD's active worker draws its passive partner at random; here each goes through all of them in turn, and chance
enters through the workers' speeds. Rows of embedding tables follow Async. The model is the average of all replicas, as in both
papers' theorems.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.protocols.baselines import Async
from lib.protocols.mixing import Loop, Mix, Neighbours, Peer
from lib.protocols.replica_rule import ReplicaRule


@dataclass(frozen=True, kw_only=True)
class DPSGD(ReplicaRule):
    """On a ring, while it computes its gradient, a worker takes the mean of its own and its two neighbours' parameters."""

    name: ClassVar = "d-psgd"
    cite: ClassVar = "Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017"
    blocks: ClassVar = True
    drops: ClassVar = False
    exchange: ClassVar = Neighbours()
    when: ClassVar = Loop(place="beside")
    rows: ClassVar = Async()
    model: ClassVar = "average"

    def weights(self, round: int, rank: int, workers: int):
        row = Counter()
        for other in (rank - 1, rank, rank + 1):
            row[other % workers] += 1 / 3
        return row


@dataclass(frozen=True, kw_only=True)
class ADPSGD(ReplicaRule):
    """While it computes its gradient, a worker of even rank averages with one of odd rank, which does not wait for it."""

    name: ClassVar = "ad-psgd"
    cite: ClassVar = (
        "Lian et al., Asynchronous Decentralized Parallel SGD, ICML 2018, Algorithm 1 (bipartite, Appendix A)"
    )
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"
    exchange: ClassVar = Peer()
    when: ClassVar = Loop(place="beside")
    rows: ClassVar = Async()
    model: ClassVar = "average"

    def partner(self, round: int, rank: int, workers: int) -> int | None:
        return None if rank % 2 else 2 * ((rank // 2 + round) % (workers // 2)) + 1

    def update_centre(self, copy, theirs):
        half = (theirs - copy) / 2
        return copy + half, -half

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        return memory, mine + mix.theirs
