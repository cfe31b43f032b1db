"""Threads: a call's own, which must not show in the results, and callers that meet in one table."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lib.store.optim import SGD, Adagrad, Adam
from lib.store.table.batch_plan import LARGE
from lib.store.table.gate import Gate
from lib.store.table.submaps import SubMaps
from lib.store.table.table import Table
from lib.store.table.team import together

DIM = 8


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("ids", "values", "state", "stamps"))


@pytest.mark.parametrize("options", [{}, {"max_rows": 6000}, {"locking": "striped"}, {"locking": "hogwild"}], ids=repr)
@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1), Adagrad(lr=0.1, rowwise=True), Adam(lr=0.1)], ids=repr)
def test_the_number_of_threads_does_not_show(optimizer, options):
    tables = [Table(DIM, optimizer, seed=0, threads=threads, **options) for threads in (1, 2, 4)]
    rng = np.random.default_rng(0)
    for stamp in range(4):
        ids = np.minimum(rng.zipf(1.2, LARGE + 100), 9_000).astype(np.int64)
        grads = rng.normal(0, 1, (ids.size, DIM)).astype(np.float32)
        pulled = [table.pull(ids) for table in tables]
        assert np.array_equal(pulled[0], pulled[1]) and np.array_equal(pulled[0], pulled[2])
        for table in tables:
            table.push(ids, grads, stamp)
    assert same(tables[0].export(), tables[1].export()) and same(tables[0].export(), tables[2].export())
    assert len({(table.lost, table.evicted) for table in tables}) == 1


def test_a_plan_serves_only_its_own_ids_and_only_until_rows_move():
    table, fresh = (Table(1, SGD(lr=1.0), seed=0, scale=0, capacity=1) for _ in range(2))
    ids = np.arange(5000) // 2
    other = ids + 7
    for one in (table, fresh):
        one.pull(ids)
    table.pull(ids)
    table.evict(ids[:100])  # slots are given to others
    table.pull(np.arange(10**6, 10**6 + 40))
    for push in (ids, other, ids):
        table.push(push, -np.ones((5000, 1), np.float32), 1)
        fresh.push(push, -np.ones((5000, 1), np.float32), 1)
    assert np.array_equal(table.peek(ids), fresh.peek(ids))


@pytest.mark.parametrize("limit", [None, 9_000])
def test_an_id_that_stands_twice_gets_one_step_whatever_the_batches_before_held(limit):
    """Batches with and without duplicates in turn, known ids and new ones; Adagrad tells one step from two."""
    large, small = (Table(DIM, Adagrad(lr=0.1), seed=0, max_rows=limit) for _ in range(2))
    rng = np.random.default_rng(0)
    for each in (large, small):
        each.pull(np.arange(8_000))
    for stamp in range(24):
        ids = rng.permutation(8_000)[:3_000] + 100 * (stamp % 4 == 3)
        if stamp % 3 == 2:
            ids[rng.integers(0, 3_000, 40)] = ids[7]
        grads = rng.normal(0, 1, (ids.size, DIM)).astype(np.float32)
        distinct = np.unique(ids)  # small has them once each, in pieces that need no plan
        pulled = large.pull(ids)
        for some in np.array_split(distinct, 4):
            small.pull(some)
        assert np.array_equal(pulled, small.peek(ids))
        large.push(ids, grads, stamp)
        for some in np.array_split(distinct, 4):
            mine = np.isin(ids, some)
            small.push(ids[mine], grads[mine], stamp)
        assert same(large.export(), small.export())


@pytest.mark.parametrize("make", [Table, SubMaps])
@pytest.mark.parametrize("locking", ["call", "striped"])
def test_two_callers_lose_no_update(make, locking):
    """On rows that both want, while the table grows."""
    table = make(DIM, SGD(lr=1.0), seed=0, scale=0, capacity=1, locking=locking)
    rounds, ones = 30, np.ones((3000, DIM), np.float32)

    def work(thread):
        rng = np.random.default_rng(thread)
        for stamp in range(rounds):
            ids = rng.permutation(3000) + 50 * stamp
            pulled = table.pull(ids)
            assert (pulled == pulled[:, :1]).all()  # never half an update
            table.push(ids, -ones, stamp)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert table.export().values.sum() == 2 * rounds * ones.size


def test_hogwild_never_mixes_ids():
    """Each id's gradients are multiples of its own power of two, whatever is lost; evictions go on meanwhile."""
    table = Table(DIM, SGD(lr=1.0), seed=0, scale=0, capacity=1, max_rows=900, locking="hogwild")
    errors = []

    def work(thread):
        rng = np.random.default_rng(thread)
        for stamp in range(40):
            ids = rng.integers(0, 1000, 3000)
            pulled = table.pull(ids)
            errors.append(int((pulled % (ids % 7 + 1)[:, None] != 0).sum()))
            table.push(ids, -np.repeat((ids % 7 + 1)[:, None], DIM, axis=1).astype(np.float32), stamp)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    rows = table.export()
    assert sum(errors) == 0 and len(rows) == 900
    assert (rows.values % (rows.ids % 7 + 1)[:, None] == 0).all()


def test_disjoint_rows_of_hogwild_are_exact():
    table = Table(DIM, SGD(lr=1.0), seed=0, scale=0, capacity=1, locking="hogwild")

    def work(thread):
        ids = np.arange(2000) * 2 + thread
        for stamp in range(20):
            table.pull(ids)
            table.push(ids, np.full((2000, DIM), -1, np.float32), stamp)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert (table.export().values == 20).all()


def test_the_gate_lets_many_in_or_one():
    gate, inside, most = Gate(), [0, 0], []

    def visit(number):
        for _ in range(50):
            if number % 2:
                with gate:
                    assert inside == [0, 0]
                    inside[1] += 1
                    inside[1] -= 1
            else:
                with gate.shared():
                    assert not inside[1]
                    inside[0] += 1
                    most.append(inside[0])
                    inside[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(visit, range(4)))
    assert most


def test_a_team_returns_in_order_and_raises_what_was_raised():
    assert together(lambda part: part * part, 4) == [0, 1, 4, 9]
    names = together(lambda part: threading.current_thread().name, 2)
    assert names[0] != names[1]
    with pytest.raises(ZeroDivisionError):
        together(lambda part: 1 // (1 - part), 3)
    assert together(lambda part: part, 2) == [0, 1]
