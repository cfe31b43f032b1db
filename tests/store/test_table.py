"""The table: numbers by hand, torch.nn.Embedding's training, growth, threads, and what it refuses."""

import numpy as np
import pytest
import torch

from lib.errors import BadOption
from lib.store import kernels
from lib.store.optim import SGD, Adagrad, Adam, Momentum
from lib.store.rows import Rows
from lib.store.table import Table

ALL = [SGD(lr=0.1), Adagrad(lr=0.1), Momentum(lr=0.1), Adagrad(lr=0.1, rowwise=True), Adam(lr=0.1)]
LOW, HIGH = -(2**63), 2**63 - 1


def ints(*values):
    return np.array(values, np.int64)


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("ids", "values", "state", "stamps"))


def filled(optimizer, seed=0, steps=5):
    table, rng = Table(3, optimizer, seed=seed, capacity=1), np.random.default_rng(seed)
    for stamp in range(steps):
        ids = rng.integers(-20, 20, 15)
        table.push(ids, rng.normal(0, 1, (15, 3)).astype(np.float32), stamp)
    return table


def test_push_by_hand():
    table = Table(2, SGD(lr=0.5), seed=0, scale=0)
    table.push([7, LOW, 7], np.float32([[1, 2], [4, 6], [10, 20]]), 3)
    assert table.pull([LOW, 7, 7]).tolist() == [[-2, -3], [-5.5, -11], [-5.5, -11]]
    assert table.stamps([7, LOW, 8]).tolist() == [3, 3, -1]
    assert len(table) == 2


def test_duplicates_are_one_step_with_the_summed_gradient():
    table = Table(1, Adagrad(lr=1.0, eps=0), seed=0, scale=0)
    table.push([5, 5], np.float32([[1], [2]]), 0)
    rows = table.read([5])
    assert (rows.values.item(), rows.state.item()) == (-1, 9)
    table = Table(1, Adam(lr=1.0), seed=0, scale=0)
    table.push([5, 5], np.float32([[1], [2]]), 0)
    assert table.read([5]).state[0] == pytest.approx([0.3, 0.009, 1])


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_duplicates_equal_their_sum_pushed_once(optimizer):
    rng = np.random.default_rng(0)
    doubled, once = (Table(4, optimizer, seed=1, capacity=2) for _ in range(2))
    for stamp in range(20):
        ids, grads = rng.integers(0, 9, 12), rng.normal(0, 1, (12, 4)).astype(np.float32)
        doubled.push(ids, grads, stamp)
        distinct, positions = kernels.unique(ids)
        once.push(distinct, kernels.sum_count(positions, grads, np.ones(12, np.float32), distinct.size)[0], stamp)
    assert same(doubled.export(), once.export())


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_who_says_that_no_id_stands_twice_gets_the_same_bits(optimizer):
    rng = np.random.default_rng(0)
    told, asked = (Table(4, optimizer, seed=1) for _ in range(2))
    for stamp in range(20):
        ids, grads = rng.permutation(30)[:12], rng.normal(0, 1, (12, 4)).astype(np.float32)
        told.push(ids, grads, stamp, distinct=True)
        asked.push(ids, grads, stamp)
    assert same(told.export(), asked.export())


@pytest.mark.parametrize("optimizer", ALL)
def test_a_weighted_update_is_a_push_of_the_weighted_sums(optimizer):
    """Ids of 3 gradients: 7 and 8 have two each of which 8's are void, 9 is new to the table and 10 new and void."""
    ids, grads = np.array([7, 8, 9, 7, 10, 8]), np.arange(24, dtype=np.float32).reshape(6, 4)
    weights = np.array([1, 0, 1, 0.5, 0, 0], np.float32)
    tables = [Table(4, optimizer, seed=1) for _ in range(4)]
    for table in tables:
        table.push(np.array([7, 8]), np.ones((2, 4), np.float32), 5)
    assert tables[0].push_weighted(ids, grads, 6, weights=weights, divisor=3) == 4
    sums = np.stack([grads[0] + np.float32(0.5) * grads[3], grads[2]])
    tables[1].push(np.array([7, 9]), sums / np.float32(3), 6)
    assert same(tables[0].export(), tables[1].export())

    assert tables[2].stamps(ids).tolist() == [5, 5, -1, 5, -1, 5]
    assert tables[2].push_weighted(ids, grads, 6, weights=weights) == 4
    tables[3].push(np.array([7, 9]), sums / np.array([[2], [1]], np.float32), 6)
    assert same(tables[2].export(), tables[3].export())


