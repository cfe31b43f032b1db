"""Models of clicks: DeepFM (Guo et al., 2017), DLRM (Naumov et al., 2019), Persia's FFNN (Lian et al., 2022), DIEN (Zhou et
al., 2019), and a small factorisation machine with compiled gradients.

One table serves all fields. `batch.where[TABLE]` has the shape (samples, fields), `batch.features["dense"]`
(samples, dense_features), and a score is a logit.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar

import numpy as np
import torch
from numba import njit, types
from numba.types import float32, float64, int64
from torch import Tensor, nn
from torch.nn import functional as F

from lib.tasks.flat_model import Batch
from lib.tasks.layers import Linear, generator, mlp, mlp_flops

TABLE = "feature"


class ClickModel(nn.Module):
    """A model whose scores are logits and whose loss is the binary cross-entropy."""

    normed: ClassVar[bool] = False
    """Whether it has batch normalisation, for which an evaluation needs training batches."""

    @staticmethod
    def width(dim: int) -> int:
        """The width of a row for embeddings of `dim`."""
        return dim

    @classmethod
    def forward_flops(cls, **shape: Any) -> float:
        """Floating-point operations of the forward pass for a sample; by default two for each dense parameter."""
        named = {name: shape[name] for name in signature(cls).parameters if name in shape}
        return 2.0 * sum(parameter.numel() for parameter in cls(**named, seed=0).parameters())

    @staticmethod
    def logits(scores: Any) -> Any:
        """The logits, for one label or all, in a tensor or array of scores."""
        return scores

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, batch.labels)


class DeepFM(ClickModel):
    """The sum of first-order weights, factorised pairs and an MLP. A row is an id's embedding, then its first-order weight."""

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
    def forward_flops(*, fields: int, dim: int, dense_features: int, hidden: Sequence[int]) -> float:
        return mlp_flops(fields * dim + dense_features, hidden) + 4 * fields * (dim + 1) + 2 * dense_features

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        dense = batch.features["dense"]
        vectors, first = F.embedding(batch.where[TABLE], rows[TABLE]).split((self.dim, 1), 2)
        total = vectors.sum(1)
        # The dot products of all pairs sum to half of (the square of the sum - the sum of the squares).
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
    def forward_flops(*, fields: int, dim: int, dense_features: int, hidden: Sequence[int]) -> float:
        pairs = fields * (fields + 1) // 2
        return mlp_flops(dim + pairs, hidden) + 2 * dim * ((fields + 1) ** 2 + dense_features)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        bottom = self.bottom(batch.features["dense"])
        embedded = F.embedding(batch.where[TABLE], rows[TABLE])
        vectors = torch.cat((bottom.unsqueeze(1), embedded), 1)
        products = (vectors @ vectors.mT).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat((bottom, products), 1)).squeeze(1)


class FFNN(ClickModel):
    """An MLP with batch normalisation over all embeddings and dense inputs, with an output for each label."""

    normed: ClassVar[bool] = True

    def __init__(self, *, fields: int, dim: int, dense_features: int, hidden: Sequence[int], seed: int, tasks: int = 1):
        super().__init__()
        self.deep = mlp(fields * dim + dense_features, hidden, tasks, generator(seed), norm=True)

    @staticmethod
    def forward_flops(*, fields: int, dim: int, dense_features: int, hidden: Sequence[int], tasks: int = 1) -> float:
        return mlp_flops(fields * dim + dense_features, hidden, tasks) + 8 * sum(hidden)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        vectors = F.embedding(batch.where[TABLE], rows[TABLE]).flatten(1)
        scores = self.deep(torch.cat((vectors, batch.features["dense"]), 1))
        return scores.squeeze(1) if scores.shape[1] == 1 else scores


class Recurrent(nn.Module):
    """A gated recurrent unit (Cho et al., 2014) with torch.nn.GRU's equations; with attention it is DIEN's AUGRU.

    The attention scales the update gate: with attention 0, as after the end of a sequence, a place does not change the state.
    Gradients are written by hand, for all steps at once where possible: for a worker's few samples autograd takes longer than
    the arithmetic, and a sequence of 20 steps is twice as fast without it.
    """

    def __init__(self, inputs: int, width: int, stream: torch.Generator):
        super().__init__()
        self.outer = Linear(inputs, 3 * width, stream)
        self.inner = Linear(width, 3 * width, stream)

    def forward(self, inputs: Tensor, attention: Tensor) -> Tensor:
        """States (samples, length, width) for inputs (samples, length, inputs) and attention (samples, length)."""
        learns = torch.is_grad_enabled()  # inside `_AUGRUStates` it is always off
        return _AUGRUStates.apply(self.outer(inputs), attention, self.inner.weight, self.inner.bias, learns)


