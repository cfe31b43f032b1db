"""Knowledge graphs: real ones from files of triples, and a synthetic one with a planted structure.

In the synthetic one every entity and relation has a latent vector. A triple's head is Zipf-distributed, its relation uniform,
and its tail drawn from the softmax over the entities of the latent DistMult score; triples are distinct.


Who stands beside whom in a graph, and samples of it.

False triples to train against: entities that all triples of a batch share, as in Marius.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numba
import numpy as np

from lib.errors import BadOption
from lib.streams import stream
from lib.tasks.prepared_datasets import Partitions, training_rows
from lib.tasks.sampling import probabilities

_CHUNK = 1024  # heads scored at once
_SCORED = 16_384  # entities that they are scored against: all, or where there are more, as many drawn for each chunk

NONE = np.empty((0, 3), np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Triples as int64 (triples, 3): head, relation, tail."""

    train: np.ndarray
    held_out: np.ndarray
    """Triples that the evaluation ranks."""
    apart: np.ndarray = field(default_factory=lambda: NONE)
    """Triples of neither, which a filtered ranking must still know to be true."""
    nodes: int
    """Number of entities; they are 0 .. nodes - 1."""
    kinds: int
    """Number of relations."""

    def known(
        self, queries: np.ndarray, relation: np.ndarray, *, side: int, among: np.ndarray | None = None
    ) -> np.ndarray:
        """For each (entity, relation), which entities complete a triple of the graph; `side` 2 asks for tails, 0 for heads.

        The mask's columns are all entities, or those of `among`, ascending.
        """
        keys, answers = self._answers[side // 2]
        asked = queries * self.kinds + relation
        first, last = np.searchsorted(keys, asked), np.searchsorted(keys, asked, side="right")
        counts = last - first
        # The runs first[i] .. last[i], one after another.
        places = np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)
        rows, columns = np.repeat(np.arange(len(queries)), counts), answers[places]
        if among is None:
            mask = np.zeros((len(queries), self.nodes), bool)
        else:
            mask = np.zeros((len(queries), len(among)), bool)
            column = np.minimum(np.searchsorted(among, columns), len(among) - 1)
            there = among[column] == columns
            rows, columns = rows[there], column[there]
        mask[rows, columns] = True
        return mask

    @functools.cached_property
    def _answers(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """For each side, the sorted keys of (entity, relation) and the entities that complete them."""
        triples = np.concatenate((self.train, self.held_out, self.apart))
        found = []
        for side in (0, 2):
            keys = triples[:, 2 - side] * self.kinds + triples[:, 1]
            order = np.argsort(keys, kind="stable")
            found.append((keys[order], triples[order, side]))
        return tuple(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Planted(Graph):
    """A graph with the truth that it was drawn from."""

    entities: np.ndarray
    """float32 (nodes, rank) latent vectors."""
    relations: np.ndarray
    """float32 (kinds, rank) latent vectors."""


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
def draw_graph(plan: PlantedGraph) -> Planted:
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
        query, uniform = relations[relation] * entities[head], generator.random(_CHUNK)
        if plan.entities <= _SCORED:
            tail = _tails(entities, query, uniform)
        else:
            among = generator.integers(plan.entities, size=_SCORED)
            tail = among[_tails(entities[among], query, uniform)]
        codes.update(dict.fromkeys(((head * plan.relations + relation) * plan.entities + tail).tolist()))
        if len(codes) - before < _CHUNK // 100:
            raise BadOption(f"the planted graph has no more than {len(codes)} likely triples; {wanted} are asked for")
    code, tail = np.divmod(np.fromiter(codes, np.int64), plan.entities)
    triples = np.stack((*np.divmod(code, plan.relations), tail), 1)
    return Planted(
        train=triples[plan.held_out : wanted],
        held_out=triples[: plan.held_out],
        nodes=plan.entities,
        kinds=plan.relations,
        entities=entities,
        relations=relations,
    )


def _tails(entities: np.ndarray, queries: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One entity for each query, from the softmax of its scores by inverse distribution function."""
    scores = queries @ entities.T
    scores -= scores.max(1, keepdims=True)
    weights = np.cumsum(np.exp(scores, out=scores), axis=1, dtype=np.float64)
    return np.array([np.searchsorted(row, u * row[-1], side="right") for row, u in zip(weights, uniform, strict=True)])


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


@functools.lru_cache(maxsize=4)
def read_graph(path: str, held_out: str) -> Graph:
    """A knowledge graph."""
    found = Partitions(path, "triples")
    parts = {split: found.take(split, "triples").astype(np.int64) for split in ("train", "valid", "test")}
    if found.names == ["train"]:
        order, kept = stream(0, "held out").permutation(len(parts["train"])), training_rows(len(parts["train"]), path)
        parts["train"], parts[held_out] = (parts["train"][np.sort(rows)] for rows in (order[:kept], order[kept:]))
    if not len(parts[held_out]):
        raise BadOption(
            f"data={path!r} holds no {held_out} triples to rank; held_out is one of {', '.join(map(str, found.names))}"
        )
    return Graph(
        train=parts["train"],
        held_out=parts[held_out],
        apart=parts["valid" if held_out == "test" else "test"],
        nodes=found.manifest["entities"],
        kinds=found.manifest["relations"],
    )
