"""Every optimiser is torch.optim's, on a dense vector, on a block of rows and on a table's slots."""

import math

import numpy as np
import pytest
import torch

from lib.errors import BadOption
from lib.store.optim import SGD, Adagrad, Adam

DIM = 5
ALL = [
    SGD(lr=0.1),
    Adagrad(lr=0.1),
    Adagrad(lr=0.05, eps=1e-3, initial=0.2),
    Adam(lr=0.01),
    Adam(lr=0.1, beta1=0.5, beta2=0.9, eps=1e-3),
    Adam(lr=0.1, beta1=0.0, beta2=0.0),
]


def plain_torch(optimizer, parameters):
    """The textbook call, not the variant that the store uses."""
    if isinstance(optimizer, SGD):
        return torch.optim.SGD(parameters, lr=optimizer.lr)
    if isinstance(optimizer, Adagrad):
        options = {"eps": optimizer.eps, "initial_accumulator_value": optimizer.initial}
        return torch.optim.Adagrad(parameters, lr=optimizer.lr, **options)
    return torch.optim.Adam(parameters, lr=optimizer.lr, betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.eps)


def irregular_steps(n, steps, seed=0):
    """(distinct rows, their gradients); some rows often, some hardly ever."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.permutation(n)[rng.random(n) < np.linspace(0.02, 1, n)]
        yield rows.astype(np.int64), rng.normal(0, 1, (rows.size, DIM)).astype(np.float32)


def reference(optimizer, start):
    """Each row as a parameter of its own under torch.optim, stepped only when it gets a gradient."""
    rows = [torch.nn.Parameter(torch.tensor(row)) for row in start]
    optimizers = [plain_torch(optimizer, [row]) for row in rows]
    for touched, grads in irregular_steps(len(start), 60):
        for row, grad in zip(touched, grads, strict=True):
            rows[row].grad = torch.tensor(grad)
            optimizers[row].step()
    return torch.stack([row.detach() for row in rows]).numpy()


def starting_rows(n=12):
    return np.random.default_rng(1).normal(0, 1, (n, DIM)).astype(np.float32)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_slots_equal_torch_row_by_row(optimizer):
    start = starting_rows()
    rows = np.hstack([start, optimizer.first_state(len(start), DIM)])
    for touched, grads in irregular_steps(len(start), 60):
        optimizer.update_slots(rows, touched, grads)
    assert np.allclose(rows[:, :DIM], reference(optimizer, start), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_blocks_equal_torch_row_by_row(optimizer):
    start = starting_rows()
    values, state = torch.tensor(start), torch.tensor(optimizer.first_state(len(start), DIM))
    for touched, grads in irregular_steps(len(start), 60):
        block, block_state = values[touched], state[touched]
        optimizer.update(block, block_state, torch.tensor(grads))
        values[touched], state[touched] = block, block_state
    assert np.allclose(values.numpy(), reference(optimizer, start), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_dense_variant_equals_torch(optimizer):
    start = torch.tensor(starting_rows().ravel())
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    steppers = optimizer.torch(parameter for parameter in [ours]), plain_torch(optimizer, [theirs])
    rng = np.random.default_rng(2)
    for _ in range(60):
        ours.grad = theirs.grad = torch.tensor(rng.normal(0, 1, len(start)).astype(np.float32))
        for stepper in steppers:
            stepper.step()
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert sorted(steppers[0].state[ours]) == sorted(optimizer.dense_state)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_state_has_the_declared_shape(optimizer):
    state = optimizer.first_state(3, DIM)
    assert (state.shape, state.dtype) == ((3, optimizer.columns(DIM)), np.float32)


def test_one_step_by_hand():
    def step(optimizer, grad):
        row = np.hstack([np.float32([[1.0]]), optimizer.first_state(1, 1)])
        optimizer.update_slots(row, np.array([0]), np.float32([[grad]]))
        return row[0]

    assert step(SGD(lr=0.25), 2) == pytest.approx([0.5])
    assert step(Adagrad(lr=0.25, initial=5), 2) == pytest.approx([1 - 0.25 * 2 / 3, 9])
    # the first step of Adam is the learning rate, whatever the gradient
    assert step(Adam(lr=0.25), 2) == pytest.approx([0.75, 0.2, 0.004, 1])


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "0.1", None, True])
@pytest.mark.parametrize("optimizer", [SGD, Adagrad, Adam])
def test_bad_rate_is_named(optimizer, value):
    with pytest.raises(BadOption, match=rf"{optimizer.__name__}\.lr must be .* above 0"):
        optimizer(lr=value)


@pytest.mark.parametrize(
    ("optimizer", "field", "value"),
    [
        (Adagrad, "eps", -1),
        (Adagrad, "initial", math.inf),
        (Adam, "beta1", 1),
        (Adam, "beta2", -0.1),
        (Adam, "eps", "x"),
    ],
)
def test_other_bad_fields_are_named(optimizer, field, value):
    with pytest.raises(BadOption, match=rf"{optimizer.__name__}\.{field} must be"):
        optimizer(lr=0.1, **{field: value})
