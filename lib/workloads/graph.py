"""Link prediction with DistMult on a small synthetic knowledge graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from lib import metrics
from lib.cluster.spec import Work
from lib.data.batch import Batch
from lib.data.triples import Graph, PlantedGraph, graph
from lib.models.flat import tensor
from lib.models.graph import OBJECTIVES, TABLE, DistMult
from lib.store.optim import Adagrad, Optimizer
from lib.streams import stream
from lib.workloads.base import TableSpec, Workload


@dataclass(frozen=True, kw_only=True)
class SyntheticGraph(Workload):
    """A planted graph; see lib.data.triples.

    Epochs: the stream runs through the training triples again and again, each epoch in the order of a permutation that
    belongs to (seed, epoch). A batch may end one epoch and begin the next, so every epoch holds every triple once.
    Negatives: each batch draws `negatives` entities uniformly, shared by its triples on both sides.
    """

    name: ClassVar[str] = "kg-synthetic"

    samples: int = 400_000
    batch_size: int = 256
    dense_optimizer: Optimizer = field(default=Adagrad(lr=0.3))
    row_optimizer: Optimizer = field(default=Adagrad(lr=0.3))
    entities: int = 2_000
    """Number of entities."""
    relations: int = 12
    """Number of relations."""
    triples: int = 40_000
    """Training triples: one epoch."""
    evaluation_triples: int = 1_000
    """Held-out triples, ranked against all entities on both sides."""
    exponent: float = 0.8
    """Zipf's exponent of the heads' degrees."""
    rank: int = 8
    """Dimension of the planted vectors."""
    sharpness: float = 4.0
    """Standard deviation of the planted scores: the higher, the fewer tails are likely."""
    dim: int = 32
    """Width of an entity's vector."""
    negatives: int = 128
    """Shared negatives of a batch."""
    objective: str = "softmax"
    """Loss: softmax (the true triple among the negatives) or logistic."""
    scale: float = 0.3
    """New entities are uniform in (-scale, scale)."""
    world: int = 0
    """Seed of the graph, apart from the runs' seed."""

    def __post_init__(self):
        super().__post_init__()
        self._at_least(1, "entities", "relations", "triples", "evaluation_triples", "rank", "dim", "negatives")
        self._not_negative("exponent", "sharpness", "scale")
        self._one_of("objective", OBJECTIVES)
        if 2 * (self.triples + self.evaluation_triples) > self.entities**2 * self.relations:
            self._reject("triples", "at most half of the possible ones (entities^2 * relations)")

    def tables(self) -> dict[str, TableSpec]:
        return {TABLE: TableSpec(self.dim, self.scale)}

    def model(self, seed: int) -> DistMult:
        return DistMult(relations=self.relations, dim=self.dim, objective=self.objective, seed=seed)

    def batch(self, seed: int, index: int, size: int | None = None) -> Batch:
        size = self.size_of(index) if size is None else size
        head, relation, tail = self.graph.train[self._schedule(seed, index * self.batch_size, size)].T
        negatives = stream(seed, "negatives", index).integers(self.entities, size=self.negatives)
        return Batch.of(
            index=index,
            size=size,
            raw={TABLE: np.concatenate((head, tail, negatives))},
            features={"relation": np.ascontiguousarray(relation)},
        )

    def work(self) -> Work:
        """Two products of the batch with its negatives, three times for forward and backward."""
        rows = 2 * self.batch_size + self.negatives
        flops = 3 * 2.0 * self.batch_size * 2 * (self.negatives + 2) * self.dim
        return Work(flops=flops, bytes=4.0 * (3 * rows * self.dim + 6 * self.batch_size * self.negatives))

    def evaluation_ids(self, seed: int) -> dict[str, np.ndarray]:
        return {TABLE: np.arange(self.entities)}

    def evaluate(self, model: DistMult, rows: Mapping[str, np.ndarray], seed: int) -> dict[str, float]:
        """mrr and hits of the held-out triples, filtered and raw, over both sides.

        `mrr_planted` is the filtered MRR of the planted scores: a reference, not a bound, for it ignores that some
        entities head more triples than others.
        """
        device = model.relation.device
        candidates = tensor(rows[TABLE]).to(device)

        @torch.inference_mode()
        def score(entities: np.ndarray, relations: np.ndarray) -> np.ndarray:
            chosen = candidates[tensor(entities).to(device)]
            return model.against(chosen, tensor(relations).to(device), candidates).cpu().numpy()

        return _ranking(self.graph, score) | {"mrr_planted": _planted(self._plan)}

    @property
    def graph(self) -> Graph:
        """Training and held-out triples."""
        return graph(self._plan)

    @functools.cached_property
    def _plan(self) -> PlantedGraph:
        shared = ("entities", "relations", "triples", "exponent", "rank", "sharpness", "world")
        return PlantedGraph(**{name: getattr(self, name) for name in shared}, held_out=self.evaluation_triples)

    def _schedule(self, seed: int, start: int, size: int) -> np.ndarray:
        """Which triples stand at places start .. start + size of the endless stream."""
        first, last = start // self.triples, (start + size - 1) // self.triples
        orders = [_permutation(seed, epoch, self.triples) for epoch in range(first, last + 1)]
        order = orders[0] if first == last else np.concatenate(orders)
        start -= first * self.triples
        return order[start : start + size]


@functools.lru_cache(maxsize=16)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    return stream(seed, "epoch", epoch).permutation(size)


def _ranking(graph: Graph, score) -> dict[str, float]:
    """Ranks both sides of the held-out triples by `score(entities, relations)` over all entities."""
    relation, filtered, raw = np.ascontiguousarray(graph.held_out[:, 1]), [], []
    for side in (0, 2):
        query, target = (np.ascontiguousarray(graph.held_out[:, column]) for column in (2 - side, side))
        scores = score(query, relation)
        raw.append(metrics.ranks(scores, target))
        filtered.append(metrics.ranks(scores, target, graph.known(query, relation, side=side)))
    result = metrics.ranking(np.concatenate(filtered))
    return result | {f"{name}_raw": value for name, value in metrics.ranking(np.concatenate(raw)).items()}


@functools.lru_cache(maxsize=4)
def _planted(plan: PlantedGraph) -> float:
    truth = graph(plan)

    def score(entities: np.ndarray, relations: np.ndarray) -> np.ndarray:
        return (truth.entities[entities] * truth.relations[relations]) @ truth.entities.T

    return _ranking(truth, score)["mrr"]
