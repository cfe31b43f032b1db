"""Every optimiser is torch.optim's, on a dense vector, on a block of rows and on a table's slots."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import lib
from lib.errors import BadOption
from lib.store.optim import SGD, Adagrad, Adam, Momentum

DIM = 5
ALL = [
    SGD(lr=0.1),
    Adagrad(lr=0.1),
    Adagrad(lr=0.05, eps=1e-3, initial=0.2),
    Momentum(lr=0.1),
    Momentum(lr=0.05, momentum=0.5, nesterov=True),
    Adam(lr=0.01),
    Adam(lr=0.1, beta1=0.5, beta2=0.9, eps=1e-3),
    Adam(lr=0.1, beta1=0.0, beta2=0.0),
    Adam(lr=0.01, weight_decay=0.3),
    Adagrad(lr=0.1, weight_decay=0.3),
    Momentum(lr=0.1, weight_decay=0.3),
    SGD(lr=0.1, weight_decay=0.3),
]


def plain_torch(optimizer, parameters):
    """The textbook call, not the variant that the store uses."""
    options = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if isinstance(optimizer, Adagrad):
        start = optimizer.initial
        return torch.optim.Adagrad(parameters, eps=optimizer.eps, initial_accumulator_value=start, **options)
    if isinstance(optimizer, Adam):
        betas = optimizer.beta1, optimizer.beta2
        return torch.optim.Adam(parameters, betas=betas, eps=optimizer.eps, **options)
    if isinstance(optimizer, Momentum):
        options |= {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}
    return torch.optim.SGD(parameters, **options)


def irregular_steps(n, steps, seed=0):
    """(distinct rows, their gradients); some rows often, some hardly ever."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.permutation(n)[rng.random(n) < np.linspace(0.02, 1, n)]
        yield rows.astype(np.int64), rng.normal(0, 1, (rows.size, DIM)).astype(np.float32)


def by_torch(optimizer, start):
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


ROWS_ONLY = [
    Adagrad(lr=0.1, rowwise=True),
    Adagrad(lr=0.1, rowwise=True, after=True, initial=0.3),
    Adagrad(lr=0.05, after=True, initial=0.1, eps=1e-3),
    SGD(lr=0.5, weight_bound=0.7),
    Adam(lr=0.3, weight_bound=0.9),
    *(Adagrad(lr=0.3, rowwise=rowwise, copies=8, eps=1e-2) for rowwise in (True, False)),  # the sum over copies
]


def by_hand(optimizer, start):
    """What torch.optim does not have, row by row in float64."""
    values, state = start.astype(np.float64), optimizer.initial_row_state(*start.shape).astype(np.float64)
    for touched, grads in irregular_steps(len(start), 60):
        for row, grad in zip(touched, grads.astype(np.float64), strict=True):
            if isinstance(optimizer, SGD):
                values[row] -= optimizer.lr * grad
            elif isinstance(optimizer, Adagrad):
                before = state[row].copy()
                state[row] += (grad * grad).mean() if optimizer.rowwise else grad * grad
                root = np.sqrt((before if optimizer.after else state[row]) / (optimizer.copies or 1))
                values[row] -= optimizer.lr * grad / (root + optimizer.eps)
            else:
                m, v = state[row, :DIM], state[row, DIM : 2 * DIM]
                state[row, -1] += 1
                m += (1 - optimizer.beta1) * (grad - m)
                v += (1 - optimizer.beta2) * (grad * grad - v)
                m_hat, v_hat = m / (1 - optimizer.beta1 ** state[row, -1]), v / (1 - optimizer.beta2 ** state[row, -1])
                values[row] -= optimizer.lr * m_hat / (np.sqrt(v_hat) + optimizer.eps)
            if optimizer.weight_bound:
                values[row] = values[row].clip(-optimizer.weight_bound, optimizer.weight_bound)
    return values


@pytest.mark.parametrize("optimizer", [*ALL, *ROWS_ONLY], ids=repr)
def test_slots_and_blocks_equal_a_reference_row_by_row(optimizer):
    start = starting_rows()
    rows = np.hstack([start, optimizer.initial_row_state(len(start), DIM)])
    values, state = torch.tensor(start), torch.tensor(optimizer.initial_row_state(len(start), DIM))
    for touched, grads in irregular_steps(len(start), 60):
        optimizer.update_slots(rows, touched, grads)
        block, block_state = values[touched], state[touched]
        optimizer.update(block, block_state, torch.tensor(grads))
        values[touched], state[touched] = block, block_state
    reference, tolerance = (by_hand, 1e-5) if optimizer in ROWS_ONLY else (by_torch, 1e-6)
    expected = reference(optimizer, start)
    for found in (rows[:, :DIM], values.numpy()):
        assert np.allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", ROWS_ONLY, ids=repr)
