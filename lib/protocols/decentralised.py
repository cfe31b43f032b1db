"""D-PSGD and AD-PSGD: no server and no collective, each worker averages with neighbours of its own.

Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017 (D-PSGD, Algorithm 1 on a ring); Lian
et al., "Asynchronous Decentralized Parallel SGD", ICML 2018 (AD-PSGD, Algorithm 1 with the bipartite graph of Appendix A).

Paper -> code: the mixing matrix W -> `DPSGD.weights`; AD-PSGD's atomic average of two -> `ADPSGD.update_centre` and `merge`.

Departures: AD-PSGD's active worker draws its passive partner at random; here each goes through all of them in turn, and chance
enters through the workers' speeds. Rows of embedding tables follow Async. The model is the average of all replicas, as in both
papers' theorems.

Replicas that average in small groups of the first that are ready: Prague and SwarmAdam, which GBA's paper draws with Sync and
Async.

Luo et al., "Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized Training", ASPLOS 2020; Nadiradze et al.,
"Asynchronous Decentralized SGD with Quantized and Local Updates" (SwarmSGD), NeurIPS 2021.

Paper -> code: Prague's partial all-reduce among a group that a generator makes up as workers ask -> `Prague.form_groups`;
SwarmSGD's pairs with local steps between two meetings -> `SwarmAdam`, `every`.

Departures: both papers draw partners at random; here the partners are the first that are ready, so that no worker waits for a
particular one, and chance enters through the workers' speeds. SwarmAdam is SwarmSGD with the workload's optimiser, whose state
stays local; its exchange takes both partners' time, where the paper's non-blocking variant reads a partner's older copy. Rows of
embedding tables are parameters of the replica and are averaged with it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from lib.options.checked import Count
from lib.protocols.baselines import Async
from lib.protocols.mixing import Loop, Mean, Mix, Neighbours, Peer
from lib.protocols.replica_rule import Groups, ReplicaRule


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

    def update_centre(self, centre: np.ndarray, message: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        half = (message - centre) / 2
        return centre + half, -half

    def merge(self, memory, mine: np.ndarray, mix: Mix):
        return memory, mine + mix.theirs


@dataclass(frozen=True, kw_only=True)
class Prague(ReplicaRule):
    """Partial all-reduce: after its steps a worker averages with the first few others that are ready too."""

    name: ClassVar = "prague"
    cite: ClassVar = "Luo et al., Prague, ASPLOS 2020"
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"
    exchange: ClassVar = Mean(ahead=False)
    max_staleness: ClassVar = 0

    every: Count = 1
    """Local steps between two averages."""
    size: Annotated[int, Ge(2)] = 3
    """Workers in a group."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every)

    def form_groups(self, waiting: Mapping[int, int], active: frozenset[int], workers: int) -> Groups:
        """Full groups in the order of asking; the last workers that are left make a smaller one."""
        ready = [rank for rank in waiting if rank in active]
        full = len(ready) // self.size * self.size
        groups = [tuple(ready[first : first + self.size]) for first in range(0, full, self.size)]
        rest = tuple(ready[full:])
        if rest and len(active) - full == len(rest) and len(active) < 2 * self.size:
            groups.append(rest)
        return tuple(groups)


@dataclass(frozen=True, kw_only=True)
class SwarmAdam(Prague):
    """Pairs of workers average after a few local steps."""

    name: ClassVar = "swarm-adam"
    cite: ClassVar = "Nadiradze et al., SwarmSGD, NeurIPS 2021"

    size: Annotated[int, Ge(2)] = 2
    """Workers that meet."""
