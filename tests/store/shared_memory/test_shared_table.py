"""A table in shared memory: it is a table, it is found again, and a process may be killed in the midst of any call."""

import os
import re
import resource
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lib.errors import BadOption, Damaged
from lib.store.optim import SGD, Adagrad, Adam
from lib.store.rows import Rows
from lib.store.shared_memory import segment
from lib.store.shared_memory.table import SharedTable
from lib.store.table import index, kernels, lookup, optim_kernels
from lib.store.table.records import Records
from lib.store.table.table import Table

pytestmark = pytest.mark.usefixtures("own_memory")

DIM, OPTIMIZER = 4, Adagrad(lr=0.1)


@pytest.fixture
def name():
    name = f"test-table-{os.getpid()}"
    segment.remove(name)
    yield name
    segment.remove(name)


def shared(name, **options):
    return SharedTable(DIM, OPTIMIZER, name=name, seed=1, capacity=8, **options)


def private(**options):
    return Table(DIM, OPTIMIZER, seed=1, capacity=8, **options)


def same(a, b):
    a, b = a.export(), b.export()
    return all(np.array_equal(getattr(a, field), getattr(b, field)) for field in ("ids", "values", "state", "stamps"))


def act(table, number):
    """One call that depends on its number alone; every second one is a push with that stamp."""
    rng = np.random.default_rng(number)
    ids = rng.integers(-300, 300, 400) + 50 * (number // 40)
    block = rng.normal(0, 1, (ids.size, DIM)).astype(np.float32)
    if number % 2 == 0:
        table.push(ids, block, number)
    elif number % 10 == 1:
        table.pull(ids)
    elif number % 10 == 3:
        stamps = rng.integers(max(0, number - 20), number - 1, ids.size)
        table.write(Rows(ids, block, np.abs(block), stamps))
    elif number % 10 == 5:
        table.assign(ids[:50], block[:50])
    elif number % 10 == 7:
        table.read(ids[:100])
    else:
        table.read(ids[:20])


def replayed(found: Table, **options) -> int | None:
    """After how many of the calls a table holds what `found` holds; None: it never does."""
    stamps = found.export().stamps
    last = int(stamps.max()) if stamps.size else -1
    table = private(**options)
    for number in range(last + 1):
        act(table, number)
    for number in range(last + 1, last + 3):
        if same(table, found):
            return number
        act(table, number)
    return None


LIMITS = pytest.mark.parametrize("limits", [{}, {"max_rows": 420}], ids=["unlimited", "limited"])


@LIMITS
def test_it_is_a_table_and_is_found_again(name, limits):
    ours, theirs = shared(name, **limits), private(**limits)
    for number in range(60):
        act(ours, number), act(theirs, number)
        if number % 20 == 19:
            assert same(ours, theirs) and len(ours) == len(theirs)
            ours.close(remove=False)
            ours = shared(name, **limits)
            assert ours.attached and ours.repaired == 0
    rows = theirs.export()
    ours.load(rows)
    assert same(ours, theirs)
    theirs.push([10**9], np.ones((1, DIM), np.float32), 61)
    ours.restore(theirs.dump())
    ours.close(remove=False)
    ours = shared(name, **limits)
    assert same(ours, theirs)
    ours.close()


@LIMITS
def test_killed_at_any_moment_it_is_as_between_two_calls(name, limits):
    shared(name, **limits).close(remove=False)
    rng, done, kills, repairs = np.random.default_rng(0), 0, 0, 0
    while kills < 20 or repairs < 3:  # a busy machine may let a child do little before it dies
        kills += 1
        assert kills < 300
        child = os.fork()
        if child == 0:
            try:
                table = shared(name, **limits)
                for number in range(done, 10**9):
                    act(table, number)
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.01, 0.03))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        found = shared(name, **limits)
        repairs += found.repaired > 0
        before, done = done, replayed(found, **limits)
        assert done is not None and done >= before
        found.close(remove=False)
        if done > 150:
            segment.remove(name)
            shared(name, **limits).close(remove=False)
            done = 0


