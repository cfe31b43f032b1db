"""A strongly convex quadratic: the test bed whose optimum is known."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lib.data.batch import Batch


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
