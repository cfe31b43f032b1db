"""Knowledge graphs, real or synthetic, with samples of neighbours and of negatives.

In a synthetic graph every entity and relation has a latent vector. A triple's head is Zipf-distributed and its relation uniform.
Its tail is drawn from the softmax of the latent DistMult scores over the entities. Triples are distinct.
"""

import functools
from dataclasses import dataclass, field

import numba
import numpy as np

from lib.errors import BadOption
from lib.streams import stream
from lib.tasks.prepared_datasets import Partitions, training_rows
from lib.tasks.sampling import zipf_probabilities

_CHUNK = 1024  # heads scored at once
_SCORED = 16_384  # most entities that they are scored against; of more entities, each chunk draws so many

NO_TRIPLES = np.empty((0, 3), np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Triples as int64 (triples, 3): head, relation, tail."""

    train: np.ndarray
    held_out: np.ndarray
    """Triples that the evaluation ranks."""
    other_known: np.ndarray = field(default_factory=lambda: NO_TRIPLES)
    """True triples that are neither trained on nor ranked; a filtered ranking excludes them."""
    nodes: int
    """Number of entities; they are 0 .. nodes - 1."""
    kinds: int
    """Number of relations."""

    def true_answers(
        self, queries: np.ndarray, relation: np.ndarray, *, side: int, among: np.ndarray | None = None
    ) -> np.ndarray:
        """A mask (queries, entities) of the true answers: tails of (head, relation) for `side` 2, heads for 0.

        Its columns are all entities, or the ascending ones of `among`.
        """
        keys, answers = self._answers[side // 2]
        query_keys = queries * self.kinds + relation
        first, last = np.searchsorted(keys, query_keys), np.searchsorted(keys, query_keys, side="right")
        counts = last - first
        # The ranges first[i] .. last[i], concatenated.
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
        """For each side, the sorted keys of (entity, relation), and the entities that answer them."""
        triples = np.concatenate((self.train, self.held_out, self.other_known))
        found = []
        for side in (0, 2):
            keys = triples[:, 2 - side] * self.kinds + triples[:, 1]
            order = np.argsort(keys, kind="stable")
            found.append((keys[order], triples[order, side]))
        return tuple(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticGraph(Graph):
    """A graph with the latent vectors that it was drawn from."""

    entities: np.ndarray
    """float32 (nodes, rank) latent vectors."""
    relations: np.ndarray
    """float32 (kinds, rank) latent vectors."""


@dataclass(frozen=True, kw_only=True)
class GraphDistribution:
    """A distribution of graphs; `draw_graph` draws one. Equal distributions give equal graphs."""

    entities: int
    """Number of entities."""
    relations: int
    """Number of relations."""
    triples: int
    """Training triples."""
    held_out: int
    """Triples for the evaluation."""
    exponent: float
    """Zipf's exponent of the heads' degrees."""
    rank: int
    """Dimension of the latent vectors."""
    sharpness: float
    """Standard deviation of the latent scores: the higher, the fewer tails are likely."""
    world: int
    """Seed of the graph, independent of the seed of runs."""


@functools.lru_cache(maxsize=4)
def draw_graph(plan: GraphDistribution) -> SyntheticGraph:
    """Draw the synthetic graph. Raises BadOption if it has too few likely triples."""
    generator = stream(plan.world, "graph")
    entities = generator.standard_normal((plan.entities, plan.rank), dtype=np.float32)
    relations = generator.standard_normal((plan.relations, plan.rank), dtype=np.float32)
    relations *= plan.sharpness / np.sqrt(plan.rank)
    heads = generator.permutation(plan.entities)
    chances = zipf_probabilities(plan.entities, plan.exponent)
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
            raise BadOption(f"the synthetic graph has no more than {len(codes)} likely triples; {wanted} are asked for")
    code, tail = np.divmod(np.fromiter(codes, np.int64), plan.entities)
    triples = np.stack((*np.divmod(code, plan.relations), tail), 1)
    return SyntheticGraph(
        train=triples[plan.held_out : wanted],
        held_out=triples[: plan.held_out],
        nodes=plan.entities,
        kinds=plan.relations,
        entities=entities,
        relations=relations,
    )


def _tails(entities: np.ndarray, queries: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Draw one entity for each query from the softmax of its scores, by the inverse distribution function."""
    scores = queries @ entities.T
    scores -= scores.max(1, keepdims=True)
    weights = np.cumsum(np.exp(scores, out=scores), axis=1, dtype=np.float64)
    return np.array([np.searchsorted(row, u * row[-1], side="right") for row, u in zip(weights, uniform, strict=True)])


class Adjacency:
    """The training triples as a graph without directions or relations."""

    def __init__(self, triples: np.ndarray, entities: int):
        ends = np.concatenate((triples[:, [0, 2]], triples[:, [2, 0]]))
        order = np.argsort(ends[:, 0], kind="stable")
        self._others = np.ascontiguousarray(ends[order, 1])
        self._first = np.searchsorted(ends[order, 0], np.arange(entities + 1))

    def sample(self, entities: np.ndarray, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Sample up to `count` neighbours of each entity without replacement: (entities, count), and the number of each row.

        The places after an entity's neighbours repeat the entity itself.
        """
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
                # Floyd's sampling: one draw for each place, and the last of the range if the drawn one is taken.
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
    """Entities that all triples of a batch share as false heads and tails, as in Marius.

    A share is drawn by degree, as the ends of random training triples; the others are drawn uniformly.
    """

    def __init__(self, triples: np.ndarray, entities: int, by_degree: float):
        self._entities, self._by_degree = entities, by_degree
        self._ends = np.ascontiguousarray(triples[:, [0, 2]]).ravel()

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Draw int64 (count,) entities: first the uniform ones, then those by degree."""
        by_degree = round(count * self._by_degree)
        uniform = generator.integers(self._entities, size=count - by_degree)
        if not by_degree:
            return uniform
        return np.concatenate((uniform, self._ends[generator.integers(len(self._ends), size=by_degree)]))


@functools.lru_cache(maxsize=4)
def read_graph(path: str, held_out: str) -> Graph:
    """Read a knowledge graph; if it has only training triples, a random tenth is held out."""
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
        other_known=parts["valid" if held_out == "test" else "test"],
        nodes=found.manifest["entities"],
        kinds=found.manifest["relations"],
    )
