"""A batch, what a worker trains on in one step; the sums over its columns; and batches without content, for timing runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.cluster.base import nbytes
from lib.device_array import uploaded
from lib.store.kernels import unique
from lib.store.optim import SGD
from lib.store.phantom import phantom


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples whose ids are unique: a row is pulled and pushed once, however often it occurs in the batch.

    The arrays are numpy's as a stream makes them, and torch's after `to(device)`.
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
    """Table -> for each place in the batch, the position of its id in `ids`."""
    features: Mapping[str, Any]
    """Inputs that are not looked up in a table: numbers, relations, weights."""
    labels: Any = None
    ballast: Any = None
    """In a batch without content: an array that weighs as much as the features and labels."""

    @classmethod
    def of(cls, *, index: int, raw: Mapping[str, np.ndarray], **fields) -> Batch:
        """Make a batch from raw ids of any shape, one array a table."""
        ids, where = {}, {}
        for table, values in raw.items():
            ids[table], positions = unique(np.ascontiguousarray(values, dtype=np.int64).ravel())
            where[table] = positions.reshape(values.shape)
        return cls(index=index, ids=ids, where=where, **fields)

    def to(self, device: torch.device | str) -> Batch:
        """Copy the batch to a device as tensors; the ids stay on the host, where the store is."""
        there = torch.device(device)
        return replace(
            self,
            where={name: uploaded(array, there) for name, array in self.where.items()},
            features={name: uploaded(array, there) for name, array in self.features.items()},
            labels=None if self.labels is None else uploaded(self.labels, there),
        )

    def parts(self, size: int) -> Iterator[Batch]:
        """Yield the samples in batches of at most `size`, to bound the memory; each sample must have its own places."""
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
    """Number the ids of several batches together: table -> unique ids, and the batches with places that point into these."""
    ids, places = {}, [{} for _ in batches]
    for table in batches[0].ids:
        ids[table], positions = unique(np.concatenate([batch.ids[table] for batch in batches]))
        ends = np.cumsum([len(batch.ids[table]) for batch in batches])[:-1]
        for batch, there, part in zip(batches, places, np.split(positions, ends), strict=True):
            there[table] = part[batch.where[table]]
    return ids, [replace(batch, ids=ids, where=there) for batch, there in zip(batches, places, strict=True)]


Pooling = Mapping[str, Sequence[int]]
"""Table -> number of columns of its places that are summed into each vector."""


def pool(batch: Batch, rows: Mapping[str, Tensor], pooling: Pooling) -> tuple[Batch, Mapping[str, Tensor]]:
    """Sum the rows of several columns into one vector, in the order of the columns; the batch gets one column for each sum."""
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


MAX_CACHED = 1 << 27
"""Ids and places that are cached for one stream: a gigabyte."""


class SizedBatches:
    """The ids of a workload's batches, drawn once for all timing runs, and the size of their content."""

    def __init__(self, workload: Any, seed: int, places: bool):
        """`places`: cache `Batch.where` too, which some wire formats send."""
        self._workload, self._seed, self._places = workload, seed, places
        self._drawn: dict[tuple[int, int], Batch] = {}
        self._cached = 0

    def batch(self, first: int, size: int, index: int) -> Batch:
        """The batch of `Workload.draw`, with an array of the same size in place of features and labels."""
        drawn = self._drawn.get((first, size))
        if drawn is None:
            drawn = self._workload.draw(self._seed, first, size, index)
            where, whole = drawn.where if self._places else {}, nbytes(drawn)
            drawn = replace(drawn, where=where, features={}, labels=None)
            drawn = replace(drawn, ballast=phantom(whole - nbytes(drawn), kind=np.uint8))
            many = sum(array.size for arrays in (drawn.ids, where) for array in arrays.values())
            if self._cached + many <= MAX_CACHED:
                self._cached += many
                self._drawn[first, size] = drawn
        return drawn if drawn.index == index else replace(drawn, index=index)


_sized_batches = functools.lru_cache(maxsize=4)(SizedBatches)


def sized_batches(workload: Any, seed: int, places: bool = False) -> SizedBatches:
    """The sized batches of a stream, shared by all runs on it, whatever their optimisers."""
    plain = SGD(lr=1.0)
    return _sized_batches(replace(workload, dense_optimizer=plain, row_optimizer=plain, lr_milestones=()), seed, places)
