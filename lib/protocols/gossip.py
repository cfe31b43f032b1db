"""Replicas that average in small groups of whoever is there: Prague and SwarmAdam, which GBA's paper draws beside Sync and Async.

Luo et al., "Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized Training", ASPLOS 2020; Nadiradze et al.,
"Asynchronous Decentralized SGD with Quantized and Local Updates" (SwarmSGD), NeurIPS 2021.

Paper -> code: Prague's partial all-reduce among a group that a generator makes up as workers ask -> `Prague.form_groups`;
SwarmSGD's pairs with local steps between two meetings -> `SwarmAdam`, `every`.

Departures: both papers draw partners at random; here the partners are the first who are ready, so that nobody waits for a
particular one, and chance enters through the workers' speeds. SwarmAdam is SwarmSGD with the workload's optimiser, whose state
stays local; its exchange takes both partners' time, where the paper's non-blocking variant reads a partner's older copy. Rows of
embedding tables are parameters of the replica and are averaged with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from lib.options.checked import Count
from lib.protocols.mixing import Loop, Mean
from lib.protocols.replica_rule import Groups, ReplicaRule


@dataclass(frozen=True, kw_only=True)
class Prague(ReplicaRule):
    """Partial all-reduce: after its steps a worker averages with the first few others that are ready too."""

    name: ClassVar = "prague"
    cite: ClassVar = "Luo et al., Prague, ASPLOS 2020"
    blocks: ClassVar = False
    drops: ClassVar = False
    data: ClassVar = "queue"
    exchange: ClassVar = Mean(ahead=False)

    every: Count = 1
    """Local steps between two averages."""
    size: Annotated[int, Ge(2)] = 3
    """Workers in a group."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every)

    @property
    def max_staleness(self) -> float:
        return 0

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
