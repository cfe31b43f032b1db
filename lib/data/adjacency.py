"""Who stands beside whom in a graph, and samples of it."""

from __future__ import annotations

import numba
import numpy as np


class Adjacency:
    """The training triples as a graph without directions or kinds."""

    def __init__(self, triples: np.ndarray, entities: int):
        ends = np.concatenate((triples[:, [0, 2]], triples[:, [2, 0]]))
        order = np.argsort(ends[:, 0], kind="stable")
        self._others = np.ascontiguousarray(ends[order, 1])
        self._first = np.searchsorted(ends[order, 0], np.arange(entities + 1))

    def sample(self, entities: np.ndarray, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Neighbours (entities, count) and how many of each row are real: all where there are no more than `count`,
        else a sample without replacement. The places past them repeat the entity itself."""
        uniform = generator.random((len(entities), count))
        return _sample(entities, uniform, self._others, self._first)


@numba.njit(cache=True, nogil=True)
def _sample(entities, uniform, others, first):
    size, count = uniform.shape
    chosen, degrees = np.empty((size, count), np.int64), np.empty(size, np.int64)
    places = np.empty(count, np.int64)
    for n in range(size):
        begin, there = first[entities[n]], first[entities[n] + 1] - first[entities[n]]
        degrees[n] = min(there, count)
        for k in range(degrees[n]):
            if there <= count:
                places[k] = k
            else:
                # Floyd's sampling: one draw a place, and the last of the range where the drawn one is taken.
                last = there - count + k
                place = int(uniform[n, k] * (last + 1))
                for before in range(k):
                    if places[before] == place:
                        place = last
                        break
                places[k] = place
            chosen[n, k] = others[begin + places[k]]
        for k in range(degrees[n], count):
            chosen[n, k] = entities[n]
    return chosen, degrees
