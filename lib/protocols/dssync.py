"""DS-Sync: Wang et al., "DS-Sync: Addressing Network Bottlenecks with Divide-and-Shuffle Synchronization for Distributed
DNN Training", 2020.

The rule in one sentence: after each local step a worker averages its parameters inside a small group only, and the groups
alternate so that every worker's update reaches all the others within two steps.

Paper -> code: Algorithm 1 lines 11-17 -> `groups`; line 19 -> the driver's group mean; the optimiser's state stays local.

Special cases: one group (`size` = workers) with plain SGD from equal starts is the averaging of gradients (BSP).

Departures: the paper needs world = size^2. Here any world works: ranks form a grid of rows of `size` (the last row may be
short); even rounds average over rows, odd rounds over columns. For a world that is not size^2 the exact average takes more
than two rounds. Parity follows the worker's step, also over epochs. Rows of embedding tables are parameters of the replica
and are averaged with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lib.options.checked import Count
from lib.protocols.mixing import Loop
from lib.protocols.replica_rule import Groups, ReplicaRule


@dataclass(frozen=True, kw_only=True)
class DSSync(ReplicaRule):
    """Divide and shuffle: parameter averages inside alternating groups."""

    name: ClassVar = "ds-sync"
    cite: ClassVar = "Wang et al., DS-Sync, 2020 (arXiv:2007.03298)"
    blocks: ClassVar = True
    drops: ClassVar = False

    every: Count = 1
    """Local steps between two averages."""
    size: Count | None = None
    """Workers in a group (N); None: the root of the number of workers, rounded up."""

    @property
    def when(self) -> Loop:
        return Loop(every=self.every)

    @property
    def max_staleness(self) -> float:
        return 0

    def groups(self, round: int, workers: int) -> Groups:
        size = self.size or math.isqrt(workers - 1) + 1
        if round % 2 == 0 or size >= workers:
            return tuple(tuple(range(first, min(first + size, workers))) for first in range(0, workers, size))
        return tuple(tuple(range(first, workers, size)) for first in range(size))
