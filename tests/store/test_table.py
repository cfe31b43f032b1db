"""The table: torch.nn.Embedding's training, weights, what may go in, and what it refuses; `test_table_model.py` has its calls."""

import numpy as np
import pytest
import torch

from lib.errors import BadOption
from lib.store import kernels
from lib.store.optim import SGD, Adagrad, Adam, Momentum
from lib.store.rows import Rows
from lib.store.table import Table
from tests.store.same_rows import same

ALL = [SGD(lr=0.1), Adagrad(lr=0.1), Momentum(lr=0.1), Adagrad(lr=0.1, rowwise=True), Adam(lr=0.1)]
LOW, HIGH = -(2**63), 2**63 - 1


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_duplicates_equal_their_sum_pushed_once_also_by_who_says_that_no_id_stands_twice(optimizer):
    rng = np.random.default_rng(0)
    doubled, once, told = (Table(4, optimizer, seed=1, capacity=2) for _ in range(3))
    for stamp in range(20):
        ids, grads = rng.integers(0, 9, 12), rng.normal(0, 1, (12, 4)).astype(np.float32)
        doubled.push(ids, grads, stamp)
        distinct, positions = kernels.unique(ids)
        sums = kernels.sum_count(positions, grads, np.ones(12, np.float32), distinct.size)[0]
        once.push(distinct, sums, stamp)
        told.push(distinct, sums, stamp, distinct=True)
    assert same(doubled, once) and same(told, once)


@pytest.mark.parametrize("optimizer", ALL)
def test_a_weighted_update_is_a_push_of_the_weighted_sums(optimizer):
    """Ids of 3 gradients: 7 and 8 have two each of which 8's are void, 9 is new to the table and 10 new and void."""
    ids, grads = np.array([7, 8, 9, 7, 10, 8]), np.arange(24, dtype=np.float32).reshape(6, 4)
    weights = np.array([1, 0, 1, 0.5, 0, 0], np.float32)
    tables = [Table(4, optimizer, seed=1) for _ in range(4)]
    for table in tables:
        table.push(np.array([7, 8]), np.ones((2, 4), np.float32), 5)
    tables[0].push_weighted(ids, grads, 6, weights=weights, divisor=3)
    sums = np.stack([grads[0] + np.float32(0.5) * grads[3], grads[2]])
    tables[1].push(np.array([7, 9]), sums / np.float32(3), 6)
    assert same(tables[0].export(), tables[1].export())

    assert tables[2].stamps(ids).tolist() == [5, 5, -1, 5, -1, 5]
    tables[2].push_weighted(ids, grads, 6, weights=weights)
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
def test_loaded_content_continues_bit_for_bit(optimizer):
    original, copy = (Table(3, optimizer, seed=0, capacity=1) for _ in range(2))
    for stamp, table in enumerate((original, original, original, copy)):
        table.push(np.arange(15) * stamp % 40 - 20, np.full((15, 3), stamp - 1, np.float32), stamp)
    copy.load(original.export())
    assert same(copy.export(), original.export())
    ids, grads = np.arange(-30, 30), np.ones((60, 3), np.float32)
    for table in (original, copy):
        table.push(ids, grads, 9)
    assert same(copy.export(), original.export())


def test_growth_over_many_doublings_loses_nothing_and_takes_no_more_than_it_must():
    small, large = (Table(2, Adam(lr=0.1), seed=0, capacity=capacity) for capacity in (1, 10_000))
    for ids in np.array_split(np.random.default_rng(0).integers(LOW, HIGH, 5_000), 50):
        for table in (small, large):
            table.push(ids, np.ones((ids.size, 2), np.float32), 1)
    assert same(small, large) and small.nbytes < 3 * large.nbytes


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
    for kernel in (kernels.unique, kernels.sum_count, kernels.SGD, kernels.find_slots, kernels.replace_rows):
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
        (lambda table: table.push([1], np.ones((1, 3), np.float32), 0), r"grads must be of shape \(1, 2\), not "),
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
