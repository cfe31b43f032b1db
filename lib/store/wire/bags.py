"""Asking for sums of rows: a server that has the rows sums those of a bag itself, and sends one vector for each (ShadowSync,
Section 3.1). Where a bag's rows are on several servers, each sends what its own come to, and the worker adds that up.

A gradient comes back as one vector a bag, without ids: the server remembers what it was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib.store.kernels import add_up, unique
from lib.store.phantom import is_phantom, phantom


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """What one server is to sum."""

    entries: np.ndarray
    """int64[e]: ids, bag by bag; an id that a bag has twice stands there twice."""
    bags: np.ndarray
    """int32[b], ascending: those of the batch's bags that have rows on this server."""
    counts: np.ndarray
    """uint16[b]: how many."""

    @classmethod
    def of(cls, ids: np.ndarray, where: np.ndarray, pooling: Sequence[int], mine: np.ndarray | slice) -> Bags:
        """Those that `ids[mine]` fall into; `where` has a batch's positions in `ids`, of which so many columns make a bag."""
        bag = np.repeat(np.arange(len(pooling)), pooling)
        bag = (np.arange(len(where))[:, None] * len(pooling) + bag).ravel()
        here = np.zeros(ids.size, bool)
        here[mine] = True
        kept = np.flatnonzero(here[where.ravel()])
        bags, counts = np.unique(bag[kept], return_counts=True)
        return cls(ids[where.ravel()[kept]], bags.astype(np.int32), counts.astype(np.uint16))

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Each id once, and which of them every entry is."""
        return unique(self.entries)

    def sums(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """float32[b, dim], in the order of the entries, of the distinct ids' rows; of phantoms a phantom."""
        if is_phantom(rows):
            return phantom(self.bags.size, rows.shape[1])
        return add_up(self._bag_of_entry(), rows[positions], _ones(positions.size), self.bags.size)[0]

    def spread(self, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct ids, and for each the sum of the gradients of the bags that have it, as often as they have it."""
        ids, positions = self.distinct()
        if is_phantom(gradients):
            return ids, phantom(ids.size, gradients.shape[1])
        return ids, add_up(positions, gradients[self._bag_of_entry()], _ones(positions.size), ids.size)[0]

    def _bag_of_entry(self) -> np.ndarray:
        return np.repeat(np.arange(self.bags.size), self.counts)


def _ones(count: int) -> np.ndarray:
    return np.ones(count, np.float32)
