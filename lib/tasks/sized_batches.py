"""Batches without content, for runs that only ask how long things take: their ids, drawn once for all such runs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import nbytes
from lib.store.blank import blank
from lib.store.optim import SGD
from lib.tasks.batch import Batch

MOST = 1 << 27
"""Numbers that are kept of the batches of one stream: a gigabyte."""


class SizedBatches:
    """The batches of a workload's stream as far as messages need them."""

    def __init__(self, workload: Any, seed: int, places: bool):
        """`places`: what an id is for, which only some forms of messages tell, is kept too."""
        self._workload, self._seed, self._places = workload, seed, places
        self._drawn: dict[tuple[int, int], Batch] = {}
        self._kept = 0

    def batch(self, first: int, size: int, index: int) -> Batch:
        """What `draw` gives, with features and labels that only weigh something."""
        drawn = self._drawn.get((first, size))
        if drawn is None:
            drawn = self._workload.draw(self._seed, first, size, index)
            where, whole = drawn.where if self._places else {}, nbytes(drawn)
            drawn = replace(drawn, where=where, features={}, labels=None)
            drawn = replace(drawn, left_out=blank(whole - nbytes(drawn), kind=np.uint8))
            many = sum(array.size for arrays in (drawn.ids, where) for array in arrays.values())
            if self._kept + many <= MOST:
                self._kept += many
                self._drawn[first, size] = drawn
        return drawn if drawn.index == index else replace(drawn, index=index)


_sized_batches = functools.lru_cache(maxsize=4)(SizedBatches)


def sized_batches(workload: Any, seed: int, places: bool = False) -> SizedBatches:
    """Those of a stream, which every run on it shares, whatever its optimisers."""
    plain = SGD(lr=1.0)
    return _sized_batches(replace(workload, dense_optimizer=plain, row_optimizer=plain, lr_milestones=()), seed, places)
