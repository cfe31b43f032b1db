"""The click models against plain loops, gradients, and the recurrent unit against its equations and torch's cell."""

import numpy as np
import pytest
import torch

from lib.tasks.click_models import DLRM, FFNN, TABLE, DeepFM, Recurrent
from lib.tasks.flat_model import Batch
from lib.tasks.layers import generator
from tests.tasks.gradients import check_gradients

SHAPE = {"fields": 3, "dim": 2, "dense_features": 2, "hidden": (4,)}


def batch_of(ids, dense, labels=None):
    labels = np.zeros(len(ids), np.float32) if labels is None else np.asarray(labels, np.float32)
    features = {"dense": np.asarray(dense, np.float32)}
    raw = {TABLE: np.asarray(ids)}
    return Batch.of(index=0, size=len(ids), raw=raw, features=features, labels=labels).to(torch.device("cpu"))


@pytest.fixture
def batch():
    return batch_of([[1, 2, 3], [1, 5, 3], [2, 2, 2]], np.random.default_rng(0).normal(size=(3, 2)), [1, 0, 1])


def plain_deepfm(model, vectors, first, dense):
    """The textbook's loops over samples and pairs."""
    scores = []
    for v, w, x in zip(vectors, first, dense, strict=True):
        score = w.sum() + model.linear(x) + model.deep(torch.cat((v.flatten(), x)))
        for a in range(len(v)):
            for b in range(a):
                score = score + v[a] @ v[b]
        scores.append(score)
    return torch.cat(scores)


def plain_dlrm(model, vectors, dense):
    scores = []
    for v, x in zip(vectors, dense, strict=True):
        bottom = model.bottom(x)
        everything = [bottom, *v]
        dots = [everything[a] @ everything[b] for a in range(len(everything)) for b in range(a)]
        scores.append(model.top(torch.cat((bottom, torch.stack(dots)))))
    return torch.cat(scores)


@pytest.mark.parametrize("kind", [DeepFM, DLRM])
def test_equals_the_plain_reference(kind, batch):
    model = kind(**SHAPE, seed=0)
    rows = torch.randn(len(batch.ids[TABLE]), kind.width(2))
    block = rows[batch.where[TABLE]]
    dense = batch.features["dense"]
    expected = (
        plain_deepfm(model, block[..., :2], block[..., 2], dense) if kind is DeepFM else plain_dlrm(model, block, dense)
    )
    scores = model(batch, {TABLE: rows})
    assert scores.shape == (3,)
    torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize("kind", [DeepFM, DLRM, FFNN])
def test_gradients(kind, batch):
    """Without hidden layers there is no kink at which to fail."""
    check_gradients(kind(**SHAPE | {"hidden": ()}, seed=0), batch, kind.width(2))


@pytest.mark.parametrize("kind", [DeepFM, DLRM, FFNN])
def test_needs_no_dense_inputs(kind):
    model = kind(**SHAPE | {"dense_features": 0}, seed=0)
    scores = model(batch_of([[1, 2, 3]], np.empty((1, 0))), {TABLE: torch.randn(3, kind.width(2))})
    assert scores.shape == (1,)


def test_loss_is_the_mean_cross_entropy(batch):
    model = DeepFM(**SHAPE, seed=0)
    assert model.loss(batch, torch.zeros(3)).item() == pytest.approx(np.log(2))


def test_flops_count_the_mlp():
    assert DeepFM.forward_flops(**SHAPE) == 2 * (8 * 4 + 4) + 4 * 3 * 3 + 2 * 2
    assert DLRM.forward_flops(**SHAPE) == 2 * (8 * 4 + 4) + 2 * 2 * (16 + 2)
    assert FFNN.forward_flops(**SHAPE) == 2 * (8 * 4 + 4) + 8 * 4


def test_ffnn_equals_torch_with_its_own_batch_norm(batch):
    model = FFNN(**SHAPE | {"hidden": (4, 3)}, seed=0)
    rows = torch.randn(len(batch.ids[TABLE]), 2)
    plain = torch.cat((rows[batch.where[TABLE]].flatten(1), batch.features["dense"]), 1)
    for place in (0, 3):
        linear = model.deep[place]
        norm = torch.nn.BatchNorm1d(len(linear.weight))
        plain = torch.relu(norm(torch.nn.functional.linear(plain, linear.weight, linear.bias)))
    last = model.deep[-1]
    torch.testing.assert_close(model(batch, {TABLE: rows}), (plain @ last.weight.T + last.bias).squeeze(1))


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