class _AUGRUStates(torch.autograd.Function):
    """All steps of a sequence, in arrays (length, samples, ...). With r, k, n for a step's reset, keep and new input,

        proposal = tanh(n + r * (the state's part of the new)),  update = attention * (1 - k),
        state' = state + update * (proposal - state),

    where r and k are sigmoids of the input's part and the state's."""

    @staticmethod
    def forward(ctx: Any, outer: Tensor, attention: Tensor, weight: Tensor, bias: Tensor, learns: bool) -> Tensor:
        width = weight.shape[1]
        outer, attention = outer.transpose(0, 1).contiguous(), attention.t().unsqueeze(2)
        length, samples, _ = outer.shape

        def room(parts: int) -> Tensor:
            """Memory for all steps if gradients follow, else for one step that all share."""
            return outer.new_empty(length if learns else 1, samples, parts * width).expand(length, -1, -1)

        states = outer.new_zeros(length + 1, samples, width)
        inner, gates, proposals, updates = room(3), room(2), room(1), room(1)
        # Views for every step, made before the loop: inside, they would take as long as the arithmetic.
        outer_gates, new = _unbind_all(*outer.split((2 * width, width), 2))
        inner_gates, inner_new = _unbind_all(*inner.split((2 * width, width), 2))
        reset, keep = _unbind_all(*gates.split(width, 2))
        weighed, whole, gate, proposal, update, state = _unbind_all(attention, inner, gates, proposals, updates, states)
        onwards = weight.t()
        for step in range(length):
            torch.addmm(bias, state[step], onwards, out=whole[step])
            torch.add(outer_gates[step], inner_gates[step], out=gate[step]).sigmoid_()
            torch.addcmul(new[step], reset[step], inner_new[step], out=proposal[step]).tanh_()
            torch.addcmul(weighed[step], weighed[step], keep[step], value=-1, out=update[step])
            torch.lerp(state[step], proposal[step], update[step], out=state[step + 1])
        ctx.save_for_backward(attention, weight, states, inner, gates, proposals, updates)
        return states[1:].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        attention, weight, states, inner, gates, proposals, updates = ctx.saved_tensors
        length, samples, width = proposals.shape
        before, (reset, keep) = states[:-1], gates.split(width, 2)
        # Derivatives of each state by its inputs before the tanh and the sigmoids.
        by_new = updates * (1 - proposals.square())
        by_reset = by_new * inner[..., 2 * width :] * reset * (1 - reset)
        by_keep = (before - proposals) * attention * keep * (1 - keep)
        by_inner = torch.stack((by_reset, by_keep, by_new * reset), 2)
        # Backwards through the steps: the gradient of a state, directly and through the next state.
        whole, of_inner = torch.empty_like(proposals), torch.empty_like(by_inner)
        reached = proposals.new_zeros(samples, width)
        own, stays, slope, total = _unbind_all(gradient.transpose(0, 1), 1 - updates, by_inner, whole)
        parts, flat = _unbind_all(of_inner, of_inner.flatten(2))
        for step in reversed(range(length)):
            torch.add(own[step], reached, out=total[step])
            torch.mul(slope[step], total[step].unsqueeze(1), out=parts[step])
            reached = torch.addmm(total[step] * stays[step], flat[step], weight)
        of_outer = torch.cat((of_inner[:, :, 0], of_inner[:, :, 1], whole * by_new), 2)
        of_attention = (whole * (proposals - before) * (1 - keep)).sum(2).t() if ctx.needs_input_grad[1] else None
        each = of_inner.view(length * samples, 3 * width)
        of_weight, of_bias = each.t() @ before.reshape(length * samples, width), each.sum(0)
        return of_outer.transpose(0, 1), of_attention, of_weight, of_bias, None


def _unbind_all(*parts: Tensor) -> list[tuple[Tensor, ...]]:
    return [part.unbind() for part in parts]


