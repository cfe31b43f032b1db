"""A workload to copy: a model, the stream that it is trained on, its optimisers and its metric."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from lib import SGD, Batch, TableSpec, Work, Workload
from lib.options.checked import Count
from lib.store.optim import Optimizer
from lib.streams import stream

UNSEEN = 2**40
"""Where the samples of the evaluation begin: the stream never comes so far."""


class Scorer(torch.nn.Module):
    """An ordinary module; the rows of its tables come with each call."""

    def __init__(self, dim: int):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, batch: Batch, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return rows["items"][batch.where["items"]].squeeze(1) @ self.weights + batch.features["x"]

    def loss(self, batch: Batch, scores: torch.Tensor) -> torch.Tensor:
        return ((scores - batch.features["y"]) ** 2).mean()


@dataclass(frozen=True, kw_only=True)
class Mine(Workload):
    """Each item has a number of its own, which is to be learnt."""

    name: ClassVar = "mine"

    samples: Count = 8_000
    batch_size: Count = 32
    dense_optimizer: Optimizer = field(default=SGD(lr=0.05))
    row_optimizer: Optimizer = field(default=SGD(lr=0.5))
    items: Count = 50
    """Different items."""
    dim: Count = 4
    """Width of an item's row."""

    def tables(self) -> dict[str, TableSpec]:
        return {"items": TableSpec(dim=self.dim, scale=0.1)}

    def model(self, seed: int) -> Scorer:
        return Scorer(self.dim)

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        """A function of its arguments alone: random numbers come from `lib.streams` and nowhere else."""
        generator = stream(seed, "mine", first)
        items = generator.integers(0, self.items, (size, 1))
        x = generator.standard_normal(size, dtype=np.float32)
        y = (x + np.sin(items[:, 0])).astype(np.float32)
        return Batch.of(index=index, raw={"items": items}, size=size, features={"x": x, "y": y})

    def work(self) -> Work:
        """What a step costs a modelled cluster."""
        return Work(flops=6.0 * self.batch_size * self.dim)

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        return self.draw(seed, UNSEEN, 1000, 0).ids

    def evaluate(self, model, rows, seed: int, day: int | None = None) -> dict[str, float]:
        """`model(batch, rows)` is as in a step: the rows are there already, the batch is brought there."""
        unseen = self.draw(seed, UNSEEN, 1000, 0)
        scores = model(unseen, rows)
        return {"loss": float(model.loss(unseen.to(scores.device), scores))}
