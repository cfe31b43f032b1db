"""Callers that meet in one table: no update is lost where calls are alone, ids never mix, and look-ups run side by side."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.store.optim import SGD, Adagrad
from lib.store.rows import Rows
from lib.store.table import Gate, Table
from tests.store.same_rows import same

DIM = 8
LARGE = 3000


def at_once(callers, work):
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(work, range(callers)))


@settings(derandomize=True, deadline=None, max_examples=15, database=None)
@given(
    seed=st.integers(0, 2**32),
    callers=st.integers(2, 4),
    vocabulary=st.sampled_from([5, 300, 6000]),
    size=st.sampled_from([3, 200, LARGE]),
)
def test_callers_against_a_plain_dict(seed, callers, vocabulary, size):
    """Whole numbers, so that sums are exact in any order: at the end every row is what a dict makes of all calls together."""
    table, model = Table(2, SGD(lr=1.0), seed=7, scale=0.0, capacity=1), {}
    rng = np.random.default_rng(seed)
    calls = [
        [(rng.integers(0, vocabulary, size), rng.integers(-3, 4, (size, 2)).astype(np.float32)) for _ in range(6)]
        for _ in range(callers)
    ]
    for ids, grads in (call for mine in calls for call in mine):
        for number, grad in zip(ids.tolist(), grads, strict=True):
            model[number] = model.get(number, 0) - grad

    def work(caller):
        for stamp, (ids, grads) in enumerate(calls[caller]):
            assert np.isfinite(table.pull(ids)).all()
            table.push(ids, grads, stamp)
            table.stamps(ids[:5])

    at_once(callers, work)
    rows = table.export()
    assert rows.ids.tolist() == sorted(model)
    assert np.array_equal(rows.values, np.array([model[number] for number in sorted(model)]))
    assert rows.stamps.max() == 5


def act(table, call, ids, number):
    """One of a table's calls; what it gives."""
    block = np.random.default_rng(number).normal(0, 1, (ids.size, DIM)).astype(np.float32)
    if call == "push":
        return table.push(ids, block, number, rate=1 + number % 2)
    if call == "update":
        return table.push_weighted(ids, block, number, weights=(table.stamps(ids) % 3).astype(np.float32) / 2)
    if call == "write":
        stamps = np.full(ids.size, max(0, number - 2))
        return table.write(Rows(ids, block, np.abs(block), stamps), newer=number % 2 == 0)
    if call == "assign":
        return table.assign(ids, block)
    if call == "read":
        rows = table.read(ids)
        return np.hstack([rows.values, rows.state, rows.stamps[:, None]])
    return getattr(table, call)(ids)


CALLS = st.tuples(
    st.sampled_from(["pull", "peek", "stamps", "read", "push", "update", "write", "assign"]),
    st.lists(st.integers(0, 30), max_size=30),
)


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(
    calls=st.lists(st.lists(CALLS, max_size=8), min_size=2, max_size=4),
    copies=st.sampled_from([1, 100]),
    locking=st.sampled_from(["table", "none"]),
)
def test_a_caller_finds_in_its_own_rows_what_it_would_find_alone(calls, copies, locking):
    """Callers use ids of their own, so each sees to the bit what a table of its own shows, while others make the table grow."""
    shared = Table(DIM, Adagrad(lr=0.1), seed=7, capacity=1, locking=locking)

    def work(caller):
        own = Table(DIM, Adagrad(lr=0.1), seed=7)
        for number, (call, names) in enumerate(calls[caller]):
            ids = (np.array(names, np.int64)[:, None] * copies + np.arange(copies)).ravel() * len(calls) + caller
            found, expected = (act(table, call, ids, number) for table in (shared, own))
            assert (found is None and expected is None) or np.array_equal(found, expected)
        rows = own.export()
        assert same(shared.read(rows.ids), rows)

    at_once(len(calls), work)


