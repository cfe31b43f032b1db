"""A model whose parameters are one flat vector: what a worker pulls, and whose gradient it pushes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib.data.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one forward and backward pass leaves."""

    loss: float
    """Mean over the batch, before any update."""
    dense: Tensor
    """The dense parameters' flat gradient, a copy, on the model's device."""
    rows: dict[str, np.ndarray]
    """Table -> the gradient of each pulled row, on the host."""
    scores: np.ndarray
    """What the model's `forward` returned, on the host."""


class FlatModel:
    """Holds a module whose parameters are views of `vector` and whose gradients are views of `gradient`.

    Guarantee: the same vector, batch and rows give the same bits on a CPU; nothing is kept from one step to the next.
    """

    def __init__(self, module: nn.Module, device: str | torch.device = "cpu"):
        self.device = torch.device(device)
        self.module = module.to(self.device, torch.float32)
        parameters = list(self.module.parameters())
        self.vector = torch.cat([torch.empty(0, device=self.device), *(p.detach().flatten() for p in parameters)])
        self.gradient = torch.zeros_like(self.vector)
        sizes = [p.numel() for p in parameters]
        views = zip(parameters, self.vector.split(sizes), self.gradient.split(sizes), strict=True)
        for parameter, values, gradient in views:
            parameter.data = values.view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)

    @property
    def size(self) -> int:
        """Number of dense parameters."""
        return self.vector.numel()

    def load(self, vector: np.ndarray | Tensor) -> None:
        """Copies the values of all parameters in."""
        self.vector.copy_(tensor(vector))

    def step(self, batch: Batch, rows: Mapping[str, np.ndarray]) -> StepResult:
        """Forward, loss and backward at the loaded parameters, for a batch that still lies on the host."""
        batch = batch.to(self.device)
        blocks = {table: tensor(block).to(self.device).requires_grad_() for table, block in rows.items()}
        self.gradient.zero_()
        scores = self.module(batch, blocks)
        loss = self.module.loss(batch, scores)
        loss.backward()
        return StepResult(
            loss=loss.item(),
            dense=self.gradient.clone(),
            rows={table: _gradient(block) for table, block in blocks.items()},
            scores=scores.detach().cpu().numpy(),
        )


def tensor(array: Any) -> Tensor:
    """The array's own memory as a new tensor; unlike `from_numpy`, DLPack takes a read-only array without a warning."""
    return array.detach() if isinstance(array, Tensor) else torch.from_dlpack(array)


def _gradient(block: Tensor) -> np.ndarray:
    gradient = torch.zeros_like(block) if block.grad is None else block.grad
    return gradient.cpu().numpy()
