"""DistMult (Yang et al., 2015), alone or on top of GraphSage (Hamilton et al., 2017).

The score of (head, relation, tail) is the sum over dimensions of h * r * t. Entities are rows of a table; relations are few,
so their vectors are dense parameters and stay on the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.data.batch import Batch
from lib.models.layers import Linear, generator

TABLE = "entity"


class DistMult(nn.Module):
    """Each true triple against the batch's shared negatives, as a head and as a tail.

    `batch.where[TABLE]` is flat: the samples' heads, their tails, then the shared negatives. The scores have the shape
    (samples, 2, 1 + negatives): side 0 replaces the tail, side 1 the head, and place 0 is the true triple.
    """

    def __init__(self, *, relations: int, dim: int, seed: int):
        super().__init__()
        # Of both signs: a relation that started near one would have to cross zero to change a dimension's sign.
        self.relation = nn.Parameter(torch.randn(relations, dim, generator=generator(seed)))

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        return self._score(F.embedding(batch.where[TABLE], rows[TABLE]), batch)

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        """The true triple's cross-entropy among the negatives: the mean over the samples of the two sides' sum, as in Marius."""
        return (torch.logsumexp(scores, 2) - scores[..., 0]).sum(1).mean()

    def against(self, entities: Tensor, relations: Tensor, candidates: Tensor) -> Tensor:
        """Scores (queries, candidates). DistMult is symmetric, so this ranks tails given heads and heads given tails."""
        return (entities * self.relation[relations]) @ candidates.T

    def _score(self, entities: Tensor, batch: Batch) -> Tensor:
        n = batch.size
        heads, tails, negatives = entities.split((n, n, len(entities) - 2 * n))
        relations = F.embedding(batch.features["relation"], self.relation)
        known = torch.stack((heads * relations, tails * relations), 1)
        true = torch.linalg.vecdot(known[:, 0], tails)
        return torch.cat((true.view(n, 1, 1).expand(n, 2, 1), known @ negatives.T), 2)


class GraphSage(DistMult):
    """DistMult over entities that have looked at a sample of their neighbours: W e + V (mean of the neighbours') + b.

    `batch.where[TABLE]` goes on after DistMult's places with `neighbours` places for each of them, in the same order, of
    which `batch.features["degree"]` are real.
    """

    def __init__(self, *, relations: int, dim: int, neighbours: int, seed: int):
        super().__init__(relations=relations, dim=dim, seed=seed)
        stream = generator(seed + 1)
        self.own, self.theirs = Linear(dim, dim, stream), Linear(dim, dim, stream)
        self.theirs.bias = None  # one is enough
        self.neighbours = neighbours

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        entities = F.embedding(batch.where[TABLE], rows[TABLE])
        own, theirs = entities.tensor_split((len(entities) // (1 + self.neighbours),))
        return self._score(self.encode(own, theirs, batch.features["degree"]), batch)

    def encode(self, own: Tensor, theirs: Tensor, degree: Tensor) -> Tensor:
        """Vectors of entities from their rows, those of their neighbours' places, and how many of these are real."""
        theirs, degree = theirs.view(len(own), self.neighbours, -1), degree.unsqueeze(1)
        real = (torch.arange(self.neighbours, device=own.device) < degree).to(own.dtype)
        return self.own(own) + self.theirs((theirs * real.unsqueeze(2)).sum(1) / degree.clamp(min=1))
