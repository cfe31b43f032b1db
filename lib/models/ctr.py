"""Click-through models: DeepFM (Guo et al., 2017), DLRM (Naumov et al., 2019) and Persia's FFNN (Lian et al., 2022).

One table serves all the fields. `batch.where[TABLE]` has the shape (samples, fields), `batch.features["dense"]`
(samples, dense_features), and a score is a logit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.data.batch import Batch
from lib.models.layers import Linear, generator, mlp, mlp_flops

TABLE = "feature"


class ClickModel(nn.Module):
    """Scores are logits, the loss is the binary cross-entropy."""

    normed: ClassVar[bool] = False
    """Whether it has batch normalisation, which an evaluation must settle."""

    @staticmethod
    def width(dim: int) -> int:
        """The width of a row for embeddings of `dim`."""
        return dim

    @classmethod
    def flops(cls, **shape: Any) -> float:
        """Floating-point operations of the forward pass, a sample: by default two for each dense parameter."""
        named = {name: shape[name] for name in signature(cls).parameters if name in shape}
        return 2.0 * sum(parameter.numel() for parameter in cls(**named, seed=0).parameters())

    @staticmethod
    def logits(scores: Any) -> Any:
        """Each sample's logits, of a click or of all its labels, out of a tensor or array of scores."""
        return scores

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, batch.labels)


class DeepFM(ClickModel):
    """First-order weights, factorised pairs and an MLP, summed. A row is the id's embedding, then its first-order weight."""

    def __init__(self, *, fields: int, dim: int, dense_features: int, hidden: Sequence[int], seed: int):
        super().__init__()
        stream = generator(seed)
        self.dim = dim
        self.linear = Linear(dense_features, 1, stream)
        self.deep = mlp(fields * dim + dense_features, hidden, 1, stream)

    @staticmethod
    def width(dim: int) -> int:
        return dim + 1

    @staticmethod
    def flops(*, fields: int, dim: int, dense_features: int, hidden: Sequence[int]) -> float:
        return mlp_flops(fields * dim + dense_features, hidden) + 4 * fields * (dim + 1) + 2 * dense_features

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        dense = batch.features["dense"]
        vectors, first = F.embedding(batch.where[TABLE], rows[TABLE]).split((self.dim, 1), 2)
        total = vectors.sum(1)
        # The sum over pairs of dot products is half of (the square of the sum - the sum of the squares).
        flat = vectors.flatten(1)
        pairs = torch.linalg.vecdot(total, total) - torch.linalg.vecdot(flat, flat)
        deep = self.deep(torch.cat((flat, dense), 1)) + self.linear(dense)
        return deep.squeeze(1) + first.sum((1, 2)) + 0.5 * pairs


class DLRM(ClickModel):
    """Dot products between all pairs of the fields' embeddings and the embedded dense inputs, then an MLP.

    The bottom MLP is one linear layer: without dense inputs it is a learned constant vector, whose dot product with an
    embedding is that id's first-order weight.
    """

    def __init__(self, *, fields: int, dim: int, dense_features: int, hidden: Sequence[int], seed: int):
        super().__init__()
        stream = generator(seed)
        self.bottom = Linear(dense_features, dim, stream)
        pairs = torch.tril_indices(fields + 1, fields + 1, offset=-1)
        self.register_buffer("pairs", pairs[0] * (fields + 1) + pairs[1], persistent=False)
        self.top = mlp(dim + len(self.pairs), hidden, 1, stream)

    @staticmethod
    def flops(*, fields: int, dim: int, dense_features: int, hidden: Sequence[int]) -> float:
        pairs = fields * (fields + 1) // 2
        return mlp_flops(dim + pairs, hidden) + 2 * dim * ((fields + 1) ** 2 + dense_features)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        bottom = self.bottom(batch.features["dense"])
        embedded = F.embedding(batch.where[TABLE], rows[TABLE])
        vectors = torch.cat((bottom.unsqueeze(1), embedded), 1)
        products = (vectors @ vectors.mT).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat((bottom, products), 1)).squeeze(1)


class FFNN(ClickModel):
    """All embeddings and dense inputs side by side, then an MLP with batch normalisation and an output for each label."""

    normed: ClassVar[bool] = True

    def __init__(self, *, fields: int, dim: int, dense_features: int, hidden: Sequence[int], seed: int, tasks: int = 1):
        super().__init__()
        self.deep = mlp(fields * dim + dense_features, hidden, tasks, generator(seed), norm=True)

    @staticmethod
    def flops(*, fields: int, dim: int, dense_features: int, hidden: Sequence[int], tasks: int = 1) -> float:
        return mlp_flops(fields * dim + dense_features, hidden, tasks) + 8 * sum(hidden)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        vectors = F.embedding(batch.where[TABLE], rows[TABLE]).flatten(1)
        scores = self.deep(torch.cat((vectors, batch.features["dense"]), 1))
        return scores.squeeze(1) if scores.shape[1] == 1 else scores
