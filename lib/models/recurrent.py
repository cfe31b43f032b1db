"""A gated recurrent unit whose steps autograd does not see one by one.

Of samples as few as a worker's, a step's dozen operations take less time than autograd's notes about them: with gradients
written by hand and taken over all steps at once where they can be, a unit of 20 steps is twice as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lib.models.layers import Linear


class Recurrent(nn.Module):
    """A gated recurrent unit (Cho et al., 2014) with torch.nn.GRU's equations; with attention it is DIEN's AUGRU.

    The attention scales the update gate: a behaviour that has nothing to do with the target leaves the state alone, and so
    does a place past the end of a sequence, whose attention is 0.
    """

    def __init__(self, inputs: int, width: int, stream: torch.Generator):
        super().__init__()
        self.outer = Linear(inputs, 3 * width, stream)
        self.inner = Linear(width, 3 * width, stream)

    def forward(self, inputs: Tensor, attention: Tensor) -> Tensor:
        """States (samples, length, width) of inputs (samples, length, inputs), each step weighted by its attention."""
        return _Steps.apply(self.outer(inputs), attention, self.inner.weight, self.inner.bias)


class _Steps(torch.autograd.Function):
    """All steps of a sequence, in places (length, samples, ...). With r, k, n for a step's reset, keep and new input,

        proposal = tanh(n + r * (the state's part of the new)),  update = attention * (1 - k),
        state' = state + update * (proposal - state),

    where r and k are sigmoids of the input's part and the state's."""

    @staticmethod
    def forward(ctx: Any, outer: Tensor, attention: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        width = weight.shape[1]
        outer, attention = outer.transpose(0, 1).contiguous(), attention.t().unsqueeze(2)
        length, samples, _ = outer.shape
        states = outer.new_zeros(length + 1, samples, width)
        inner, gates = outer.new_empty(length, samples, 3 * width), outer.new_empty(length, samples, 2 * width)
        proposals, updates = (outer.new_empty(length, samples, width) for _ in range(2))
        steps = zip(
            *(part.unbind() for part in outer.split((2 * width, width), 2)),
            attention.unbind(),
            inner.unbind(),
            *(part.unbind() for part in inner.split((2 * width, width), 2)),
            gates.unbind(),
            *(part.unbind() for part in gates.split(width, 2)),
            proposals.unbind(),
            updates.unbind(),
            states[:-1].unbind(),
            states[1:].unbind(),
            strict=True,
        )
        for (
            outer_gates,
            new,
            weighed,
            both,
            inner_gates,
            inner_new,
            gate,
            reset,
            keep,
            proposal,
            update,
            state,
            after,
        ) in steps:
            torch.addmm(bias, state, weight.t(), out=both)
            torch.add(outer_gates, inner_gates, out=gate).sigmoid_()
            torch.addcmul(new, reset, inner_new, out=proposal).tanh_()
            torch.addcmul(weighed, weighed, keep, value=-1, out=update)
            torch.lerp(state, proposal, update, out=after)
        ctx.save_for_backward(attention, weight, states, inner, gates, proposals, updates)
        return states[1:].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        attention, weight, states, inner, gates, proposals, updates = ctx.saved_tensors
        length, samples, width = proposals.shape
        before, (reset, keep) = states[:-1], gates.split(width, 2)
        # Of each state by what went into it, before the tanh and the sigmoids.
        by_new = updates * (1 - proposals.square())
        by_reset = by_new * inner[..., 2 * width :] * reset * (1 - reset)
        by_keep = (before - proposals) * attention * keep * (1 - keep)
        by_inner = torch.stack((by_reset, by_keep, by_new * reset), 2)
        # Back through the steps: what reaches a state directly, and by way of the one after it.
        whole, of_inner = torch.empty_like(proposals), torch.empty_like(by_inner)
        reached = proposals.new_zeros(samples, width)
        steps = zip(
            gradient.transpose(0, 1).unbind(),
            (1 - updates).unbind(),
            by_inner.unbind(),
            whole.unbind(),
            of_inner.unbind(),
            of_inner.flatten(2).unbind(),
            strict=True,
        )
        for own, stays, slope, total, parts, flat in reversed(list(steps)):
            torch.add(own, reached, out=total)
            torch.mul(slope, total.unsqueeze(1), out=parts)
            reached = torch.addmm(total * stays, flat, weight)
        of_outer = torch.cat((of_inner[:, :, 0], of_inner[:, :, 1], whole * by_new), 2)
        of_attention = (whole * (proposals - before) * (1 - keep)).sum(2).t() if ctx.needs_input_grad[1] else None
        flat = of_inner.view(length * samples, 3 * width)
        of_weight, of_bias = flat.t() @ before.reshape(length * samples, width), flat.sum(0)
        return of_outer.transpose(0, 1), of_attention, of_weight, of_bias
