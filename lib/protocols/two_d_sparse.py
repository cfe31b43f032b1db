"""2D sparse parallelism: Zhang et al., "Two-dimensional Sparse Parallelism for Large Scale Deep Learning Recommendation Model
Training", 2025 (arXiv:2508.03854); TorchRec's `DMPCollection`.

The rule in one sentence: groups of devices have a copy of all tables each, sharded inside the group; dense gradients are
averaged over all in every step, and the copies of the tables, with their optimiser's state, every few steps.

Paper -> code: a group -> a worker, which looks its rows up by itself; M groups -> `workers`; the synchronisation of the copies
-> `averages_rows` and `averaged_state`; scaled row-wise AdaGrad, eta / sqrt(v / c + eps) -> the rows' optimiser, `{name:
adagrad, rowwise: true, copies: M}`, since each copy's v grows by whole gradients of a smaller batch.

The hook `averages_rows`, for all means of groups: rows were averaged in every round of the dense parameters, or never.

Special case: among one worker it is Sync. Departure: eps is outside the root, as everywhere here.
"""

from dataclasses import dataclass
from typing import ClassVar

from lib.options.checked import Count
from lib.protocols.all_reduce import AllReduce


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
