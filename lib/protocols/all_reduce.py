"""All-reduce: the mean gradient of all workers, without a server for the dense parameters.

2D sparse parallelism: Zhang et al., "Two-dimensional Sparse Parallelism for Large Scale Deep Learning Recommendation Model
Training", 2025 (arXiv:2508.03854); TorchRec's `DMPCollection`.

The rule of 2d-sparse in one sentence: groups of devices have a copy of all tables each, sharded inside the group; dense
gradients are averaged over all in every step, and the copies of the tables, with their optimiser's state, every few steps.

Paper -> code: a group -> a worker, which looks its rows up by itself; M groups -> `workers`; the synchronisation of the copies
-> `averages_rows` and `averaged_state`; scaled row-wise AdaGrad, eta / sqrt(v / c + eps) -> the rows' optimiser, `{name:
adagrad, rowwise: true, copies: M}`, since each copy's v grows by whole gradients of a smaller batch.

The hook `averages_rows`, for all means of groups: rows were averaged in every round of the dense parameters, or never.

Special case: among one worker it is Sync. Departure: eps is outside the root, as everywhere here.
"""

from dataclasses import dataclass
from typing import ClassVar

from lib.options.checked import Count
from lib.protocols.baselines import Sync
from lib.protocols.mixing import Buckets, Gradients
from lib.protocols.replica_rule import ReplicaRule
from lib.protocols.statistics import StatisticsAveraging


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
    max_staleness: ClassVar = 0

    buckets: Buckets = 1
    """Collectives in which the gradient travels, "tensor": one for each tensor; 1: all of it after backward."""
    overlapped: bool = True
    """Whether each of several goes as soon as backward has it; else they follow each other after backward."""
    statistics: StatisticsAveraging = "none"
    """What a step makes of batch normalisation's running means and variances: nothing, as torch's DDP without broadcast, or
    their mean of all workers, as DS-Sync's released code does for its baseline: lib/protocols/statistics.py."""

    @property
    def exchange(self) -> Gradients:
        return Gradients(buckets=self.buckets, overlapped=self.overlapped)


@dataclass(frozen=True, kw_only=True)
class TwoDSparse(AllReduce):
    """All-reduce of dense gradients; each worker has a copy of all tables, which is averaged with the others' every few steps."""

    name: ClassVar = "2d-sparse"
    cite: ClassVar = "Zhang et al., Two-dimensional Sparse Parallelism, 2025 (arXiv:2508.03854)"
    rows: ClassVar = "averaged"

    every: Count = 4
    """Steps from one average of the tables to the next."""

    def averages_rows(self, round: int) -> bool:
        return (round + 1) % self.every == 0

    def averaged_state(self, round: int) -> tuple[str, ...]:
        return ("sum", "momentum_buffer", "exp_avg", "exp_avg_sq")