def test_options_for_rows_are_refused_for_dense_parameters(optimizer):
    words = r"is for rows: torch\.optim has no such option"
    with pytest.raises(BadOption, match=words):
        optimizer.check_dense()
    with pytest.raises(BadOption, match=words):
        lib.train("quadratic", "sync", "virtual", workers=1, dense_optimizer=optimizer, save=False)


@pytest.mark.parametrize("dim", [1, 3, 4, 15, 16, 17, 20, 36, 64])
@pytest.mark.parametrize("optimizer", [*ALL[:5], *ROWS_ONLY[:1], Adam(lr=0.1)], ids=repr)
def test_every_width_sees_the_same_step(optimizer, dim):
    """Whole vectors and what is left over, and rows that are followed by something else."""
    rng = np.random.default_rng(dim)
    start, grads = (rng.normal(0, 1, (40, dim)).astype(np.float32) for _ in range(2))
    slots = rng.permutation(40)[:30]
    rows = np.hstack([start, optimizer.initial_row_state(40, dim), np.full((40, 3), np.pi, np.float32)])
    before = rows.copy()
    values, state = torch.tensor(start[slots]), torch.tensor(optimizer.initial_row_state(30, dim))
    for _ in range(3):
        optimizer.update_slots(rows, slots, grads[:30])
        optimizer.update(values, state, torch.tensor(grads[:30]))
    assert np.allclose(rows[slots, :dim], values.numpy(), rtol=2e-6, atol=2e-6)
    assert np.allclose(rows[slots, dim:-3], state.numpy(), rtol=2e-6, atol=2e-6)
    rows[slots, :-3] = before[slots, :-3]
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("optimizer", [*ALL, *ROWS_ONLY], ids=repr)
def test_a_mark_stamps_the_rows_and_the_order_of_slots_is_no_matter(optimizer):
    rng, columns = np.random.default_rng(0), optimizer.columns(DIM)
    start = np.hstack([starting_rows(), optimizer.initial_row_state(12, DIM), np.zeros((12, 2), np.float32)])
    slots, grads = rng.permutation(12)[:7], rng.normal(0, 1, (7, DIM)).astype(np.float32)
    plain, sorted_ = start.copy(), start.copy()
    optimizer.update_slots(plain, slots, grads)
    order = np.argsort(slots)
    optimizer.update_slots(sorted_, slots[order], grads[order], (DIM + columns, 9))
    assert np.array_equal(plain[:, :-2], sorted_[:, :-2])
    stamps = sorted_.view(np.uint32)[:, -2:].tolist()
    assert stamps == [[9 * (slot in slots), 0] for slot in range(12)]


def test_a_bound_leaves_what_is_no_number():
    rows = np.float32([[math.nan, math.inf, -math.inf, 0.5, -3]])
    SGD(lr=1.0, weight_bound=1.0).update_slots(rows, np.array([0]), np.zeros((1, 5), np.float32))
    assert np.array_equal(rows, np.float32([[math.nan, 1, -1, 0.5, -1]]), equal_nan=True)


@pytest.mark.parametrize("rate", [1.0, 0.25])
@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_dense_variant_equals_torch(optimizer, rate):
    ours, theirs = (torch.tensor(starting_rows().ravel()) for _ in range(2))
    state = optimizer.initial_dense_state(ours)
    stepper = plain_torch(optimizer.scale_lr(rate), [theirs.requires_grad_()])
    rng = np.random.default_rng(2)
    for _ in range(60):
        theirs.grad = torch.tensor(rng.normal(0, 1, len(ours)).astype(np.float32))
        optimizer.step(ours, state, theirs.grad, rate)
        stepper.step()
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    kept = {name: tensor for name, tensor in stepper.state[theirs].items() if tensor is not None}
    assert sorted(state) == sorted(kept)
    assert all(torch.allclose(state[name], kept[name], rtol=1e-5, atol=1e-6) for name in state)


def test_a_process_that_trains_does_not_wait_for_torchs_compiler():
    """torch.optim's classes import it at their first step."""
    script = """
import sys
import lib
lib.train("ctr-synthetic", "sync", "virtual", samples=200, batch_size=50, save=False)
assert "torch" in sys.modules and "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.parametrize(
    ("optimizer", "field", "value"),
    [
        *((kind, "lr", value) for kind in (SGD, Momentum, Adagrad, Adam) for value in (0, math.nan, "0.1", None)),
        (SGD, "weight_bound", 0),
        (Momentum, "momentum", 1),
        (Adagrad, "eps", -1),
        (Adagrad, "initial", math.inf),
        (Adam, "beta1", 1),
        (Adam, "beta2", -0.1),
        (Adam, "eps", "x"),
    ],
)
def test_a_bad_field_is_named(optimizer, field, value):
    with pytest.raises(BadOption, match=f"{optimizer.__name__}: {field} must be "):
        optimizer(**{"lr": 0.1, field: value})
