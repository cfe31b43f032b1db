"""What a worker trains on in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

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


def joined(batches: Sequence[Batch]) -> tuple[dict[str, np.ndarray], list[Batch]]:
    """Table -> the unique ids of several batches, and the batches with their places pointing into these."""
    ids, places = {}, [{} for _ in batches]
    for table in batches[0].ids:
        ids[table], positions = unique(np.concatenate([batch.ids[table] for batch in batches]))
        ends = np.cumsum([len(batch.ids[table]) for batch in batches])[:-1]
        for batch, there, part in zip(batches, places, np.split(positions, ends), strict=True):
            there[table] = part[batch.where[table]]
    return ids, [replace(batch, ids=ids, where=there) for batch, there in zip(batches, places, strict=True)]
