"""Which server holds which parameters: equal slices of the dense vector, rows by a hash of their id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Partition:
    """`dense` parameters and any number of rows over `shards` servers."""

    dense: int
    """Length of the dense vector."""
    shards: int
    """Number of servers."""

    def slice(self, shard: int) -> slice:
        return slice(self.dense * shard // self.shards, self.dense * (shard + 1) // self.shards)

    def owner(self, ids: np.ndarray) -> np.ndarray:
        """The shard of each id, from the high bits of a multiplicative hash: neighbouring ids spread evenly."""
        mixed = (ids.view(np.uint64) * _ODD) >> np.uint64(32)
        return (mixed % np.uint64(self.shards)).astype(np.int64)

    def split(self, ids: np.ndarray) -> list[np.ndarray | slice]:
        """For each shard, an index into `ids` of what it owns."""
        if self.shards == 1:
            return [slice(None)]
        owner = self.owner(ids)
        return [np.flatnonzero(owner == shard) for shard in range(self.shards)]
