"""Workloads small enough to follow by hand, and serial loops to hold parallel runs against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from lib.cluster.base import Cluster
from lib.cluster.spec import Work
from lib.data.batch import Batch
from lib.drivers.plan import Plan
from lib.drivers.record import Record
from lib.models.flat import FlatModel
from lib.store.optim import SGD, Optimizer
from lib.training.legs import driver
from lib.workloads.base import TableSpec, Workload


class Climb(torch.nn.Module):
    """Loss = -(sum of the rows) - w, so every gradient is -1 and every step of SGD(lr=1) adds 1."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return rows["letter"].sum() + self.w

    def loss(self, batch: Batch, scores: torch.Tensor) -> torch.Tensor:
        return -scores.sum()


@dataclass(frozen=True, kw_only=True)
class Letters(Workload):
    """The running example of the OAC paper: parameters a to h, one batch reads {a, c, f}, another {a, b, h}."""

    name: ClassVar[str] = "letters"

    samples: int = 2
    batch_size: int = 1
    dense_optimizer: Optimizer = field(default=SGD(lr=1.0))
    row_optimizer: Optimizer = field(default=SGD(lr=1.0))
    reads: tuple[str, ...] = ("acf", "abh")

    def tables(self) -> dict[str, TableSpec]:
        return {"letter": TableSpec(1, 0.0)}

    def model(self, seed: int) -> Climb:
        return Climb()

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        ids = np.array([ord(letter) for letter in self.reads[index % len(self.reads)]])
        return Batch.of(index=index, raw={"letter": ids}, size=1, features={})

    def work(self) -> Work:
        return Work(flops=1e6)

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        return {"letter": np.array([ord(letter) for letter in "abcdefgh"])}

    def evaluate(
        self, model: Climb, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
    ) -> dict[str, float]:
        return {letter: float(value) for letter, value in zip("abcdefgh", rows["letter"][:, 0], strict=True)}


def records(workload: Workload, protocol: Any, cluster: Cluster, seed: int = 0) -> list[Record]:
    """What the parts of a run wrote down, with all final parameters."""
    workers = 1 if protocol.dense.family == "pipeline" else cluster.workers
    plan = Plan(
        workload=workload,
        protocol=protocol,
        workers=workers,
        servers=cluster.servers,
        seed=seed,
        on_nan="stop",
        trace=True,
    )
    drive = driver(protocol)
    return cluster.open(seed, workers).run(lambda world: drive(world, plan)).records


def finals(parts: Iterable[Record]) -> dict[str, Any]:
    """Node and kind -> final parameters."""
    return {f"{part.node}/{kind}": value for part in parts for kind, value in part.final.items()}


def rounds(batches: int, workers: int) -> list[list[int]]:
    """The batches of each synchronous step; the last may have fewer than `workers`."""
    return [list(range(first, min(first + workers, batches))) for first in range(0, batches, workers)]


def serial_dense(workload: Workload, seed: int, steps: Iterable[Iterable[int]]) -> np.ndarray:
    """A dense workload, trained one update after another, each from the mean gradient of some batches."""
    model = FlatModel(workload.model(seed))
    parameter = torch.nn.Parameter(model.vector.clone())
    optimizer = workload.dense_optimizer.torch([parameter])
    for indices in steps:
        model.load(parameter.detach())
        gradients = [model.step(workload.batch(seed, index), {}).dense for index in indices]
        parameter.grad = torch.stack(gradients).mean(0)
        optimizer.step()
    return parameter.detach().numpy()
