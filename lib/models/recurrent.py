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
        learns = torch.is_grad_enabled()  # inside `_Steps` it never is
        return _Steps.apply(self.outer(inputs), attention, self.inner.weight, self.inner.bias, learns)


class _Steps(torch.autograd.Function):
    """All steps of a sequence, in places (length, samples, ...). With r, k, n for a step's reset, keep and new input,

        proposal = tanh(n + r * (the state's part of the new)),  update = attention * (1 - k),
        state' = state + update * (proposal - state),

    where r and k are sigmoids of the input's part and the state's."""

    @staticmethod
    def forward(ctx: Any, outer: Tensor, attention: Tensor, weight: Tensor, bias: Tensor, learns: bool) -> Tensor:
        width = weight.shape[1]
        outer, attention = outer.transpose(0, 1).contiguous(), attention.t().unsqueeze(2)
        length, samples, _ = outer.shape

        def room(parts: int) -> Tensor:
            """Of all steps where gradients will be asked for, else of one after the other in the same place."""
            return outer.new_empty(length if learns else 1, samples, parts * width).expand(length, -1, -1)

        states = outer.new_zeros(length + 1, samples, width)
        inner, gates, proposals, updates = room(3), room(2), room(1), room(1)
        # Every step's part of each, cut beforehand: to cut inside the loop would take as long as the arithmetic.
        outer_gates, new = _by_step(*outer.split((2 * width, width), 2))
        inner_gates, inner_new = _by_step(*inner.split((2 * width, width), 2))
        reset, keep = _by_step(*gates.split(width, 2))
        weighed, whole, gate, proposal, update, state = _by_step(attention, inner, gates, proposals, updates, states)
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
        # Of each state by what went into it, before the tanh and the sigmoids.
        by_new = updates * (1 - proposals.square())
        by_reset = by_new * inner[..., 2 * width :] * reset * (1 - reset)
        by_keep = (before - proposals) * attention * keep * (1 - keep)
        by_inner = torch.stack((by_reset, by_keep, by_new * reset), 2)
        # Back through the steps: what reaches a state directly, and by way of the one after it.
        whole, of_inner = torch.empty_like(proposals), torch.empty_like(by_inner)
        reached = proposals.new_zeros(samples, width)
        own, stays, slope, total = _by_step(gradient.transpose(0, 1), 1 - updates, by_inner, whole)
        parts, flat = _by_step(of_inner, of_inner.flatten(2))
        for step in reversed(range(length)):
            torch.add(own[step], reached, out=total[step])
            torch.mul(slope[step], total[step].unsqueeze(1), out=parts[step])
            reached = torch.addmm(total[step] * stays[step], flat[step], weight)
        of_outer = torch.cat((of_inner[:, :, 0], of_inner[:, :, 1], whole * by_new), 2)
        of_attention = (whole * (proposals - before) * (1 - keep)).sum(2).t() if ctx.needs_input_grad[1] else None
        each = of_inner.view(length * samples, 3 * width)
        of_weight, of_bias = each.t() @ before.reshape(length * samples, width), each.sum(0)
        return of_outer.transpose(0, 1), of_attention, of_weight, of_bias, None


def _by_step(*parts: Tensor) -> list[tuple[Tensor, ...]]:
    return [part.unbind() for part in parts]
