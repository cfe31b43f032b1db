"""All-reduce: the mean gradient of all workers, without a server for the dense parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lib.protocols.baselines import Sync
from lib.protocols.mixing import Gradients
from lib.protocols.replica_rule import ReplicaRule


@dataclass(frozen=True, kw_only=True)
class AllReduce(ReplicaRule):
    """Every step, every worker averages its dense gradient with all the others; rows follow Sync.

    Sync without a server for the dense part: the same updates, other transfers.
    """

    name: ClassVar = "all-reduce"
    cite: ClassVar = "Patarasuk and Yuan, Bandwidth Optimal All-reduce, 2009; Li et al., PyTorch Distributed, VLDB 2020"
    blocks: ClassVar = True
    drops: ClassVar = False
    statistics: ClassVar = "none"
    rows: ClassVar = Sync()

    buckets: int = 1
    """Parts of the gradient, each averaged as soon as backward has it; 1: all of it after backward."""

    @property
    def exchange(self) -> Gradients:
        return Gradients(buckets=self.buckets)

    @property
    def max_staleness(self) -> float:
        return 0
