"""Link prediction on a knowledge graph with DistMult (Yang et al., 2015), alone or over GraphSage (Hamilton et al., 2017).

The score of (head, relation, tail) is the sum over dimensions of h * r * t. Entities are rows of a table. Relations are few,
so their vectors are dense parameters and stay on the device.

In a synthetic graph every entity and relation has a latent vector. A triple's head is Zipf-distributed and its relation uniform.
Its tail is drawn from the softmax of the latent DistMult scores over the entities. Triples are distinct.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.cluster.spec import Work
from lib.errors import BadOption
from lib.options.checked import Count, Natural, NotNegative, Share, Text
from lib.store.optim import Adagrad, Optimizer
from lib.streams import stream
from lib.tasks import metrics
from lib.tasks.flat_model import Batch, tensor
from lib.tasks.layers import Linear, generator
from lib.tasks.prepared_datasets import Partitions, training_rows
from lib.tasks.sampling import epoch_rows, zipf_probabilities
from lib.tasks.workload import Network, TableSpec, Workload, build_with_accepted, resolve_network

_CHUNK = 1024  # heads or queries scored at once, which bounds the memory
_CACHED = 16  # of these at a time, whose scores fit a core's cache
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

    def distinct_neighbours(
        self, entities: np.ndarray, at_most: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample up to `at_most` neighbours of each entity without replacement: (entities, at_most), and the number of each row.

        Neighbours are those of the training triples, without directions or relations. The places after an entity's neighbours
        repeat the entity itself.
        """
        return _sample_neighbours(entities, generator.random((len(entities), at_most)), *self._neighbours_and_starts)

    @functools.cached_property
    def _neighbours_and_starts(self) -> tuple[np.ndarray, np.ndarray]:
        """All entities' neighbours, and where each entity's begin."""
        ends = np.concatenate((self.train[:, [0, 2]], self.train[:, [2, 0]]))
        order = np.argsort(ends[:, 0], kind="stable")
        return np.ascontiguousarray(ends[order, 1]), np.searchsorted(ends[order, 0], np.arange(self.nodes + 1))

    def draw_negatives(self, count: int, by_degree: float, generator: np.random.Generator) -> np.ndarray:
        """Draw int64 (count,) entities that all triples of a batch share as false heads and tails, as in Marius.

        First come the uniform ones, then a share `by_degree`: the ends of random training triples.
        """
        ends = round(count * by_degree)
        uniform = generator.integers(self.nodes, size=count - ends)
        if not ends:
            return uniform
        return np.concatenate((uniform, self._triple_ends[generator.integers(len(self._triple_ends), size=ends)]))

    @functools.cached_property
    def _triple_ends(self) -> np.ndarray:
        return np.ascontiguousarray(self.train[:, [0, 2]]).ravel()


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

    entities: Count = 2_000
    """Number of entities."""
    relations: Count = 12
    """Number of relations."""
    triples: Count = 40_000
    """Training triples: one epoch."""
    exponent: NotNegative = 0.8
    """Zipf's exponent of the heads' degrees."""
    rank: Count = 8
    """Dimension of the latent vectors."""
    sharpness: NotNegative = 4.0
    """Standard deviation of the latent scores: the higher, the fewer tails are likely."""
    world: Natural = 0
    """Seed of the graph, independent of the seed of runs."""
    evaluation_triples: Count = 1_000
    """Most held-out triples that are ranked on both sides."""


@functools.lru_cache(maxsize=32)  # a graph of FB15k-237's size takes ten seconds, and a sweep's runs share some thirty
def draw_graph(plan: GraphDistribution) -> SyntheticGraph:
    """Draw the synthetic graph. Raises BadOption if it has too few likely triples."""
    generator = stream(plan.world, "graph")
    entities = generator.standard_normal((plan.entities, plan.rank), dtype=np.float32)
    relations = generator.standard_normal((plan.relations, plan.rank), dtype=np.float32)
    relations *= plan.sharpness / np.sqrt(plan.rank)
    heads = generator.permutation(plan.entities)
    chances = zipf_probabilities(plan.entities, plan.exponent)
    wanted = plan.triples + plan.evaluation_triples
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
        train=triples[plan.evaluation_triples : wanted],
        held_out=triples[: plan.evaluation_triples],
        nodes=plan.entities,
        kinds=plan.relations,
        entities=entities,
        relations=relations,
    )