@pytest.mark.parametrize("number", [10, 13, 15, 17, 41])
@pytest.mark.parametrize("place", ["settle", "grow", "half", "step"])
def test_killed_at_the_worst_moments(name, number, place):
    """In the midst of admission, of growth, of the optimiser's step, and before it."""
    table = shared(name)
    for earlier in range(number):
        act(table, earlier)
    before = table.export()
    table.close(remove=False)
    child = os.fork()
    if child == 0:
        try:
            table = shared(name)

            def die(*args):
                os.kill(os.getpid(), signal.SIGKILL)

            def half(rows, slots, block, *mark):
                rows[slots[::2]] = 99
                rows[slots[1::2], :2] = 99  # and half of some rows
                die()

            if place == "settle":
                index.enter = die
            elif place == "grow":
                original, grown = Records.resize, table._records.capacity

                def resize(records, capacity):
                    original(records, capacity)
                    die() if capacity > grown else None

                Records.resize = resize
            elif place == "half":
                object.__setattr__(OPTIMIZER, "update_slots", half)
                kernels.scatter = half
                kernels.replace_rows = lambda rows, column, slots, *more: half(rows, slots, None)
            else:
                optim_kernels.adagrad = kernels.replace_rows = die
            act(table, number)
            if place == "grow":
                table.push(np.arange(9000, 19_000), np.ones((10_000, DIM), np.float32), number)
            os._exit(3)  # this call has no such moment
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    table = shared(name)
    if os.WIFSIGNALED(status) and place != "grow":
        after = table.export()
        assert np.array_equal(after.values, before.values) and np.array_equal(after.ids, before.ids)
        assert np.array_equal(after.state, before.state) and np.array_equal(after.stamps, before.stamps)
    assert os.WIFSIGNALED(status) or (os.WEXITSTATUS(status) == 3 and place != "grow")
    assert replayed(table) is not None
    for later in range(3):  # and it goes on
        table.push(np.arange(500), np.ones((500, DIM), np.float32), 10**6 + later)
    table.close()


def test_a_call_that_fails_changes_nothing(name, monkeypatch):
    table = shared(name)
    for number in range(12):
        act(table, number)
    before = private()
    before.load(table.export())

    def broken(*args):
        raise MemoryError

    for module, function in ((kernels, "scatter"), (optim_kernels, "adagrad")):
        with monkeypatch.context() as patched:
            patched.setattr(module, function, broken)
            with pytest.raises(MemoryError):
                table.push(np.arange(1000, 1400), np.ones((400, DIM), np.float32), 99)
        assert same(table, before)
    table.push(np.arange(1000, 1400), np.ones((400, DIM), np.float32), 99)
    before.push(np.arange(1000, 1400), np.ones((400, DIM), np.float32), 99)
    assert same(table, before)
    table.close()


def test_another_table_is_refused_by_its_option(name):
    shared(name).close(remove=False)
    for other, message in (
        (lambda: SharedTable(5, OPTIMIZER, name=name, seed=1), "was made with dim 4, not 5"),
        (lambda: SharedTable(4, OPTIMIZER, name=name, seed=2), "was made with seed 1, not 2"),
        (lambda: SharedTable(4, SGD(lr=0.1), name=name, seed=1), "was made with optimizer 'Adagrad', not 'SGD'"),
        (lambda: SharedTable(4, Adagrad(lr=0.2), name=name, seed=1), "was made with lr 0.1, not 0.2"),
    ):
        with pytest.raises(BadOption, match=message):
            other()
    assert shared(name).attached


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adam(lr=0.1)], ids=["sgd", "adam"])
def test_every_optimiser_may_be_shared(name, optimizer):
    ours = SharedTable(3, optimizer, name=name, seed=0, capacity=1)
    theirs = Table(3, optimizer, seed=0)
    for stamp in range(5):
        ids = np.arange(40) * stamp % 31
        for table in (ours, theirs):
            table.push(ids, np.full((40, 3), stamp, np.float32), stamp)
    assert same(ours, theirs)
    ours.close()