def test_an_update_may_have_a_rate_of_its_own():
    half, plain = Table(4, ALL[1], seed=1), Table(4, Adagrad(lr=0.05), seed=1)
    ids, grads, ones = np.array([3, 4]), np.ones((2, 4), np.float32), np.ones(2, np.float32)
    half.push_weighted(ids, grads, 1, weights=ones, rate=0.5)
    plain.push(ids, grads, 1)
    assert same(half.export(), plain.export())


@pytest.mark.parametrize(("optimizer", "theirs"), [(ALL[0], torch.optim.SGD), (ALL[1], torch.optim.Adagrad)])
def test_training_equals_torch_embedding(optimizer, theirs):
    rng, ids = np.random.default_rng(0), np.random.default_rng(1).integers(LOW, HIGH, 30)
    table = Table(4, optimizer, seed=1, scale=1.0)
    embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(table.pull(ids)), freeze=False)
    stepper = theirs(embedding.parameters(), lr=0.1)
    for stamp in range(40):
        where, target = rng.integers(0, 30, 50), torch.from_numpy(rng.normal(0, 1, (50, 4)).astype(np.float32))
        stepper.zero_grad()
        ((embedding(torch.from_numpy(where)) - target) ** 2).sum().backward()
        stepper.step()
        looked_up = torch.from_numpy(table.pull(ids[where])).requires_grad_()
        ((looked_up - target) ** 2).sum().backward()
        table.push(ids[where], looked_up.grad.numpy(), stamp)
    assert np.allclose(table.peek(ids), embedding.weight.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_growth_over_many_doublings_loses_nothing(optimizer):
    rng = np.random.default_rng(0)
    ids = np.unique(rng.integers(LOW, HIGH, 5000))
    grads = rng.normal(0, 1, (ids.size, 2)).astype(np.float32)
    small, large = (Table(2, optimizer, seed=0, capacity=capacity) for capacity in (1, 10_000))
    large.push(ids, grads, 1)
    start = 0
    for size in [1, 1, 3, 7, 50, 300, 1000, 5000]:
        small.push(ids[start : start + size], grads[start : start + size], 1)
        start += size
    assert same(small.export(), large.export())
    assert len(small) == ids.size
    assert small.nbytes < 3 * large.nbytes


def test_write_keeps_the_newer_row():
    table = Table(1, Adagrad(lr=1.0), seed=0, scale=0)
    table.push([1, 2, 3], np.float32([[1], [1], [1]]), 5)
    rows = Rows(
        ints(1, 2, 3, 4), np.float32([[10], [20], [30], [40]]), np.float32([[1], [2], [3], [4]]), ints(4, 5, 6, -1)
    )
    table.write(rows)
    assert table.pull([1, 2, 3, 4]).ravel().tolist() == [-1, -1, 30, 40]
    assert table.stamps([1, 2, 3, 4]).tolist() == [5, 5, 6, -1]
    table.write(rows, newer=False)
    assert same(table.export(), rows)


def test_write_of_one_id_twice_keeps_the_newest_or_the_last():
    rows = Rows(ints(9, 9, 9), np.float32([[1], [2], [3]]), np.empty((3, 0), np.float32), ints(3, 7, 5))
    table = Table(1, SGD(lr=1.0), seed=0)
    table.write(rows)
    assert (table.pull([9]).item(), table.stamps([9]).item()) == (2, 7)
    table.write(rows, newer=False)
    assert (table.pull([9]).item(), table.stamps([9]).item()) == (3, 5)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_loaded_content_continues_bit_for_bit(optimizer):
    original, copy = filled(optimizer), filled(optimizer, steps=2)
    copy.load(original.export())
    assert same(copy.export(), original.export())
    ids, grads = np.arange(-30, 30), np.ones((60, 3), np.float32)
    for table in (original, copy):
        table.push(ids, grads, 9)
    assert same(copy.export(), original.export())


def test_the_order_of_accesses_goes_on_after_a_cut():
    before, after = (Table(2, SGD(lr=0.1), seed=0) for _ in range(2))
    orders = np.full((3, 2), -1)
    written = before.read(ints(1, 2), order_out=orders[0])
    before.write(written, newer=False, order_out=orders[1])
    after.restore(before.dump())
    after.read(ints(1, 2), order_out=orders[2])
    assert (np.diff(orders, axis=0) > 0).all() and (orders[0] >= 0).all()


def test_what_goes_in_and_out_is_copied():
    table, ids, grads = Table(2, SGD(lr=1.0), seed=0), ints(1, 2), np.ones((2, 2), np.float32)
    table.push(ids, grads, 0)
    before = table.export()
    rows = table.read(ids)
    for array in (table.pull(ids), rows.values, rows.ids, rows.stamps, ids, grads):
        array[:] = 99
    assert same(table.export(), before)
    assert before.nbytes == 2 * (8 + 8 + 8)


def test_read_only_input_compiles_nothing():
    ids, grads = ints(1, 2, 1), np.ones((3, 2), np.float32)
    table = Table(2, SGD(lr=1.0), seed=0, scale=0)
    for array in (ids, grads):
        array.flags.writeable = False
    table.push(ids, grads, 0)
    table.assign(ids[:2], grads[:2])
    table.write(Rows(ids[:2], grads[:2], np.empty((2, 0), np.float32), ids[:2]))
    assert table.pull(ids).tolist() == [[1, 1]] * 3
    for kernel in (kernels.unique, kernels.sum_count, kernels.step, kernels.find_slots, kernels.replace_rows):
        assert len(kernel.signatures) == 1, kernel.__name__


def test_strided_unaligned_and_narrow_input():
    table = Table(2, SGD(lr=1.0), seed=0, scale=0)
    unaligned = np.frombuffer(b"\0" + np.ones((2, 2), np.float32).tobytes(), np.float32, offset=1).reshape(2, 2)
    table.push(np.arange(4, dtype=np.uint8)[::2], np.ones((2, 4), np.float16)[:, ::2], 0)
    table.push(np.array([0, 2], np.uint64), unaligned, 1)
    table.push(torch.tensor([0, 2]), torch.ones(2, 2), 2)
    assert table.pull([0, 2]).tolist() == [[-3, -3]] * 2


def test_empty_calls():
    table = Table(2, Adam(lr=1.0), seed=0)
    none = table.read([])
    table.push([], np.empty((0, 2), np.float32), 0)
    table.assign([], none.values)
    table.write(none)
    table.write(none, newer=False)
    assert len(table) == len(table.export()) == 0
    assert table.pull([]).shape == table.peek([]).shape == (0, 2)
    table.load(none)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda table: table.pull([[1]]), r"ids must be one-dimensional, not of shape \(1, 1\)"),
        (lambda table: table.pull([0.5]), "ids must be integers that fit int64, not float64"),
        (lambda table: table.pull([2**63]), "ids must be integers that fit int64, not uint64"),
        (lambda table: table.pull(["a"]), "ids must be integers"),
        (
            lambda table: table.push([1], np.ones((1, 3), np.float32), 0),
            r"grads must be of shape \(1, 2\), not \(1, 3\)",
        ),
        (lambda table: table.push([1], np.ones((1, 2)), 0), "grads must be float32, not float64"),
        (lambda table: table.push([1], np.ones((1, 2), np.float32), -1), "stamp must be an integer of at least 0"),
        (lambda table: table.push([1], np.ones((1, 2), np.float32), 1.0), "stamp must be an integer"),
        (lambda table: table.assign([1], np.ones((2, 2), np.float32)), r"values must be of shape \(1, 2\)"),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(call, message):
    table = Table(2, SGD(lr=1.0), seed=0)
    with pytest.raises(BadOption, match=message):
        call(table)
    assert len(table) == 0


