"""Retrieval: which item does a user choose next? YouTubeDNN (Covington et al., 2016), trained with a sampled softmax."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.cluster.spec import Work
from lib.options.checked import Count, Natural, NotNegative
from lib.store.optim import Adam, Optimizer
from lib.streams import stream
from lib.tasks.behaviours import Catalogue, Histories, WatchStream, next_topic_probabilities
from lib.tasks.click_models import TABLE
from lib.tasks.clicks_stream import FIELD_SHIFT, concatenate
from lib.tasks.flat_model import Batch
from lib.tasks.layers import generator, mlp, mlp_flops
from lib.tasks.sampling import alias_table, pick_many
from lib.tasks.workload import TableSpec, Workload, dense_parameters

ITEM = "item"


class YouTubeDNN(nn.Module):
    """A network for users' vectors, whose products with items' vectors are the logits of a sampled softmax.

    `batch.where[TABLE]` has a sample's group, then `length` watched items, of which `batch.features["behaviours"]` are real.
    `batch.where[ITEM]` is flat: the samples' next items, then the negatives that they share. Scores have the shape
    (samples, 1 + negatives); place 0 is the next item.
    """

    def __init__(self, *, dim: int, hidden: Sequence[int], seed: int):
        super().__init__()
        self.tower = mlp(2 * dim, hidden, dim, generator(seed))

    def users(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        """The users' vectors (samples, dim)."""
        group, watched = F.embedding(batch.where[TABLE], rows[TABLE]).tensor_split((1,), 1)
        count = batch.features["behaviours"].unsqueeze(1)
        real = (torch.arange(watched.shape[1], device=watched.device) < count).to(watched.dtype)
        mean = (watched * real.unsqueeze(2)).sum(1) / count.clamp(min=1)
        return self.tower(torch.cat((group.flatten(1), mean), 1))

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        users = self.users(batch, rows)
        chosen, negatives = F.embedding(batch.where[ITEM], rows[ITEM]).tensor_split((batch.size,))
        return torch.cat((torch.linalg.vecdot(users, chosen).unsqueeze(1), users @ negatives.T), 1)

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        """Cross-entropy of the next item among the sampled ones; a negative that equals the next item does not count.

        From each score `batch.features["log_chance"]` is subtracted, the log probability of drawing the item (Bengio and
        Senécal, 2008).
        """
        items, chances = batch.where[ITEM], batch.features["log_chance"].to(scores.dtype)
        chosen, negatives = items.tensor_split((batch.size,))
        of_chosen, of_negatives = chances.tensor_split((batch.size,))
        others = scores[:, 1:] - of_negatives
        others = others.masked_fill(chosen.unsqueeze(1) == negatives, -torch.inf)
        true = scores[:, 0] - of_chosen
        return (torch.logaddexp(true, torch.logsumexp(others, 1)) - true).mean()