def _tails(entities: np.ndarray, queries: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Draw one entity for each query from the softmax of its scores, by the inverse distribution function."""
    found = np.empty(len(queries), np.int64)
    for first in range(0, len(queries), _CACHED):
        part = slice(first, first + _CACHED)
        scores = queries[part] @ entities.T
        scores -= scores.max(1, keepdims=True)
        _invert(np.exp(scores, out=scores), uniform[part], found[part])
    return found


@numba.njit(cache=True, nogil=True)
def _invert(weights, uniform, found):
    """Of each row the first place at which the running sum is more than that share of the whole sum."""
    for n in range(len(weights)):
        total = 0.0
        for weight in weights[n]:
            total += np.float64(weight)
        wanted, below = uniform[n] * total, 0.0
        found[n] = weights.shape[1]
        for place in range(weights.shape[1]):
            below += np.float64(weights[n, place])
            if below > wanted:
                found[n] = place
                break


@numba.njit(cache=True, nogil=True)
def _sample_neighbours(entities, uniform, neighbours, offsets):
    size, count = uniform.shape
    chosen, degrees = np.empty((size, count), np.int64), np.empty(size, np.int64)
    places = np.empty(count, np.int64)
    for n in range(size):
        begin, there = offsets[entities[n]], offsets[entities[n] + 1] - offsets[entities[n]]
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
            chosen[n, k] = neighbours[begin + places[k]]
        for k in range(degrees[n], count):
            chosen[n, k] = entities[n]
    return chosen, degrees


@functools.lru_cache(maxsize=4)
def read_graph(path: str, held_out: str) -> Graph:
    """Read a knowledge graph; if it has only training triples, a random tenth is held out."""
    found = Partitions(path, "triples")
    parts = {split: found.take(split, "triples").astype(np.int64) for split in ("train", "valid", "test")}
    if found.names == ["train"]:
        order, kept = stream(0, "held out").permutation(len(parts["train"])), training_rows(len(parts["train"]), path)
        parts["train"], parts[held_out] = (parts["train"][np.sort(rows)] for rows in (order[:kept], order[kept:]))
    if not len(parts[held_out]):
        names = ", ".join(map(str, found.names))
        raise BadOption(f"data={path!r} holds no {held_out} triples to rank; held_out is one of {names}")
    return Graph(
        train=parts["train"],
        held_out=parts[held_out],
        other_known=parts["valid" if held_out == "test" else "test"],
        nodes=found.manifest["entities"],
        kinds=found.manifest["relations"],
    )


TABLE = "entity"


class DistMult(nn.Module):
    """Scores of each true triple, and of the batch's shared negatives instead of its tail and of its head.

    `batch.where[TABLE]` is flat: the samples' heads, their tails, then the shared negatives. The scores have the shape
    (samples, 2, 1 + negatives): side 0 replaces the tail, side 1 the head, and place 0 is the true triple.
    """

    def __init__(self, *, relations: int, dim: int, seed: int):
        super().__init__()
        # Initial values have both signs: a relation that starts near one must cross zero to change a dimension's sign.
        self.relation = nn.Parameter(torch.randn(relations, dim, generator=generator(seed)))

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        return self._score(F.embedding(batch.where[TABLE], rows[TABLE]), batch)

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        """Cross-entropy of the true triple among the negatives: both sides are summed, samples averaged, as in Marius."""
        return (torch.logsumexp(scores, 2) - scores[..., 0]).sum(1).mean()

    def score_candidates(self, entities: Tensor, relations: Tensor, candidates: Tensor) -> Tensor:
        """Scores (queries, candidates). DistMult is symmetric, so they rank tails for heads and heads for tails."""
        return (entities * self.relation[relations]) @ candidates.T

    def _score(self, entities: Tensor, batch: Batch) -> Tensor:
        n = batch.size
        heads, tails, negatives = entities.split((n, n, len(entities) - 2 * n))
        relations = F.embedding(batch.features["relation"], self.relation)
        known = torch.stack((heads * relations, tails * relations), 1)
        true = torch.linalg.vecdot(known[:, 0], tails)
        return torch.cat((true.view(n, 1, 1).expand(n, 2, 1), known @ negatives.T), 2)


class GraphSage(DistMult):
    """DistMult over entities that are encoded with a sample of their neighbours: W e + V (mean of the neighbours) + b.

    After DistMult's places, `batch.where[TABLE]` has `neighbours` places for each of them, in the same order;
    `batch.features["degree"]` says how many are real.
    """

    def __init__(self, *, relations: int, dim: int, neighbours: int, seed: int):
        super().__init__(relations=relations, dim=dim, seed=seed)
        stream = generator(seed + 1)
        self.own, self.theirs = Linear(dim, dim, stream), Linear(dim, dim, stream)
        self.theirs.bias = None  # one bias is enough
        self.neighbours = neighbours

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        entities = F.embedding(batch.where[TABLE], rows[TABLE])
        own, theirs = entities.tensor_split((len(entities) // (1 + self.neighbours),))
        return self._score(self.encode(own, theirs, batch.features["degree"]), batch)

    def encode(self, own: Tensor, theirs: Tensor, degree: Tensor) -> Tensor:
        """Vectors of entities, from their rows, the rows of their neighbours' places, and the number of real neighbours."""
        theirs, degree = theirs.view(len(own), self.neighbours, -1), degree.unsqueeze(1)
        real = (torch.arange(self.neighbours, device=own.device) < degree).to(own.dtype)
        return self.own(own) + self.theirs((theirs * real.unsqueeze(2)).sum(1) / degree.clamp(min=1))


MODELS: dict[str, type[DistMult]] = {"distmult": DistMult, "graphsage": GraphSage}

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class LinkPrediction(GraphDistribution, Workload):
    """Link prediction on a real or synthetic knowledge graph.

    The stream repeats the training triples in epochs, each in its own random order. A batch draws `negatives` entities, which
    its triples share on both sides.
    """

    name: str = "kg-synthetic"
    spelled: ClassVar[Mapping[str, str]] = {"model": "network"}
    synthetic_only: ClassVar[frozenset[str]] = frozenset(
        {*GraphDistribution.__dataclass_fields__} - {"evaluation_triples"}
    )

    samples: Count = 400_000
    batch_size: Count = 256
    dense_optimizer: Optimizer = field(default=Adagrad(lr=0.3))
    row_optimizer: Optimizer = field(default=Adagrad(lr=0.3))
    network: Network = "distmult"
    """The model (option `model`): distmult, graphsage, or a class of your own that extends one of `lib.tasks.graph`. Its
    constructor names what it needs of relations, dim, neighbours and seed."""
    data: Text | None = None
    """Folder of a real graph; without it the graph is synthetic, by the options from `entities` to `world`."""
    dim: Count = 32
    """Width of an entity's vector."""
    neighbours: Count = 10
    """GraphSage: neighbours sampled for each entity."""
    negatives: Count = 128
    """Shared negatives of a batch."""
    by_degree: Share = 0.0
    """Share of the negatives that is drawn by degree; the others are uniform."""
    scale: NotNegative = 0.3
    """New entities are uniform in (-scale, scale)."""
    held_out: Literal["test", "valid"] = "test"
    """Triples of a real graph that the evaluation ranks: test, or valid to tune options."""
    evaluation_candidates: Count | None = None
    """Entities to rank against, drawn as negatives are, as Marius does on large graphs; None: all."""

    def __post_init__(self):
        object.__setattr__(self, "network", resolve_network(self.network, MODELS, DistMult, self.name_in_errors))
        if 2 * (self.triples + self.evaluation_triples) > self.entities**2 * self.relations:
            self._reject("triples", "at most half of the possible ones (entities^2 * relations)")

    def tables(self) -> dict[str, TableSpec]:
        return {TABLE: TableSpec(self.dim, self.scale)}

    def model(self, seed: int) -> DistMult:
        shape = {"relations": self.graph.kinds, "dim": self.dim, "neighbours": self.neighbours}
        return build_with_accepted(self._model_class, **shape, seed=seed)

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        graph = self.graph
        triples = graph.train
        head, relation, tail = triples[epoch_rows(seed, first, size, len(triples))].T
        negatives = graph.draw_negatives(self.negatives, self.by_degree, stream(seed, "negatives", first))
        ids, features = np.concatenate((head, tail, negatives)), {"relation": np.ascontiguousarray(relation)}
        if self._samples_neighbours:
            near, features["degree"] = graph.distinct_neighbours(ids, self.neighbours, stream(seed, "near", first))
            ids = np.concatenate((ids, near.ravel()))
        return Batch.of(index=index, size=size, raw={TABLE: ids}, features=features)

    def work(self) -> Work:
        """Two products of the batch with its negatives and GraphSage's two products, three times for forward and backward."""
        places = 2 * self.batch_size + self.negatives
        flops = 3 * 2.0 * self.batch_size * 2 * (self.negatives + 2) * self.dim
        rows = places
        if self._samples_neighbours:
            flops += 3.0 * places * self.dim * (4 * self.dim + 2 * self.neighbours)
            rows += places * self.neighbours
        return Work(flops=flops, bytes=4.0 * (3 * rows * self.dim + 6 * self.batch_size * self.negatives))

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        return {TABLE: _held_out_data(self).ids}

    def evaluate(
        self, model: DistMult, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """mrr and hits of the held-out triples over both sides, filtered and raw.

        `mrr_truth` is the filtered MRR of the latent scores. It is no bound: it ignores that some entities are the head of
        more triples than others.
        """
        vectors, judged = rows[TABLE], _held_out_data(self)

        def to_device(array: np.ndarray) -> torch.Tensor:
            return tensor(array).to(vectors.device)

        def score(entities: np.ndarray, relations: np.ndarray) -> np.ndarray:
            chosen = candidates[to_device(np.searchsorted(judged.candidates, entities))]
            return model.score_candidates(chosen, to_device(relations), candidates).cpu().numpy()

        candidates = vectors[to_device(judged.own)]
        if self._samples_neighbours:
            candidates = model.encode(candidates, vectors[to_device(judged.near)], to_device(judged.degree))
        truth = {} if self.data else {"mrr_truth": _mrr_of_truth(self)}
        return _ranking(self.graph, judged, score) | truth

    @property
    def graph(self) -> Graph:
        """Training and held-out triples."""
        return read_graph(self.data, self.held_out) if self.data else draw_graph(self._distribution)

    @property
    def _model_class(self) -> type[DistMult]:
        return MODELS.get(self.network, self.network)

    @property
    def _samples_neighbours(self) -> bool:
        return issubclass(self._model_class, GraphSage)

    @functools.cached_property
    def _distribution(self) -> GraphDistribution:
        return self.build_stream(GraphDistribution)


class _HeldOutTriples(NamedTuple):
    triples: np.ndarray
    candidates: np.ndarray
    """Entities that the triples' ends are ranked against, and these ends, ascending."""
    drawn: np.ndarray
    """Mask of the candidates that are ranked against, not only the end of a triple."""
    ids: np.ndarray
    """The candidates and their sampled neighbours, ascending."""
    own: np.ndarray
    """Positions of the candidates in `ids`."""
    near: np.ndarray
    """Positions of their neighbours in `ids`, flat."""
    degree: np.ndarray


@functools.lru_cache(maxsize=4)
def _held_out_data(workload: LinkPrediction) -> _HeldOutTriples:
    """The held-out triples, the same for all seeds."""
    truth = workload.graph
    triples = truth.held_out
    if len(triples) > workload.evaluation_triples:
        chosen = stream(workload.world, "judged").permutation(len(triples))[: workload.evaluation_triples]
        triples = triples[np.sort(chosen)]
    candidates, drawn = np.arange(truth.nodes), np.ones(truth.nodes, bool)
    if workload.evaluation_candidates is not None:
        generator = stream(workload.world, "candidates")
        picked = truth.draw_negatives(workload.evaluation_candidates, workload.by_degree, generator)
        candidates = np.union1d(picked, triples[:, [0, 2]])
        drawn = np.isin(candidates, picked)
    ids, near, degree = candidates, np.empty(0, np.int64), np.empty(0, np.int64)
    if workload._samples_neighbours:
        near, degree = truth.distinct_neighbours(candidates, workload.neighbours, stream(workload.world, "near"))
        ids = np.union1d(candidates, near)
        near = np.searchsorted(ids, near.ravel())
    return _HeldOutTriples(triples, candidates, drawn, ids, np.searchsorted(ids, candidates), near, degree)


def _ranking(truth: Graph, judged: _HeldOutTriples, score: Score) -> dict[str, float]:
    """Rank both sides of the held-out triples by `score(entities, relations)` over the candidates."""
    filtered, raw = [], []
    for side in (0, 2):
        for start in range(0, len(judged.triples), _CHUNK):
            part = judged.triples[start : start + _CHUNK]
            query, relation, target = (np.ascontiguousarray(part[:, column]) for column in (2 - side, 1, side))
            scores, places = score(query, relation), np.searchsorted(judged.candidates, target)
            raw.append(metrics.ranks(scores, places, np.broadcast_to(~judged.drawn, scores.shape)))
            known = truth.true_answers(query, relation, side=side, among=judged.candidates)
            filtered.append(metrics.ranks(scores, places, known | ~judged.drawn))
    result = metrics.ranking_metrics(np.concatenate(filtered))
    return result | {f"{name}_raw": value for name, value in metrics.ranking_metrics(np.concatenate(raw)).items()}


@functools.lru_cache(maxsize=4)
def _mrr_of_truth(workload: LinkPrediction) -> float:
    truth, judged = workload.graph, _held_out_data(workload)
    assert isinstance(truth, SyntheticGraph)

    def score(entities: np.ndarray, relations: np.ndarray) -> np.ndarray:
        return (truth.entities[entities] * truth.relations[relations]) @ truth.entities[judged.candidates].T

    return _ranking(truth, judged, score)["mrr"]