def test_bad_rows_are_named():
    table, ones = Table(1, Adagrad(lr=1.0), seed=0), np.ones((2, 1), np.float32)
    with pytest.raises(BadOption, match=r"rows.state must be of shape \(2, 1\), not \(2, 0\)"):
        table.write(Rows(ints(1, 2), ones, ones[:, :0], ints(0, 0)))
    with pytest.raises(BadOption, match=r"rows.stamps must be 2 timestamps of at least -1"):
        table.write(Rows(ints(1, 2), ones, ones, ints(0, -2)))
    with pytest.raises(BadOption, match=r"rows.ids must be distinct"):
        table.load(Rows(ints(1, 1), ones, ones, ints(0, 0)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be an integer of at least 1, not 0"),
        ({"capacity": 0}, "capacity must be an integer of at least 1"),
        ({"seed": 0.5}, "seed must be an integer, not 0.5"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(BadOption, match=message):
        Table(**{"dim": 1, "optimizer": SGD(lr=1.0), "seed": 0, **options})


def test_first_rows_are_the_seeds_own():
    rows = [Table(4, SGD(lr=1.0), seed=seed).pull(ints(1, 2, 3)) for seed in (0, 1, 2**40, -1)]
    assert all((one != other).all() for place, one in enumerate(rows) for other in rows[:place])


def test_a_full_tables_rows_take_what_it_says():
    """A limit takes four bytes more, for the last look-up, and half a byte of the queue."""
    free, bound = (Table(4, SGD(lr=1.0), seed=0, max_rows=rows) for rows in (None, 4096))
    assert bound.bytes_per_row - free.bytes_per_row == 4.5
    for table in (free, bound):
        table.pull(np.arange(4096))
        assert 0.8 < table.nbytes / (4096 * table.bytes_per_row) < 1.6
