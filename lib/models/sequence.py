"""Models of what a user did before: DIEN (Zhou et al., 2019) and YouTubeDNN (Covington et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.data.batch import Batch
from lib.models.ctr import TABLE, ClickModel
from lib.models.layers import Linear, generator, mlp, mlp_flops
from lib.models.recurrent import Recurrent

ITEM = "item"


class DIEN(ClickModel):
    """Interests out of behaviours by a GRU, their course towards the target by an AUGRU, then an MLP.

    An item has `parts` ids. `batch.where[TABLE]` holds, side by side, a sample's fields, the target item, `length` behaviours
    from the oldest on, and as many items that the user did not choose; `batch.features["behaviours"]` says how many are real.
    Scores have two columns: the logit, and the sample's auxiliary loss, by which each interest must tell the next behaviour
    from the item that was not chosen.

    As in the paper, not its code: the auxiliary score is the plain inner product, and the MLP has ReLU.
    """

    auxiliary = 1.0
    """Weight of the auxiliary loss (the paper's alpha)."""

    def __init__(
        self,
        *,
        fields: int,
        dim: int,
        dense_features: int,
        hidden: Sequence[int],
        length: int,
        parts: int,
        seed: int,
    ):
        super().__init__()
        stream = generator(seed)
        self.split = fields, parts, length * parts, length * parts
        self.length, self.item = length, parts * dim
        self.interest = Recurrent(self.item, self.item, stream)
        self.evolution = Recurrent(self.item, self.item, stream)
        self.attention = Linear(self.item, self.item, stream)
        self.deep = mlp(fields * dim + 2 * self.item + dense_features, hidden, 1, stream)

    @staticmethod
    def flops(
        *, fields: int, dim: int, dense_features: int, hidden: Sequence[int], length: int = 0, parts: int = 1
    ) -> float:
        item = parts * dim
        return mlp_flops(fields * dim + 2 * item + dense_features, hidden) + length * (24 * item**2 + 6 * item)

    @staticmethod
    def logits(scores: Any) -> Any:
        return scores[:, 0]

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        vectors = F.embedding(batch.where[TABLE], rows[TABLE])
        profile, target, history, others = (part.flatten(1) for part in vectors.split(self.split, 1))
        history, others = (part.unflatten(1, (self.length, self.item)) for part in (history, others))
        places = torch.arange(self.length, device=vectors.device)
        real = (places < batch.features["behaviours"].unsqueeze(1)).to(vectors.dtype)
        interests = self.interest(history, real)
        final = self.evolution(interests, self._attend(interests, target, real))[:, -1]
        logits = self.deep(torch.cat((profile, target, final, batch.features["dense"]), 1))
        return torch.cat((logits, self._auxiliary(interests, history, others, real).unsqueeze(1)), 1)

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        return super().loss(batch, scores[:, 0]) + self.auxiliary * scores[:, 1].mean()

    def _attend(self, interests: Tensor, target: Tensor, real: Tensor) -> Tensor:
        """Softmax of the interests' products with the target, over the real behaviours; zeros where there is none."""
        scores = (interests @ self.attention(target).unsqueeze(2)).squeeze(2)
        weights = torch.exp(scores - scores.max(1, keepdim=True).values) * real
        return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)

    def _auxiliary(self, interests: Tensor, history: Tensor, others: Tensor, real: Tensor) -> Tensor:
        """Of each sample, the mean over its behaviours but the first."""
        before, here = interests[:, :-1], real[:, 1:]
        chosen = torch.linalg.vecdot(before, history[:, 1:])
        passed = torch.linalg.vecdot(before, others[:, 1:])
        return ((F.softplus(-chosen) + F.softplus(passed)) * here).sum(1) / here.sum(1).clamp(min=1)


class YouTubeDNN(nn.Module):
    """A vector of the user against the vectors of items; trained as a softmax over all items, of which a sample is seen.

    `batch.where[TABLE]` holds a sample's fields, then `length` items that were watched, of which
    `batch.features["behaviours"]` are real; `batch.where[ITEM]` is flat: the samples' next items, then the batch's shared
    negatives. Scores have the shape (samples, 1 + negatives), place 0 is the next item.
    """

    def __init__(self, *, fields: int, dim: int, dense_features: int, hidden: Sequence[int], length: int, seed: int):
        super().__init__()
        self.split = fields, length
        self.tower = mlp((fields + 1) * dim + dense_features, hidden, dim, generator(seed))

    @staticmethod
    def flops(*, fields: int, dim: int, dense_features: int, hidden: Sequence[int], length: int) -> float:
        """Of the user's vector, a sample."""
        return mlp_flops((fields + 1) * dim + dense_features, hidden, dim) + 2 * length * dim

    def users(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """The users' vectors (samples, dim)."""
        profile, watched = F.embedding(batch.where[TABLE], rows[TABLE]).split(self.split, 1)
        count = batch.features["behaviours"].unsqueeze(1)
        real = (torch.arange(self.split[1], device=watched.device) < count).to(watched.dtype)
        mean = (watched * real.unsqueeze(2)).sum(1) / count.clamp(min=1)
        return self.tower(torch.cat((profile.flatten(1), mean, batch.features["dense"]), 1))

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        users = self.users(batch, rows)
        chosen, negatives = F.embedding(batch.where[ITEM], rows[ITEM]).tensor_split((batch.size,))
        return torch.cat((torch.linalg.vecdot(users, chosen).unsqueeze(1), users @ negatives.T), 1)

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        """Cross-entropy of the next item among the sampled ones, each score less the logarithm of how often its item is drawn
        (Bengio and Senécal, 2008), `batch.features["log_chance"]`; a negative that is the next item itself does not count."""
        items, chances = batch.where[ITEM], batch.features["log_chance"].to(scores.dtype)
        chosen, negatives = items.tensor_split((batch.size,))
        of_chosen, of_negatives = chances.tensor_split((batch.size,))
        others = scores[:, 1:] - of_negatives
        others = others.masked_fill(chosen.unsqueeze(1) == negatives, -torch.inf)
        true = scores[:, 0] - of_chosen
        return (torch.logaddexp(true, torch.logsumexp(others, 1)) - true).mean()
