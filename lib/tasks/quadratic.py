"""A strongly convex quadratic: its optimum is known, its gradients have noise, and it has no sparse features."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from lib.cluster.spec import Work
from lib.options.checked import Count, Finite, Natural, NotNegative
from lib.store.optim import SGD, Optimizer
from lib.streams import stream
from lib.tasks.flat_model import Batch
from lib.tasks.workload import Workload


class Quadratic(nn.Module):
    """f(w) = 1/2 (w - w*)' A (w - w*); a sample adds xi' (w - w*), so that its gradient is A (w - w*) + xi.

    A score is the sample's value of f; the loss is their mean. The noise xi is `batch.features["noise"]`.
    """

    def __init__(self, *, matrix: Tensor, optimum: Tensor, start: Tensor):
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.register_buffer("optimum", optimum)
        self.weights = nn.Parameter(start)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        error = self.weights - self.optimum
        return batch.features["noise"] @ error + 0.5 * error @ (self.matrix @ error)

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        return scores.mean()


@dataclass(frozen=True, kw_only=True)
class QuadraticBowl(Workload):
    """f(w) = 1/2 (w - w*)' A (w - w*), where A's eigenvalues run from 1/condition to 1 on a logarithmic scale."""

    name: ClassVar[str] = "quadratic"

    samples: Count = 64_000
    batch_size: Count = 32
    dense_optimizer: Optimizer = field(default=SGD(lr=0.1))
    row_optimizer: Optimizer = field(default=SGD(lr=0.1))
    dim: Count = 32
    """Number of parameters."""
    condition: Annotated[float, Ge(1), Finite] = 10.0
    """Largest eigenvalue divided by the smallest."""
    noise: NotNegative = 1.0
    """Standard deviation of a sample's gradient noise in each coordinate."""
    world: Natural = 0
    """Seed of A and w*, apart from the runs' seed."""

    def model(self, seed: int) -> Quadratic:
        matrix, optimum = _matrix_and_optimum(self.dim, self.condition, self.world)
        start = stream(seed, "model").standard_normal(self.dim)
        values = {"matrix": matrix, "optimum": optimum, "start": start}
        return Quadratic(**{name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()})

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        noise = stream(seed, "noise", first).standard_normal((size, self.dim), dtype=np.float32)
        noise *= np.float32(self.noise)
        return Batch.of(index=index, raw={}, size=size, features={"noise": noise})

    def work(self) -> Work:
        flops = 4.0 * self.dim * (self.batch_size + self.dim)
        return Work(flops=flops, bytes=8.0 * self.dim * (self.batch_size + self.dim))

    def evaluate(
        self, model: Quadratic, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """`loss` is f(w) - f(w*), `squared` its gradient's squared norm, `distance` the Euclidean distance from the optimum."""
        matrix, optimum = _matrix_and_optimum(self.dim, self.condition, self.world)
        error = model.weights.detach().cpu().numpy() - optimum
        slope = matrix @ error
        loss, squared = float(0.5 * error @ slope), float(slope @ slope)
        return {"loss": loss, "squared": squared, "distance": float(np.linalg.norm(error))}


@functools.lru_cache(maxsize=8)
def _matrix_and_optimum(dim: int, condition: float, world_seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A and w*."""
    generator = stream(world_seed, "quadratic")
    basis, _ = np.linalg.qr(generator.standard_normal((dim, dim)))
    eigenvalues = np.geomspace(1 / condition, 1, dim)
    return (basis * eigenvalues) @ basis.T, generator.standard_normal(dim)
