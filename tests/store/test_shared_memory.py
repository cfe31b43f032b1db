"""Tables in shared memory outlive their process, which may be killed at any moment."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lib.errors import BadOption, Damaged
from lib.store import kernels
from lib.store.optim import SGD, Adagrad, Adam
from lib.store.rows import Rows
from lib.store.shared_memory import SharedTable, remove, remove_orphans
from lib.store.table import Table
from tests.store.same_rows import same
from tests.store.test_segments import in_a_child, killed

pytestmark = pytest.mark.usefixtures("own_memory")

DIM, OPTIMIZER = 4, Adagrad(lr=0.1)
NAME = "test"


@pytest.fixture
def name():
    yield NAME
    remove(NAME)


def shared(name, **options):
    return SharedTable(DIM, OPTIMIZER, name=name, seed=1, capacity=8, **options)


def private(**options):
    return Table(DIM, OPTIMIZER, seed=1, capacity=8, **options)


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
    else:
        table.read(ids[:100])


def replayed(found, **options):
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
    ours.load(theirs.export())
    assert same(ours, theirs)
    theirs.push([10**9], np.ones((1, DIM), np.float32), 61)
    ours.restore(theirs.dump())
    ours.close(remove=False)
    ours = shared(name, **limits)
    assert same(ours, theirs)
    ours.close()


def killed_again_and_again(open_table, limits, kills):
    """A table is opened by children that are killed; each time it must be as between two calls."""
    rng, done, count, repairs = np.random.default_rng(0), 0, 0, 0
    while count < kills or not repairs or not done:  # a busy machine may let a child do little before it dies
        count += 1
        assert count < 300

        def work(first=done):
            table = open_table()
            for number in range(first, 10**9):
                act(table, number)

        child = in_a_child(work)
        time.sleep(rng.uniform(0.01, 0.04))
        killed(child)
        found = open_table()
        repairs += found.repaired > 0
        before, done = done, replayed(found, **limits)
        assert done is not None and done >= before
        found.close(remove=done > 150)
        done = 0 if done > 150 else done


@LIMITS
def test_killed_at_any_moment_it_is_as_between_two_calls(name, limits):
    killed_again_and_again(lambda: shared(name, **limits), limits, 20)


def test_killed_on_a_disk_it_is_as_between_two_calls(tmp_path):
    killed_again_and_again(lambda: shared("t", root=tmp_path), {}, 4)
    assert remove_orphans(tmp_path) == [], "this process had it last"


@pytest.mark.parametrize("number", [10, 13, 15, 17, 41])
@pytest.mark.parametrize("place", ["admission", "growth", "half", "step"])
def test_killed_at_the_worst_moments(name, number, place):
    """In the midst of admission, of growth, of the optimiser's step, and before it."""
    table = shared(name)
    for earlier in range(number):
        act(table, earlier)
    before = private()
    before.load(table.export())
    table.close(remove=False)

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def half(rows, slots, *_):
        rows[slots[::2]] = 99
        rows[slots[1::2], :2] = 99  # and half of some rows
        die()

    def work():
        table = shared(name)
        if place == "admission":
            kernels.insert = die
        elif place == "growth":
            Table._resize = die
        elif place == "half":
            kernels.step = half
            kernels.replace_rows = lambda rows, column, slots, *more: half(rows, slots)
        else:
            kernels.step = kernels.replace_rows = die
        act(table, number)
        if place == "growth":
            table.push(np.arange(9000, 19_000), np.ones((10_000, DIM), np.float32), number)
        os._exit(3)  # this call has no such moment

    status = os.waitpid(in_a_child(work), 0)[1]
    table = shared(name)
    if os.WIFSIGNALED(status) and place != "growth":
        assert same(table, before)
    assert os.WIFSIGNALED(status) or (os.WEXITSTATUS(status) == 3 and place != "growth")
    assert replayed(table) is not None
    for later in range(3):  # and it goes on
        table.push(np.arange(500), np.ones((500, DIM), np.float32), 10**6 + later)
    table.close()


def test_a_call_that_fails_changes_nothing(name, monkeypatch):
    table, before = shared(name), private()
    for number in range(12):
        act(table, number)
    before.load(table.export())

    def broken(*args):
        raise MemoryError

    for function in ("insert", "ADAGRAD"):
        with monkeypatch.context() as patched:
            patched.setattr(kernels, function, broken)
            with pytest.raises(MemoryError):
                table.push(np.arange(1000, 1400), np.ones((400, DIM), np.float32), 99)
        table._resume_from_segment()  # its own undo needed the broken function too
        assert same(table, before)
    for each in (table, before):
        each.push(np.arange(1000, 1400), np.ones((400, DIM), np.float32), 99)
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
    ours, theirs = SharedTable(3, optimizer, name=name, seed=0, capacity=1), Table(3, optimizer, seed=0)
    for stamp in range(5):
        for table in (ours, theirs):
            table.push(np.arange(40) * stamp % 31, np.full((40, 3), stamp, np.float32), stamp)
    assert same(ours, theirs)
    ours.close()


def test_a_table_that_a_process_leaves_behind_goes_with_it(name):
    program = "from lib.store.shared_memory import SharedTable; from lib.store.optim import SGD; "
    program += "table = SharedTable(2, SGD(lr=1.0), name='left-behind', seed=0); table.pull([1]); "
    program += "print(table.segment.folder, table.segment.folder.exists())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=300)
    folder, there = done.stdout.split()
    assert (done.returncode, there, done.stderr) == (0, "True", "")
    assert not Path(folder).exists()


def test_a_table_on_a_disk_may_be_larger_than_the_memory(tmp_path):
    """Of 200 MB, in a process that may have 60 more than it has."""

    def fill(table):
        for first in range(0, 100_000, 5_000):
            table.push(np.arange(first, first + 5_000), np.ones((5_000, 512), np.float32), 1)
        return table

    def limited(make, status):
        def work():
            used = int(re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10
            resource.setrlimit(resource.RLIMIT_DATA, (used + 60_000_000, resource.RLIM_INFINITY))
            try:
                fill(make()).close(remove=False)
                os._exit(0)
            except MemoryError:
                os._exit(3)

        assert os.WEXITSTATUS(os.waitpid(in_a_child(work), 0)[1]) == status

    def on_disk():
        return SharedTable(512, SGD(lr=1.0), name="t", seed=1, root=tmp_path)

    limited(lambda: Table(512, SGD(lr=1.0), seed=1), 3)
    limited(on_disk, 0)
    table = on_disk()
    assert len(table) == 100_000 and table.peek([99_999]).max() < -0.9
    table.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_journal_calls_meet_and_no_kill_is_survived(name):
    ours, theirs = shared(name, journal=False), private()
    for number in range(60):
        act(ours, number), act(theirs, number)
        if number == 30:
            ours.close(remove=False)
            ours = shared(name, journal=False)
            assert ours.attached and len(ours) == len(theirs)
    assert same(ours, theirs) and (ours.segment.folder / "undo").stat().st_size == 0
    ours.close(remove=False)

    def work():
        table = shared(name, journal=False)
        act(table, 60)
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(in_a_child(work), 0)
    for journal in (True, False):
        with pytest.raises(Damaged, match="open without a journal when its process died"):
            shared(name, journal=journal)
    assert remove_orphans() == ["lockstep-test"]