def contended(locking, gives_way):
    """How many updates are lost of two callers' who update one row over and over; each gives way between reading and writing."""
    table = Table(1, _GivesWay(lr=1.0), seed=0, scale=0, locking=locking)
    _GivesWay.give_way = staticmethod(gives_way)
    table.pull([3])

    def work(caller):
        for stamp in range(5):
            table.push([3], -np.ones((1, 1), np.float32), stamp)

    at_once(2, work)
    return 10 - float(table.peek([3])[0, 0])


class _GivesWay(SGD):
    """A step that reads, gives way, and writes: what the processor's caches do in a few nanoseconds, for all to see."""

    def update_slots(self, rows, slots, grads, mark):
        before = rows[slots, : grads.shape[1]].copy()
        self.give_way()
        rows[slots, : grads.shape[1]] = before - grads


def test_updates_are_lost_without_locks_and_none_are_lost_with_them():
    assert contended("none", threading.Barrier(2, timeout=300).wait) == 5  # both have read, time after time
    assert contended("table", lambda: time.sleep(0.005)) == 0


def test_rows_without_locks_never_mix_ids():
    """Each id's gradients are multiples of its own power of two, whatever is lost; evictions go on meanwhile."""
    table = Table(DIM, SGD(lr=1.0), seed=0, scale=0, capacity=1, max_rows=900, locking="none")
    errors = []

    def work(caller):
        rng = np.random.default_rng(caller)
        for stamp in range(40):
            ids = rng.integers(0, 1000, 3000)
            pulled = table.pull(ids)
            errors.append(int((pulled % (ids % 7 + 1)[:, None] != 0).sum()))
            table.push(ids, -np.repeat((ids % 7 + 1)[:, None], DIM, axis=1).astype(np.float32), stamp)

    at_once(2, work)
    rows = table.export()
    assert sum(errors) == 0 and len(rows) == 900
    assert (rows.values % (rows.ids % 7 + 1)[:, None] == 0).all()


def test_the_gate_lets_many_in_or_one():
    gate, inside, counting = Gate(), [0, 0], threading.Lock()

    def visit(number):
        for _ in range(50):
            if number % 2:
                with gate.alone():
                    assert inside == [0, 0]
                    inside[1] += 1
                    inside[1] -= 1
            else:
                with gate.shared():
                    assert not inside[1]
                    with counting:
                        inside[0] += 1
                    with counting:
                        inside[0] -= 1

    at_once(4, visit)


def test_look_ups_meet_and_updates_are_alone():
    """A look-up waits while another call changes rows, and look-ups of known rows go on side by side."""
    table = Table(1, SGD(lr=1.0), seed=0)
    table.pull([1, 2])
    with ThreadPoolExecutor(1) as pool:
        with table._gate.shared():
            assert pool.submit(table.pull, [1, 2]).result(20).shape == (2, 1)
            pushed = pool.submit(table.push, [1], np.ones((1, 1), np.float32), 0)
            with pytest.raises(TimeoutError):
                pushed.result(0.1)
        pushed.result(20)


def test_a_look_up_beside_growth_finds_its_own_rows():
    table, over = Table(DIM, SGD(lr=1.0), seed=0, scale=1.0, capacity=1, locking="none"), threading.Event()
    known = table.pull(np.arange(500))

    def work(caller):
        if caller:
            for start in range(0, 200_000, 1000):
                table.pull(10**6 + np.arange(start, start + 1000))
            over.set()
        while not over.is_set():
            assert np.array_equal(table.pull(np.arange(500)), known)

    at_once(2, work)


def test_a_writer_of_whole_rows_never_shows_half_a_row():
    table, over = Table(DIM, SGD(lr=1.0), seed=0, scale=0), threading.Event()
    ids, state = np.arange(300), np.empty((300, 0), np.float32)

    def work(caller):
        if caller:
            for stamp in range(200):
                table.write(Rows(ids, np.full((300, DIM), stamp, np.float32), state, np.full(300, stamp)))
            over.set()
        while not over.is_set():
            rows = table.read(ids)
            assert (rows.values == np.maximum(rows.stamps, 0)[:, None]).all()

    at_once(2, work)
