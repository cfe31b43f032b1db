"""False triples to train against: entities that all triples of a batch share, as in Marius."""

from __future__ import annotations

import numpy as np


class Negatives:
    """Draws entities, a share of them by degree and the others uniformly.

    By degree means an end of a training triple, each end as likely as any other: an entity comes up in proportion to the
    triples that it stands in.
    """

    def __init__(self, triples: np.ndarray, entities: int, by_degree: float):
        self._entities, self._by_degree = entities, by_degree
        self._ends = np.ascontiguousarray(triples[:, [0, 2]]).ravel()

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """int64 (count,): first the uniform ones, then those by degree."""
        by_degree = round(count * self._by_degree)
        uniform = generator.integers(self._entities, size=count - by_degree)
        if not by_degree:
            return uniform
        return np.concatenate((uniform, self._ends[generator.integers(len(self._ends), size=by_degree)]))
