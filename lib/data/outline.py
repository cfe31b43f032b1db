"""Batches without content, for runs that only ask how long things take: their ids, drawn once for all such runs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from lib.data.batch import Batch
from lib.store.optim import SGD

MOST = 1 << 27
"""Ids that are kept for the batches of one stream: a gigabyte of them."""


class Outlines:
    """The batches of a workload's stream as far as messages need them."""

    def __init__(self, workload: Any, seed: int):
        self._workload, self._seed = workload, seed
        self._drawn: dict[tuple[int, int], tuple[int, dict[str, np.ndarray]]] = {}
        self._kept = 0

    def batch(self, first: int, size: int, index: int) -> Batch:
        """What `draw` gives, with its day and its ids alone."""
        drawn = self._drawn.get((first, size))
        if drawn is None:
            whole = self._workload.draw(self._seed, first, size, index)
            drawn = whole.day, whole.ids
            many = sum(ids.size for ids in whole.ids.values())
            if self._kept + many <= MOST:
                self._kept += many
                self._drawn[first, size] = drawn
        day, ids = drawn
        return Batch(index=index, day=day, size=size, ids=ids, where={}, features={})


@functools.lru_cache(maxsize=4)
def _outlines(workload: Any, seed: int) -> Outlines:
    return Outlines(workload, seed)


def outlines(workload: Any, seed: int) -> Outlines:
    """Those of a stream, which every run on it shares, whatever its optimisers."""
    plain = SGD(lr=1.0)
    return _outlines(replace(workload, dense_optimizer=plain, row_optimizer=plain), seed)
