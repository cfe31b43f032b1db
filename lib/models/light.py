"""A factorisation machine with a small dense network whose gradients are compiled, for studies that need many steps.

Autograd's notes about a step of some dozen samples take longer than its arithmetic, thirty times as long here. So a model may
bring `gradients(vector, batch, rows)`, and `FlatModel` asks it on the CPU; elsewhere, and where columns are summed before the
model sees them, `forward` and autograd say the same within float32's rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba import njit, types
from numba.types import float32, float64, int64
from torch import Tensor, nn

from lib.data.batch import Batch
from lib.models.ctr import TABLE, DeepFM

_FLOATS, _BLOCK = (types.Array(float32, n, "C", readonly=True) for n in (1, 2))
_PLACES = types.Array(int64, 2, "C", readonly=True)
_NEW_FLOATS, _NEW_BLOCK = float32[::1], float32[:, ::1]


class LightFM(DeepFM):
    """DeepFM with one hidden layer, or without a network: then a bias and the numbers' weights are all that is dense."""

    def __init__(self, *, hidden: Sequence[int], **shape: Any):
        super().__init__(hidden=hidden, **shape)
        self._width = sum(hidden)
        if not hidden:
            self.deep = _Nothing()

    def gradients(
        self, vector: np.ndarray, batch: Batch, rows: Mapping[str, Any]
    ) -> tuple[float, np.ndarray, dict[str, np.ndarray], np.ndarray]:
        """Loss, the gradient of the parameters in that vector, those of the rows, and scores; of arrays or the CPU's tensors."""
        places, dense = (np.ascontiguousarray(each) for each in (batch.where[TABLE], batch.features["dense"]))
        block, labels = (np.ascontiguousarray(each) for each in (rows[TABLE], batch.labels))
        loss, gradient, of_rows, scores = _gradients(vector, places, block, dense, labels, self._width)
        return loss, gradient, {TABLE: of_rows}, scores


class _Nothing(nn.Module):
    def forward(self, inputs: Tensor) -> float:
        return 0.0


@njit(
    types.Tuple((float64, _NEW_FLOATS, _NEW_BLOCK, _NEW_FLOATS))(_FLOATS, _PLACES, _BLOCK, _BLOCK, _FLOATS, int64),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _gradients(vector, places, rows, dense, labels, width):
    """Sample by sample, forward and backward. Inner loops count with uint64 and run over what lies side by side: SIMD.

    The vector has the numbers' weights, the bias, and of the network the hidden layer's weights and biases, then the output's.
    """
    samples, fields = places.shape
    dim, numbers = rows.shape[1] - 1, dense.shape[1]
    inputs = np.uint64(fields * dim + numbers)
    bias = np.uint64(numbers)
    first = bias + np.uint64(1)
    biases = first + inputs * np.uint64(width)
    output = biases + np.uint64(width)
    gradient, of_rows = np.zeros(vector.size, np.float32), np.zeros(rows.shape, np.float32)
    scores, loss = np.empty(samples, np.float32), 0.0
    by_input = np.empty((inputs, np.uint64(width)), np.float32)
    for j in range(np.uint64(width)):
        for i in range(inputs):
            by_input[i, j] = vector[first + j * inputs + i]
    seen, slopes = np.empty(inputs, np.float32), np.empty(inputs, np.float32)
    hidden, total = np.empty(width, np.float32), np.empty(dim, np.float32)
    dim, width = np.uint64(dim), np.uint64(width)
    last = output + width
    for n in range(samples):
        score, squares = np.float64(vector[bias]), 0.0
        total[:] = 0
        for f in range(np.uint64(fields)):
            row = np.uint64(places[n, f])
            for d in range(dim):
                value = rows[row, d]
                seen[f * dim + d] = value
                total[d] += value
                squares += np.float64(value) * value
            score += rows[row, dim]
        for d in range(dim):
            score += 0.5 * np.float64(total[d]) * total[d]
        score -= 0.5 * squares
        for k in range(np.uint64(numbers)):
            seen[np.uint64(fields) * dim + k] = dense[n, k]
            score += np.float64(vector[k]) * dense[n, k]
        for j in range(width):
            hidden[j] = vector[biases + j]
        for i in range(inputs if width else np.uint64(0)):
            for j in range(width):
                hidden[j] += seen[i] * by_input[i, j]
        for j in range(width):
            if hidden[j] <= 0:  # what is no number stays, and shows in the loss
                hidden[j] = 0
            score += np.float64(vector[output + j]) * hidden[j]
        if width:
            score += vector[last]
        scores[n] = score
        rest = np.exp(-abs(score))
        loss += max(score, 0.0) - score * labels[n] + np.log1p(rest)
        slope = np.float32(((1 if score >= 0 else rest) / (1 + rest) - labels[n]) / samples)
        gradient[bias] += slope
        for k in range(np.uint64(numbers)):
            gradient[k] += slope * dense[n, k]
        slopes[:] = 0
        for j in range(width):
            if hidden[j] == 0:
                continue
            gradient[output + j] += slope * hidden[j]
            reach = slope * vector[output + j]
            gradient[biases + j] += reach
            start = first + j * inputs
            for i in range(inputs):
                gradient[start + i] += reach * seen[i]
                slopes[i] += reach * vector[start + i]
        if width:
            gradient[last] += slope
        for f in range(np.uint64(fields)):
            row = np.uint64(places[n, f])
            for d in range(dim):
                of_rows[row, d] += slopes[f * dim + d] + slope * (total[d] - seen[f * dim + d])
            of_rows[row, dim] += slope
    return loss / samples, gradient, of_rows, scores