class DIEN(ClickModel):
    """A GRU that finds interests in behaviours, an AUGRU that follows them towards the target, and an MLP.

    An item has `parts` ids. `batch.where[TABLE]` has a sample's fields, the target item, `length` behaviours from the oldest
    on, and as many items that the user did not choose; `batch.features["behaviours"]` is the number of real behaviours.
    Scores have two columns: the logit, and the auxiliary loss, in which each interest separates the next behaviour from the
    item that was not chosen.

    As in the paper, and not in its code, the auxiliary score is the inner product, and the MLP has ReLU.
    """

    auxiliary = 1.0
    """Weight of the auxiliary loss (the paper's alpha)."""

    def __init__(
        self, *, fields: int, dim: int, dense_features: int, hidden: Sequence[int], length: int, parts: int, seed: int
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
    def forward_flops(
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
        final = self.evolution(interests, self._attention_weights(interests, target, real))[:, -1]
        logits = self.deep(torch.cat((profile, target, final, batch.features["dense"]), 1))
        return torch.cat((logits, self._auxiliary(interests, history, others, real).unsqueeze(1)), 1)

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        return super().loss(batch, scores[:, 0]) + self.auxiliary * scores[:, 1].mean()

    def _attention_weights(self, interests: Tensor, target: Tensor, real: Tensor) -> Tensor:
        """Softmax of the interests' products with the target over the real behaviours; zeros without behaviours."""
        scores = (interests @ self.attention(target).unsqueeze(2)).squeeze(2)
        weights = torch.exp(scores - scores.max(1, keepdim=True).values) * real
        return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)

    def _auxiliary(self, interests: Tensor, history: Tensor, others: Tensor, real: Tensor) -> Tensor:
        """The mean over a sample's behaviours but the first."""
        before, here = interests[:, :-1], real[:, 1:]
        chosen = torch.linalg.vecdot(before, history[:, 1:])
        passed = torch.linalg.vecdot(before, others[:, 1:])
        return ((F.softplus(-chosen) + F.softplus(passed)) * here).sum(1) / here.sum(1).clamp(min=1)


_FLOATS, _BLOCK = (types.Array(float32, n, "C", readonly=True) for n in (1, 2))
_PLACES = types.Array(int64, 2, "C", readonly=True)
_NEW_FLOATS, _NEW_BLOCK = float32[::1], float32[:, ::1]


class LightFM(DeepFM):
    """DeepFM with at most one hidden layer and compiled gradients, for studies that need many steps.

    For some dozen samples autograd takes thirty times as long as the arithmetic. So `FlatModel` calls `gradients` on the CPU.
    On other devices, and if columns are pooled, it uses `forward` and autograd, with the same result within float32's rounding.
    """

    def __init__(self, *, hidden: Sequence[int], **shape: Any):
        super().__init__(hidden=hidden, **shape)
        self._width = sum(hidden)
        if not hidden:
            self.deep = _NoNetwork()

    def gradients(
        self, vector: np.ndarray, batch: Batch, rows: Mapping[str, Any]
    ) -> tuple[float, np.ndarray, dict[str, np.ndarray], np.ndarray]:
        """Compute the loss, the gradients of the parameters in `vector` and of the rows, and the scores."""
        places, dense = (np.ascontiguousarray(each) for each in (batch.where[TABLE], batch.features["dense"]))
        block, labels = (np.ascontiguousarray(each) for each in (rows[TABLE], batch.labels))
        loss, gradient, of_rows, scores = _gradients(vector, places, block, dense, labels, self._width)
        return loss, gradient, {TABLE: of_rows}, scores


class _NoNetwork(nn.Module):
    def forward(self, inputs: Tensor) -> float:
        return 0.0


@njit(
    types.Tuple((float64, _NEW_FLOATS, _NEW_BLOCK, _NEW_FLOATS))(_FLOATS, _PLACES, _BLOCK, _BLOCK, _FLOATS, int64),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _gradients(vector, places, rows, dense, labels, width):
    """Forward and backward pass, sample by sample. Inner loops count with uint64 over contiguous memory, for SIMD.

    The vector has the weights of the numbers, the bias, the hidden layer's weights and biases, then the output's.
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
            if hidden[j] <= 0:  # a nan stays, and shows in the loss
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
