"""All-reduce: the mean gradient of all workers, without a server for the dense parameters."""

from dataclasses import dataclass
from typing import ClassVar

from lib.protocols.baselines import Sync
from lib.protocols.mixing import Buckets, Gradients
from lib.protocols.replica_rule import ReplicaRule
from lib.protocols.statistics import Reading


@dataclass(frozen=True, kw_only=True)
class AllReduce(ReplicaRule):
    """Every step, every worker averages its dense gradient with all the others; rows follow Sync.

    Sync without a server for the dense part: the same updates, other transfers.
    """

    name: ClassVar = "all-reduce"
    cite: ClassVar = "Patarasuk and Yuan, Bandwidth Optimal All-reduce, 2009; Li et al., PyTorch Distributed, VLDB 2020"
    blocks: ClassVar = True
    drops: ClassVar = False
    rows: ClassVar = Sync()

    buckets: Buckets = 1
    """Collectives in which the gradient travels, "tensor": one for each tensor; 1: all of it after backward."""
    overlapped: bool = True
    """Whether each of several goes as soon as backward has it; else they follow each other after backward."""
    statistics: Reading = "none"
    """What a step makes of batch normalisation's running means and variances: nothing, as torch's DDP without broadcast, or
    their mean of all workers, as DS-Sync's released code does for its baseline: lib/protocols/statistics.py."""

    @property
    def exchange(self) -> Gradients:
        return Gradients(buckets=self.buckets, overlapped=self.overlapped)

    @property
    def max_staleness(self) -> float:
        return 0
