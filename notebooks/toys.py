"""Workloads without learning that can be followed by hand: rows and parameters count the updates that they received."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from lib import SGD, Batch, TableSpec, Work, Workload
from lib.options.checked import Count
from lib.store.optim import Optimizer

NAMES = "abcdefgh"


class Climb(torch.nn.Module):
    """Loss = -(sum of the rows) - w, so every gradient is -1 and every step of SGD(lr=1) adds 1: it counts its updates."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return sum(values.sum() for values in rows.values()) + self.w

    def loss(self, batch: Batch, scores: torch.Tensor) -> torch.Tensor:
        return -scores.sum()


@dataclass(frozen=True, kw_only=True)
class Toy(Workload):
    """Batches of one sample, steps of SGD(lr=1), nothing to evaluate."""

    batch_size: Count = 1
    dense_optimizer: Optimizer = field(default=SGD(lr=1.0))
    row_optimizer: Optimizer = field(default=SGD(lr=1.0))

    def model(self, seed: int) -> torch.nn.Module:
        return Climb()

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        return Batch.of(index=index, raw={}, size=size, features={})

    def work(self) -> Work:
        return Work(flops=1e6)

    def evaluate(
        self, model: torch.nn.Module, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
    ) -> dict[str, float]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Letters(Toy):
    """Batches that read a few of eight parameters, each of which counts its updates, as the dense one does: 2 is a''."""

    name: ClassVar[str] = "letters"

    samples: int = 2
    reads: tuple[str, ...] = ("acf", "abh")
    """What batches read, in turn."""

    def tables(self) -> dict[str, TableSpec]:
        return {"letter": TableSpec(1, 0.0)}

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        ids = np.array([ord(letter) for letter in self.reads[index % len(self.reads)]])
        return Batch.of(index=index, raw={"letter": ids}, size=1, features={})

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        return {"letter": np.array([ord(letter) for letter in NAMES])}

    def evaluate(
        self, model: Climb, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
    ) -> dict[str, float]:
        found = {letter: float(value) for letter, value in zip(NAMES, rows["letter"][:, 0], strict=True)}
        return found | {"w": float(model.w.detach()[0])}