@dataclass(frozen=True, kw_only=True)
class NextItem(Workload):
    """Prediction of the next item from a user's group and history (`lib.tasks.behaviours`).

    The days are those of `lib.tasks.clicks`. An item has one row as a watched item, and one as a candidate.
    """

    name: str = "next-item"

    samples: Count = 200_000
    batch_size: Count = 256
    dense_optimizer: Optimizer = field(default=Adam(lr=0.003))
    row_optimizer: Optimizer = field(default=Adam(lr=0.02))
    dim: Count = 24
    """Width of an item's and of a user's vector."""
    hidden: tuple[Count, ...] = (128,)
    """Widths of the hidden layers of the user's network."""
    negatives: Count = 256
    """Items that the samples of a batch share as negatives, drawn by popularity."""
    topics: Count = 20
    """Topics of the items."""
    per_topic: Count = 50
    """Items of each topic."""
    exponent: NotNegative = 0.8
    """Zipf's exponent of the items within a topic."""
    length: Count = 10
    """Most past items of a user."""
    novelty: NotNegative = 2.0
    """Weight of a new topic, relative to one past behaviour."""
    groups: Count = 10
    """Groups of users, which differ in their taste for new topics."""
    spread: NotNegative = 1.0
    """Standard deviation of a group's logits over the topics."""
    days: Count = 4
    """Days in one pass."""
    drift: NotNegative = 0.03
    """Radians by which the groups' tastes drift each day."""
    world: Natural = 0
    """Seed of the tastes, independent of the seed of runs."""
    scale: NotNegative = 0.2
    """New rows are uniform in (-scale, scale)."""
    evaluation_samples: Count = 4_000
    """Users of the evaluation."""
    evaluation_negatives: Count = 20
    """Uniformly drawn items with which each user's next item is compared."""

    def __post_init__(self):
        if not self.novelty:
            self._reject("novelty", "more than 0: a first item must come from somewhere")

    def tables(self) -> dict[str, TableSpec]:
        return {TABLE: TableSpec(self.dim, self.scale), ITEM: TableSpec(self.dim, self.scale)}

    def model(self, seed: int) -> YouTubeDNN:
        return YouTubeDNN(dim=self.dim, hidden=self.hidden, seed=seed)

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        parts = [
            self._watch.draw_viewers(many, seed=seed, day=day, first=place)
            for day, place, many in self.split_by_day(first, size)
        ]
        groups, _, pasts = zip(*parts, strict=True)
        group, past = np.concatenate(groups), concatenate(list(pasts))
        uniform = stream(seed, "negatives", first).random((self.negatives, 2))
        rank = pick_many(uniform[:, 1], *alias_table(self.per_topic, self.exponent))
        negatives = (uniform[:, 0] * self.topics).astype(np.int64) * self.per_topic + rank
        items = np.concatenate((past.next_item, negatives))
        return Batch.of(
            index=index,
            day=self.day(first),
            size=size,
            raw={TABLE: _lookup_ids(group, past), ITEM: items},
            features={
                "behaviours": past.behaviours,
                "log_chance": np.log(self._catalogue.probabilities())[items].astype(np.float32),
            },
        )

    def work(self) -> Work:
        """The user's network, and the products with the sampled items."""
        user = mlp_flops(2 * self.dim, self.hidden, self.dim) + 2 * self.length * self.dim
        flops = user + 2 * self.dim * (1 + self.negatives)
        rows = self.batch_size * (2 + self.length) + self.negatives
        return Work(flops=3.0 * self.batch_size * flops, bytes=4.0 * 3 * (rows * self.dim + dense_parameters(self)))

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        return _held_out_data(self, seed, day).batch.ids

    def evaluate(
        self, model: YouTubeDNN, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """auc, expected_auc, auc_ceiling and hit_1.

        `auc` is the probability that the next item scores above a uniformly drawn one. In `expected_auc` each of a user's items
        is the next one with its true probability, given the items; `auc_ceiling` is the largest that any scores have. `hit_1` is
        the share of users whose next item is first.
        """
        held_out = _held_out_data(self, seed, day)
        batch = held_out.batch.to(rows[ITEM].device)
        items = rows[ITEM][batch.where[ITEM]].unflatten(0, (batch.size, -1))
        scores = torch.linalg.vecdot(model.users(batch, rows).unsqueeze(1), items).cpu().numpy()
        above = _share_below(scores)
        return {
            "auc": float(above[:, 0].mean()),
            "expected_auc": _expected_auc(above, held_out.truth),
            "auc_ceiling": held_out.ceiling,
            "hit_1": float(np.mean(above[:, 0] == 1)),
        }

    @functools.cached_property
    def _catalogue(self) -> Catalogue:
        return self.build_stream(Catalogue)

    @functools.cached_property
    def _watch(self) -> WatchStream:
        return self.build_stream(WatchStream, catalogue=self._catalogue)


class _HeldOutUsers(NamedTuple):
    batch: Batch
    """The items of a user are the next one, then those that it is compared with."""
    truth: np.ndarray
    """The probability of each of these to be the next one, given all of them."""
    ceiling: float


@functools.lru_cache(maxsize=16)
def _held_out_data(workload: NextItem, seed: int, day: int | None) -> _HeldOutUsers:
    size, catalogue = workload.evaluation_samples, workload._catalogue
    day = workload.days if day is None else day
    group, taste, past = workload._watch.draw_viewers(size, seed=seed, day=day, part=f"evaluation {day}")
    others = stream(seed, "others", day).integers(catalogue.items, size=(size, workload.evaluation_negatives))
    items = np.concatenate((past.next_item[:, None], others), 1)
    topics = next_topic_probabilities(catalogue, past, taste)
    truth = np.take_along_axis(topics, items // catalogue.per_topic, 1) * catalogue.probabilities()[items]
    raw = {TABLE: _lookup_ids(group, past), ITEM: items.ravel()}
    batch = Batch.of(index=0, day=day, size=size, raw=raw, features={"behaviours": past.behaviours})
    truth /= truth.sum(1, keepdims=True)
    return _HeldOutUsers(batch, truth, _expected_auc(_share_below(truth), truth))


def _share_below(scores: np.ndarray) -> np.ndarray:
    """For each score the share of the others in its row that it is above; ties count half, and a nan is above nothing."""
    one, other = scores[:, :, None], scores[:, None, :]
    return ((one > other).sum(2) + 0.5 * ((one == other).sum(2) - (scores == scores))) / (scores.shape[1] - 1)


def _expected_auc(share_below: np.ndarray, truth: np.ndarray) -> float:
    return float((share_below * truth).sum(1).mean())


def _lookup_ids(group: np.ndarray, past: Histories) -> np.ndarray:
    return np.concatenate(((group | 1 << FIELD_SHIFT)[:, None], past.watched), 1)
