"""The recurrent unit: torch's cell, step by step, and gradients that are written by hand."""

import pytest
import torch

from lib.tasks.click_models import Recurrent
from lib.tasks.layers import generator


def unit(inputs=3, width=4):
    return Recurrent(inputs, width, generator(0)).double()


def step_by_step(layer, inputs, attention):
    """The equations, one step after another."""
    state, states = inputs.new_zeros(len(inputs), layer.inner.weight.shape[1]), []
    for t in range(inputs.shape[1]):
        outer, inner = layer.outer(inputs[:, t]).chunk(3, 1), layer.inner(state).chunk(3, 1)
        reset, keep = (torch.sigmoid(outer[place] + inner[place]) for place in (0, 1))
        proposal = torch.tanh(outer[2] + reset * inner[2])
        weight = attention[:, t : t + 1]
        state = (1 - weight * (1 - keep)) * state + weight * (1 - keep) * proposal
        states.append(state)
    return torch.stack(states, 1)


def drawn(samples, length, inputs=3):
    stream = torch.Generator().manual_seed(samples + 10 * length)
    x = torch.randn(samples, length, inputs, dtype=torch.double, generator=stream)
    return x.requires_grad_(), torch.rand(samples, length, dtype=torch.double, generator=stream).requires_grad_()


def test_with_full_attention_it_is_torchs_gru():
    ours, theirs = unit(), torch.nn.GRU(3, 4, batch_first=True).double()
    theirs.weight_ih_l0.data, theirs.bias_ih_l0.data = ours.outer.weight.data, ours.outer.bias.data
    theirs.weight_hh_l0.data, theirs.bias_hh_l0.data = ours.inner.weight.data, ours.inner.bias.data
    inputs, _ = drawn(2, 5)
    torch.testing.assert_close(ours(inputs, torch.ones(2, 5).double()), theirs(inputs)[0])


@pytest.mark.parametrize(("samples", "length"), [(1, 1), (2, 1), (1, 6), (5, 4)])
def test_states_and_every_gradient_are_those_of_the_equations(samples, length):
    """Also where each state is asked for with a weight of its own, and not the last alone."""
    layer, (inputs, attention) = unit(), drawn(samples, length)
    leaves = [inputs, attention, *layer.parameters()]
    asked = torch.randn(samples, length, 4, dtype=torch.double, generator=torch.Generator().manual_seed(3))
    found = []
    for states in (layer(inputs, attention), step_by_step(layer, inputs, attention)):
        found.append((states, *torch.autograd.grad((states * asked).sum(), leaves)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_numbers_agree_with_the_gradients():
    layer, (inputs, attention) = unit(2, 3), drawn(2, 3, 2)
    assert torch.autograd.gradcheck(lambda x, a, *_: layer(x, a), (inputs, attention, *layer.parameters()))


def test_without_gradients_the_states_are_the_same_bits():
    layer, (inputs, attention) = unit(), drawn(3, 4)
    with torch.inference_mode():
        seen = layer(inputs, attention)
    assert torch.equal(seen, layer(inputs, attention))


def test_an_attention_that_is_given_takes_no_gradient():
    layer, (inputs, attention) = unit(), drawn(3, 4)
    given = layer(inputs, attention.detach())
    wanted = torch.autograd.grad(layer(inputs, attention)[:, -1].sum(), inputs)[0]
    torch.testing.assert_close(torch.autograd.grad(given[:, -1].sum(), inputs)[0], wanted)


def test_no_attention_leaves_the_state_alone():
    layer, inputs = unit(), drawn(1, 4)[0]
    states = layer(inputs, torch.tensor([[1.0, 0, 0, 1]]).double())
    assert torch.equal(states[0, 0], states[0, 2]) and not torch.equal(states[0, 2], states[0, 3])
