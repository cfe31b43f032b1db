"""Batches without content, for timing runs: ids, and the size of everything else."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import nbytes
from lib.store.optim import SGD
from lib.store.phantom import phantom
from lib.tasks.batch import Batch

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
