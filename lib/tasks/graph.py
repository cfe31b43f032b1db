"""Link prediction on a knowledge graph with DistMult (Yang et al., 2015), alone or over GraphSage (Hamilton et al., 2017).

The score of (head, relation, tail) is the sum over dimensions of h * r * t. Entities are rows of a table. Relations are few,
so their vectors are dense parameters and stay on the device.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.cluster.spec import Work
from lib.options.checked import Count, Natural, NotNegative, Share
from lib.store.optim import Adagrad, Optimizer
from lib.streams import stream
from lib.tasks import metrics
from lib.tasks.batch import Batch
from lib.tasks.flat_model import tensor
from lib.tasks.graph_stream import (
    Adjacency,
    Graph,
    GraphDistribution,
    Negatives,
    SyntheticGraph,
    draw_graph,
    read_graph,
)
from lib.tasks.layers import Linear, generator
from lib.tasks.sampling import epoch_rows
from lib.tasks.workload import Network, TableSpec, Workload, build_network, resolve_network

TABLE = "entity"


class DistMult(nn.Module):
    """Scores of each true triple, and of the batch's shared negatives in place of its tail and of its head.

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

_CHUNK = 1024  # queries ranked at once, which bounds the memory

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class LinkPrediction(Workload):
    """Link prediction on a real or synthetic knowledge graph (`lib.tasks.graph_stream`).

    The stream repeats the training triples in epochs, each in its own random order. A batch draws `negatives` entities, which
    its triples share on both sides.
    """

    name: str = "kg-synthetic"
    spelled: ClassVar[Mapping[str, str]] = {"model": "network"}

    samples: Count = 400_000
    batch_size: Count = 256
    dense_optimizer: Optimizer = field(default=Adagrad(lr=0.3))
    row_optimizer: Optimizer = field(default=Adagrad(lr=0.3))
    network: Network = "distmult"
    """The model (option `model`): distmult, graphsage, or a class of your own that extends one of `lib.tasks.graph`. Its
    constructor names what it needs of relations, dim, neighbours and seed."""
    data: str | None = None
    """Folder of a real graph; without it the graph is synthetic, by the options from `entities` to `world`."""
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
    evaluation_triples: Count = 1_000
    """Most held-out triples that are ranked on both sides."""
    evaluation_candidates: Count | None = None
    """Entities to rank against, drawn as negatives are, as Marius does on large graphs; None: all."""

    def __post_init__(self):
        object.__setattr__(self, "network", resolve_network(self.network, MODELS, DistMult, self.title))
        if 2 * (self.triples + self.evaluation_triples) > self.entities**2 * self.relations:
            self._reject("triples", "at most half of the possible ones (entities^2 * relations)")

    def tables(self) -> dict[str, TableSpec]:
        return {TABLE: TableSpec(self.dim, self.scale)}

    def model(self, seed: int) -> DistMult:
        return build_network(
            self._model_class, relations=self.graph.kinds, dim=self.dim, neighbours=self.neighbours, seed=seed
        )

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        triples = self.graph.train
        head, relation, tail = triples[epoch_rows(seed, first, size, len(triples))].T
        negatives = _negatives(self).draw(stream(seed, "negatives", first), self.negatives)
        ids, features = np.concatenate((head, tail, negatives)), {"relation": np.ascontiguousarray(relation)}
        if self._samples_neighbours:
            near, features["degree"] = _adjacency(self).sample(ids, self.neighbours, stream(seed, "near", first))
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
        return {TABLE: _evaluation(self).ids}

    def evaluate(
        self, model: DistMult, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """mrr and hits of the held-out triples over both sides, filtered and raw.

        `mrr_truth` is the filtered MRR of the latent scores. It is no bound: it ignores that some entities are the head of
        more triples than others.
        """
        vectors, judged = rows[TABLE], _evaluation(self)

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
        return read_graph(self.data, self.held_out) if self.data else draw_graph(self._plan)

    @property
    def _model_class(self) -> type[DistMult]:
        return MODELS.get(self.network, self.network)

    @property
    def _samples_neighbours(self) -> bool:
        return issubclass(self._model_class, GraphSage)

    @functools.cached_property
    def _plan(self) -> GraphDistribution:
        return self.build_stream(GraphDistribution, held_out=self.evaluation_triples)


@functools.lru_cache(maxsize=4)
def _negatives(workload: LinkPrediction) -> Negatives:
    return Negatives(workload.graph.train, workload.graph.nodes, workload.by_degree)


@functools.lru_cache(maxsize=4)
def _adjacency(workload: LinkPrediction) -> Adjacency:
    return Adjacency(workload.graph.train, workload.graph.nodes)


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
def _evaluation(workload: LinkPrediction) -> _HeldOutTriples:
    """The held-out triples, the same for all seeds."""
    truth = workload.graph
    triples = truth.held_out
    if len(triples) > workload.evaluation_triples:
        chosen = stream(workload.world, "judged").permutation(len(triples))[: workload.evaluation_triples]
        triples = triples[np.sort(chosen)]
    candidates, drawn = np.arange(truth.nodes), np.ones(truth.nodes, bool)
    if workload.evaluation_candidates is not None:
        picked = _negatives(workload).draw(stream(workload.world, "candidates"), workload.evaluation_candidates)
        candidates = np.union1d(picked, triples[:, [0, 2]])
        drawn = np.isin(candidates, picked)
    ids, near, degree = candidates, np.empty(0, np.int64), np.empty(0, np.int64)
    if workload._samples_neighbours:
        near, degree = _adjacency(workload).sample(candidates, workload.neighbours, stream(workload.world, "near"))
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
    result = metrics.ranking(np.concatenate(filtered))
    return result | {f"{name}_raw": value for name, value in metrics.ranking(np.concatenate(raw)).items()}


@functools.lru_cache(maxsize=4)
def _mrr_of_truth(workload: LinkPrediction) -> float:
    truth, judged = workload.graph, _evaluation(workload)
    assert isinstance(truth, SyntheticGraph)

    def score(entities: np.ndarray, relations: np.ndarray) -> np.ndarray:
        return (truth.entities[entities] * truth.relations[relations]) @ truth.entities[judged.candidates].T

    return _ranking(truth, judged, score)["mrr"]