def test_killed_on_a_disk_it_is_as_between_two_calls(tmp_path):
    rng, done = np.random.default_rng(1), 0
    for kills in range(100):
        if kills >= 4 and done:  # on a busy machine a child may be killed before its first call
            break
        child = os.fork()
        if child == 0:
            try:
                table = shared("t", root=tmp_path)
                for number in range(done, 10**9):
                    act(table, number)
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.02, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = shared("t", root=tmp_path)
        assert found.segment.folder.parent == tmp_path
        before, done = done, replayed(found)
        assert done is not None and done >= before
        found.close(remove=False)
    assert (
        done and segment.sweep(tmp_path) == [] and segment.folder_of("t", tmp_path).exists()
    )  # this process had it last


def test_a_table_on_a_disk_may_be_larger_than_the_memory(tmp_path):
    """Of 200 MB, in a process that may have 60 more than it has."""

    def fill(table):
        for first in range(0, 100_000, 5_000):
            table.push(np.arange(first, first + 5_000), np.ones((5_000, 512), np.float32), 1)
        return table

    def limited(make, status):
        child = os.fork()
        if child == 0:
            try:
                used = int(re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10
                resource.setrlimit(resource.RLIMIT_DATA, (used + 60_000_000, resource.RLIM_INFINITY))
                fill(make()).close(remove=False)
                os._exit(0)
            except MemoryError:
                os._exit(3)
            finally:
                os._exit(1)
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == status

    def on_disk():
        return SharedTable(512, SGD(lr=1.0), name="t", seed=1, root=tmp_path)

    limited(lambda: Table(512, SGD(lr=1.0), seed=1), 3)
    limited(on_disk, 0)
    table = on_disk()
    assert len(table) == 100_000 and table.peek([99_999]).max() < -0.9
    table.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_journal_it_is_a_table_whose_calls_meet_and_no_kill_is_survived(name):
    ours, theirs = shared(name, journal=False), private()
    for number in range(60):
        act(ours, number), act(theirs, number)
        if number == 30:
            ours.close(remove=False)
            ours = shared(name, journal=False)
            assert ours.attached and len(ours) == len(theirs)
    assert same(ours, theirs) and (ours.segment.folder / "journal").stat().st_size == 0
    with ours._gate.updating(), ours._gate.updating():
        pass
    ours.close(remove=False)
    child = os.fork()
    if child == 0:
        table = shared(name, journal=False)
        act(table, 60)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    for journal in (True, False):
        with pytest.raises(Damaged, match="open without a journal when its process died"):
            shared(name, journal=journal)
    assert segment.sweep() == [name]


def test_what_a_call_needs_of_a_disk_is_there_before_anybody_waits_for_it(tmp_path):
    """While another is alone in the table, a call comes as far as having touched its rows."""
    table, there = shared("t", root=tmp_path), threading.Event()
    table.push([1, 2], np.ones((2, DIM), np.float32), 0)
    fault_in = table._records.fault_in

    def told(ids):
        fault_in(ids)
        there.set()

    table._records.fault_in = told
    for call in (lambda: table.read([1]), lambda: table.push([2], np.ones((1, DIM), np.float32), 1)):
        there.clear()
        with table._gate:
            thread = threading.Thread(target=call)
            thread.start()
            assert there.wait(20) and thread.is_alive()
        thread.join()
    words = table._records.words.copy()
    assert (
        lookup.touch(words, np.array([0, -1, 1]))
        == sum(int(words[slot, at]) for slot in (0, 1) for at in (0, -1)) % 2**32
    )
