"""Tables that outlive their process: who may see them, who removes them, and that a process may be killed at any moment."""

import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lib.errors import BadOption, Damaged, LockstepError
from lib.store import kernels, shared_memory
from lib.store.optim import SGD, Adagrad, Adam
from lib.store.rows import Rows
from lib.store.shared_memory import Segment, SharedTable, folder_of, remove, sweep
from lib.store.table import Table

pytestmark = pytest.mark.usefixtures("own_memory")

WIDTH, DIM, OPTIMIZER = 8, 4, Adagrad(lr=0.1)
NAME = "test"


def opened(name=NAME, root=None):
    return Segment(name, WIDTH, {"width": WIDTH}, root, True)


def made(rows=50):
    """A segment of so many rows of zeros."""
    segment = opened()
    segment.grow(rows)[:] = 0
    segment.commit((rows, -1, 0))
    return segment


def in_a_child(work):
    """The process of a fork that does `work` and never comes back."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def killed(pid):
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def waiting():
    """A child that has made the segment and waits for its death."""

    def work():
        made()
        os.write(write, b"!")
        signal.pause()

    read, write = os.pipe()
    child = in_a_child(work)
    os.read(read, 1)
    return child


class TestSegment:
    def test_it_is_private_and_goes_with_its_process(self):
        segment = made()
        assert stat.S_IMODE(segment.folder.stat().st_mode) == 0o700
        words = segment.words
        segment.close()
        assert not segment.folder.exists()
        assert not words[:50].any(), "what is still in use stays valid"

    def test_what_is_kept_twice_goes_back_to_what_was_first(self):
        segment, slots = made(), np.arange(0, 40, 3)
        segment.keep(slots)
        segment.words[slots] = 99
        segment.keep(slots)
        segment.grow(500)[60:] = 7
        segment.close(remove=False)
        again = opened()
        assert again.attached and again.repaired == 2 * slots.size and again.undo() == 0
        assert again.counts == [50, -1, 0] and not again.words[:50].any()
        again.close()

    def test_a_live_process_keeps_others_out(self):
        segment = made()
        with pytest.raises(LockstepError, match="is open in another process or table"):
            opened()
        segment.close(remove=False)
        opened().close()

    def test_a_fork_that_ends_leaves_its_parents_segment_alone(self):
        segment = made()
        child = in_a_child(lambda: (segment.close(), os._exit(0)))
        assert os.waitpid(child, 0)[1] == 0
        assert segment.folder.exists()
        segment.close()

    def test_what_does_not_fit_is_named(self):
        made().close(remove=False)
        with pytest.raises(BadOption, match="was made with width 8, not 9; remove it first"):
            Segment(NAME, 9, {"width": 9}, None, True)
        with pytest.raises(BadOption, match=r"'../x' is no name of a segment"):
            opened("../x")
        segment = opened()
        with pytest.raises(LockstepError, match="no room for"):
            segment.grow(2**50)
        segment.close(remove=False)
        rows = folder_of(NAME) / "rows"
        os.truncate(rows, 4096 + 8 * WIDTH * 4)
        with pytest.raises(Damaged, match="has 8 rows, not the 50 it counts"):
            opened()
        with open(rows, "r+b") as file:
            file.write(b"lockseg3")
        with pytest.raises(Damaged, match="is no segment of this version"):
            opened()


def old(folder):
    """Make a folder look as if nothing had happened there for an hour."""
    os.utime(folder, (time.time() - 3600,) * 2)


class TestSweep:
    def test_segments_of_the_dead_are_swept(self):
        child = waiting()
        assert sweep() == [], "its process lives"
        killed(child)
        assert sweep() == ["lockstep-test"] and not folder_of(NAME).exists()
        made().close(remove=False)
        assert sweep() == [], "this process lives"

    def test_a_restarted_process_may_take_one_over(self):
        killed(waiting())
        segment = opened()
        assert segment.attached and segment.counts == [50, -1, 0]
        assert sweep() == [], "it is this process's now"
        segment.close()

    @pytest.mark.parametrize("content", [b"", b"lockseg", b"x" * 9000])
    def test_a_broken_one_breaks_nothing_and_goes_after_a_minute(self, content):
        """Such as an empty `rows`, which a full disk or a kill would leave if a segment were made in place."""
        folder = folder_of("broken")
        folder.mkdir(mode=0o700)
        (folder / "rows").write_bytes(content)
        assert sweep() == []
        old(folder)
        assert sweep() == ["lockstep-broken"]
        assert list(shared_memory._memory().iterdir()) == []

    def test_a_half_made_one_goes_after_a_minute(self):
        half = shared_memory._memory() / ".lockstep-abc"
        half.mkdir(mode=0o700)
        assert sweep() == []
        old(half)
        assert sweep() == [".lockstep-abc"]

    @pytest.mark.parametrize("kind", ["open folder", "link", "pipe", "file"])
    def test_what_another_user_may_have_planted_is_left_alone_and_never_opened(self, kind, tmp_path):
        folder = folder_of(NAME)
        if kind == "file":
            folder.write_bytes(b"")
        elif kind == "link":
            (tmp_path / "theirs").mkdir(mode=0o700)
            folder.symlink_to(tmp_path / "theirs")
        else:
            folder.mkdir(mode=0o755 if kind == "open folder" else 0o700)
            if kind == "pipe":
                os.mkfifo(folder / "rows")  # to open it for reading would hang
            else:
                (folder / "rows").write_bytes(b"")
        old(folder) if kind != "pipe" else None
        assert sweep() == []
        with pytest.raises(Damaged, match=r"private folder of this user|no regular file"):
            opened()
        assert os.path.lexists(folder)

    def test_a_full_disk_is_named_and_leaves_nothing(self, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        with pytest.raises(LockstepError, match=r"no segment can be made in .*file: "):
            (file := shared_memory._memory() / "file").touch()
            opened(root=file)
        file.unlink()
        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(LockstepError, match=r"no segment can be made in .*: No space left on device"):
            opened()
        assert list(shared_memory._memory().iterdir()) == []

    def test_a_kill_while_one_is_made_leaves_none(self, monkeypatch):
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        for name in ("touch", "write_bytes", "rename"):
            with monkeypatch.context() as patched:
                patched.setattr(Path, name, die)
                os.waitpid(in_a_child(opened), 0)
            assert not folder_of(NAME).exists()
            opened().close()

    def test_a_sweep_keeps_nobody_from_opening_one(self):
        def sweeping():
            while True:
                sweep()

        def make():
            for number in range(300):
                opened(f"a-{number}").close()
            os._exit(0)

        other = in_a_child(sweeping)
        status = os.waitpid(in_a_child(make), 0)[1]
        killed(other)
        assert status == 0

    def test_processes_that_start_at_once_do_not_see_half_a_segment(self):
        """One makes and removes segments while another opens the same, and another sweeps."""

        def make():
            for number in range(300):
                try:
                    opened(f"a-{number}").close()
                except LockstepError as error:
                    if "is open in another process" not in str(error):
                        os._exit(7)
            os._exit(0)

        def sweeping():
            while True:
                sweep()

        def disturb():
            while True:
                for folder in shared_memory._memory().glob("lockstep-a-*"):
                    try:
                        opened(folder.name.removeprefix("lockstep-")).close()
                    except (LockstepError, BadOption) as error:
                        if "is open in another process" not in str(error):
                            os._exit(7)

        others = [in_a_child(disturb), in_a_child(sweeping)]
        maker = in_a_child(make)
        status = os.waitpid(maker, 0)[1]
        for each in others:
            killed(each)
        assert status == 0


@pytest.fixture
def name():
    yield NAME
    remove(NAME)


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
    assert sweep(tmp_path) == [], "this process had it last"


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
            kernels.enter = die
        elif place == "growth":
            Table._resize = die
        elif place == "half":
            kernels.step = half
            kernels.replace = lambda rows, column, slots, *more: half(rows, slots)
        else:
            kernels.step = kernels.replace = die
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

    for function in ("enter", "step"):
        with monkeypatch.context() as patched:
            patched.setattr(kernels, function, broken)
            with pytest.raises(MemoryError):
                table.push(np.arange(1000, 1400), np.ones((400, DIM), np.float32), 99)
        table._adopt()  # its own undo needed the broken function too
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
    assert sweep() == ["lockstep-test"]


def test_what_a_call_needs_of_a_disk_is_read_before_it_excludes_others(tmp_path, monkeypatch):
    """While another call is alone in the table, a call comes as far as having touched its rows."""
    table, there, find = shared("t", root=tmp_path), threading.Event(), kernels.find
    table.push([1, 2], np.ones((2, DIM), np.float32), 0)
    monkeypatch.setattr(kernels, "find", lambda *args: (find(*args), there.set())[0])
    for call in (lambda: table.read([1]), lambda: table.push([2], np.ones((1, DIM), np.float32), 1)):
        with table._gate.alone():
            there.clear()
            thread = threading.Thread(target=call)
            thread.start()
            assert there.wait(20) and thread.is_alive()
        thread.join()
