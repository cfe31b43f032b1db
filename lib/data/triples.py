"""A synthetic knowledge graph with a planted structure.

Every entity and relation has a latent vector. A triple's head is Zipf-distributed, its relation uniform, and its tail
drawn from the softmax over all entities of the latent DistMult score; triples are distinct.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lib.data.zipf import probabilities
from lib.errors import BadOption
from lib.streams import stream

_CHUNK = 1024  # heads scored against all entities at once


class Graph(NamedTuple):
    """Triples as int64 (triples, 3): head, relation, tail; and the truth that they were drawn from."""

    train: np.ndarray
    held_out: np.ndarray
    entities: np.ndarray
    """float32 (entities, rank) latent vectors."""
    relations: np.ndarray
    """float32 (relations, rank) latent vectors."""

    def known(self, queries: np.ndarray, relation: np.ndarray, *, side: int) -> np.ndarray:
        """For each (entity, relation), which entities complete a triple of the graph; `side` 2 asks for tails, 0 for heads."""
        triples = np.concatenate((self.train, self.held_out))
        mask = np.zeros((len(queries), len(self.entities)), bool)
        answers: dict[tuple[int, int], list[int]] = {}
        for triple in triples.tolist():
            answers.setdefault((triple[2 - side], triple[1]), []).append(triple[side])
        for row, query in enumerate(zip(queries.tolist(), relation.tolist(), strict=True)):
            mask[row, answers.get(query, [])] = True
        return mask


@dataclass(frozen=True, kw_only=True)
class PlantedGraph:
    """The distribution; `graph` draws it once. Equal plans give equal graphs."""

    entities: int
    """Number of entities."""
    relations: int
    """Number of relations."""
    triples: int
    """Training triples."""
    held_out: int
    """Triples kept for evaluation."""
    exponent: float
    """Zipf's exponent of the heads' degrees."""
    rank: int
    """Dimension of the latent vectors."""
    sharpness: float
    """Standard deviation of the latent scores: the higher, the fewer tails are likely."""
    world: int
    """Seed of the graph, apart from the runs' seed."""


@functools.lru_cache(maxsize=4)
def graph(plan: PlantedGraph) -> Graph:
    """The planted graph. Raises BadOption if it has no room for so many distinct triples."""
    generator = stream(plan.world, "graph")
    entities = generator.standard_normal((plan.entities, plan.rank), dtype=np.float32)
    relations = generator.standard_normal((plan.relations, plan.rank), dtype=np.float32)
    relations *= plan.sharpness / np.sqrt(plan.rank)
    heads = generator.permutation(plan.entities)
    chances = probabilities(plan.entities, plan.exponent)
    wanted = plan.triples + plan.held_out
    codes: dict[int, None] = {}  # in order of first appearance
    while (before := len(codes)) < wanted:
        head = heads[generator.choice(plan.entities, _CHUNK, p=chances)]
        relation = generator.integers(plan.relations, size=_CHUNK)
        tail = _tails(entities, relations[relation] * entities[head], generator.random(_CHUNK))
        codes.update(dict.fromkeys(((head * plan.relations + relation) * plan.entities + tail).tolist()))
        if len(codes) - before < _CHUNK // 100:
            raise BadOption(f"the planted graph has no more than {len(codes)} likely triples; {wanted} are asked for")
    code, tail = np.divmod(np.fromiter(codes, np.int64), plan.entities)
    triples = np.stack((*np.divmod(code, plan.relations), tail), 1)
    return Graph(triples[plan.held_out : wanted], triples[: plan.held_out], entities, relations)


def _tails(entities: np.ndarray, queries: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One entity for each query, from the softmax of its scores by inverse distribution function."""
    scores = queries @ entities.T
    scores -= scores.max(1, keepdims=True)
    weights = np.cumsum(np.exp(scores, out=scores), axis=1, dtype=np.float64)
    return np.array([np.searchsorted(row, u * row[-1], side="right") for row, u in zip(weights, uniform, strict=True)])
