"""The dense store: torch.optim on a vector, and nothing shared with the caller."""

import warnings

import numpy as np
import pytest
import torch

from lib.errors import BadOption
from lib.store.dense import DenseStore
from lib.store.optim import SGD, Adagrad, Adam, Momentum

ALL = [SGD(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)]


def vector(seed, n=100):
    return np.random.default_rng(seed).normal(0, 1, n).astype(np.float32)


def stepped(store, seeds):
    for seed in seeds:
        store.apply(vector(seed, len(store)))
    return store


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_what_export_gave_continues_bit_for_bit(optimizer):
    whole = stepped(DenseStore(vector(0), optimizer), range(6))
    for cut in (0, 3):
        saved = stepped(DenseStore(vector(0), optimizer), range(cut)).export()
        resumed = stepped(DenseStore(vector(9), optimizer), [9])
        resumed.load(saved)
        stepped(resumed, range(cut, 6))
        ours, theirs = resumed.export(), whole.export()
        assert sorted(ours) == sorted(theirs) == sorted(["values", *optimizer.initial_dense_state(torch.zeros(1))])
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("optimizer", [*ALL, Adagrad(lr=0.1, initial=0.5), Momentum(lr=0.1)], ids=repr)
def test_a_step_that_is_left_out_leaves_everything_as_it_was(optimizer):
    store, plain = DenseStore(vector(0), optimizer), DenseStore(vector(0), optimizer)
    for taken in (False, True, False, True):
        store.apply(vector(int(taken)), sound=torch.tensor(taken))
        if taken:
            plain.apply(vector(1))
        ours, theirs = store.export(), plain.export()
        ours.pop("step", None), theirs.pop("step", None)  # Adagrad's are counted on the host
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_bits_do_not_depend_on_the_number_of_threads(optimizer):
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(stepped(DenseStore(vector(0, 100_003), optimizer), range(3)).pull())
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_nothing_is_shared_with_the_caller(kind):
    start, grad = kind(vector(0)), kind(vector(1))
    store = DenseStore(start, Adam(lr=0.1))
    start[:] = 5
    store.apply(grad)
    pulled, exported, seen = store.pull(), store.export(), store.pull().copy()
    grad[:], pulled[:] = 5, 5
    for array in exported.values():
        array[...] = 5
    assert np.array_equal(store.pull(), seen)
    store.load(exported)
    for array in exported.values():
        array[...] = 6
    assert store.pull().tolist() == [5] * 100
    assert store.export()["exp_avg"].tolist() == [5] * 100


def test_values_are_live_and_need_no_gradient():
    store = DenseStore(np.zeros(3, np.float32), SGD(lr=1.0))
    live = store.values
    store.apply(np.ones(3, np.float32))
    assert live.tolist() == [-1, -1, -1]
    assert not live.requires_grad
    store.assign(torch.tensor([7.0, 8.0, 9.0]))
    assert live.tolist() == [7, 8, 9]


def test_read_only_gradient_without_a_warning():
    grad = vector(1)
    grad.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = stepped(DenseStore(vector(0), SGD(lr=0.1)), [])
        store.apply(grad)
    assert np.allclose(store.pull(), vector(0) - 0.1 * grad)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_strided_gradient(optimizer, kind):
    strided, dense = DenseStore(vector(0), optimizer), DenseStore(kind(np.repeat(vector(0), 2))[::2], optimizer)
    strided.apply(kind(np.repeat(vector(1), 2))[::2])
    dense.apply(vector(1))
    assert np.array_equal(strided.pull(), dense.pull())


def test_nbytes_counts_values_and_state():
    store = DenseStore(vector(0), Adam(lr=0.1))
    assert store.nbytes == 400
    assert stepped(store, [1]).nbytes == 3 * 400 + 4


def test_bad_arguments_are_named():
    with pytest.raises(BadOption, match="start must be one-dimensional"):
        DenseStore(np.zeros((2, 2), np.float32), SGD(lr=0.1))
    with pytest.raises(BadOption, match="start must be float32, not float64"):
        DenseStore(np.zeros(2), SGD(lr=0.1))
    store = DenseStore(np.zeros(2, np.float32), SGD(lr=0.1))
    with pytest.raises(BadOption, match=r"grad must be of shape \(2,\), not \(3,\)"):
        store.apply(np.zeros(3, np.float32))
    with pytest.raises(BadOption, match="vector must be float32"):
        store.assign(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(BadOption, match="with sgd loads values, no state; got exp_avg, values"):
        store.load({"values": np.zeros(2, np.float32), "exp_avg": np.zeros(2, np.float32)})
    assert store.pull().tolist() == [0, 0]


def test_a_move_keeps_what_was_written_beside_it():
    """Half of the way to 10 from where it was seen; an update that came meanwhile is not undone."""
    store = DenseStore(np.float32([2, 4]), SGD(lr=1.0))
    mine, writes = store.copy_with_version()
    assert store.merge_and_count_others(mine, writes, 0.5 * mine + 5) == 0
    assert store.pull().tolist() == [6, 7]
    mine, writes = store.copy_with_version()
    store.apply(np.float32([1, -1]))
    store.assign(store.pull() + 1)
    assert store.merge_and_count_others(mine, writes, 0.5 * mine + 5) == 2
    assert store.pull().tolist() == [6 - 1 + 1 + 2, 7 + 1 + 1 + 1.5]


def test_a_copy_is_good_until_somebody_writes():
    store = DenseStore(np.zeros(2, np.float32), SGD(lr=1.0))
    before = store.copy_with_version()
    assert store.copy_with_version(before)[0] is before[0]
    store.apply(np.ones(2, np.float32))
    after, writes = store.copy_with_version(before)
    assert after.tolist() == [-1, -1] and before[0].tolist() == [0, 0] and writes == before[1] + 1


def test_who_stands_still_sees_the_vector_itself():
    store = DenseStore(np.zeros(2, np.float32), SGD(lr=1.0))
    live, writes = store.view_with_version()
    store.apply(np.ones(2, np.float32))
    assert live.tolist() == [-1, -1] and store.copy_with_version((live, writes))[0] is not live


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_what_no_gradient_moves_lies_behind_what_the_optimiser_steps(optimizer):
    """As if the store had the others alone; a cut has both."""
    start = vector(0, 5)
    store, alone = DenseStore(start, optimizer, trained=3), DenseStore(start[:3], optimizer)
    for seed in range(3):
        store.apply(vector(seed, 3))
        alone.apply(vector(seed, 3))
    seen = store.copy_with_version()
    store.shift_statistics(np.float32([1, -1]))
    assert store.pull()[:3].tolist() == alone.pull().tolist()
    np.testing.assert_array_equal(store.pull()[3:], start[3:] + np.float32([1, -1]))
    assert store.copy_with_version(seen)[1] == seen[1] + 1
    resumed = DenseStore(vector(9, 5), optimizer, trained=3)
    resumed.load(store.export())
    for each in (store, resumed):
        each.apply(vector(7, 3))
    np.testing.assert_array_equal(resumed.pull(), store.pull())
    with pytest.raises(BadOption):
        store.apply(vector(0, 5))
