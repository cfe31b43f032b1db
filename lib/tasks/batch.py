"""What a worker trains on in one step.

Multi-hot features: the rows of several columns of a batch's places, summed into one vector before a model sees them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.store.device.road import uploaded
from lib.store.table.kernels import unique


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples with their ids already made unique: a row is pulled and pushed once, however often the batch holds it.

    The arrays are numpy's as a source makes them and torch's after `to(device)`.
    """

    index: int
    """Position in the stream."""
    day: int = 0
    """Day of the stream, for continual training."""
    size: int
    """Number of samples."""
    ids: Mapping[str, Any]
    """Table -> its unique int64 ids, in order of first appearance."""
    where: Mapping[str, Any]
    """Table -> for each place in the batch, the position in `ids` of the id that stands there."""
    features: Mapping[str, Any]
    """Everything that is not looked up: dense inputs, relations, weights."""
    labels: Any = None
    left_out: Any = None
    """In an outline: an array without content that weighs as much as all that is not there."""

    @classmethod
    def of(cls, *, index: int, raw: Mapping[str, np.ndarray], **fields) -> Batch:
        """A batch from raw ids of any shape, one array a table."""
        ids, where = {}, {}
        for table, values in raw.items():
            ids[table], positions = unique(np.ascontiguousarray(values, dtype=np.int64).ravel())
            where[table] = positions.reshape(values.shape)
        return cls(index=index, ids=ids, where=where, **fields)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch as tensors on a device; the ids stay on the host, where the store is."""
        there = torch.device(device)
        return replace(
            self,
            where={name: uploaded(array, there) for name, array in self.where.items()},
            features={name: uploaded(array, there) for name, array in self.features.items()},
            labels=None if self.labels is None else uploaded(self.labels, there),
        )

    def parts(self, size: int) -> Iterator[Batch]:
        """The same samples, so many at once, which bounds the memory; only where each sample has its own places."""
        for start in range(0, self.size, size):
            part = slice(start, start + size)
            yield replace(
                self,
                size=len(range(self.size)[part]),
                where={name: array[part] for name, array in self.where.items()},
                features={name: array[part] for name, array in self.features.items()},
                labels=None if self.labels is None else self.labels[part],
            )


def share_ids(batches: Sequence[Batch]) -> tuple[dict[str, np.ndarray], list[Batch]]:
    """Table -> the unique ids of several batches, and the batches with their places pointing into these."""
    ids, places = {}, [{} for _ in batches]
    for table in batches[0].ids:
        ids[table], positions = unique(np.concatenate([batch.ids[table] for batch in batches]))
        ends = np.cumsum([len(batch.ids[table]) for batch in batches])[:-1]
        for batch, there, part in zip(batches, places, np.split(positions, ends), strict=True):
            there[table] = part[batch.where[table]]
    return ids, [replace(batch, ids=ids, where=there) for batch, there in zip(batches, places, strict=True)]


Pooling = Mapping[str, Sequence[int]]
"""Table -> how many columns of its places are summed into each vector."""


def pool(batch: Batch, rows: Mapping[str, Tensor], pooling: Pooling) -> tuple[Batch, Mapping[str, Tensor]]:
    """The batch and its rows with one column, and one row, for each sum; sums run in the order of the columns."""
    if not pooling:
        return batch, rows
    where, blocks = dict(batch.where), dict(rows)
    for table, sizes in pooling.items():
        places = where[table]
        starts = uploaded(np.array([0, *accumulate(sizes)][:-1]), places.device)
        firsts = torch.arange(len(places), device=places.device).unsqueeze(1) * places.shape[1] + starts
        blocks[table] = F.embedding_bag(places.flatten(), rows[table], firsts.flatten(), mode="sum")
        where[table] = torch.arange(firsts.numel(), device=places.device).view_as(firsts)
    return replace(batch, where=where), blocks
