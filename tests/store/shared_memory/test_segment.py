"""Shared memory: who may see it, who removes it, and that a process may be killed at any moment."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lib.errors import BadOption, Damaged, LockstepError
from lib.store.shared_memory import segment
from lib.store.shared_memory.segment import Segment

pytestmark = pytest.mark.usefixtures("own_memory")

WIDTH = 8


@pytest.fixture
def name():
    """A segment's name that is free, and free again afterwards."""
    name = f"test-{os.getpid()}"
    segment.remove(name)
    yield name
    segment.remove(name)


def opened(name):
    return Segment(name, WIDTH, {"width": WIDTH})


def made(name, rows=50):
    """A segment of so many rows of zeros, whose second count is the last step that it has seen."""
    made = opened(name)
    made.keep(np.arange(0))
    made.grow(rows)
    made.words[:rows] = 0
    made.commit((rows, -1, 0))
    return made


def step(held: Segment, number: int) -> None:
    """One update as a table makes it: some rows get the step's number, first their left halves, then the right ones."""
    rng = np.random.default_rng(number)
    rows = int(held.counts[0])
    held.keep(np.arange(0))
    if number % 10 == 9:
        held.grow(rows + 3)
        held.words[rows : rows + 3] = 0
        rows += 3
    slots = rng.integers(0, rows, 20)
    for some in np.split(slots, 2):
        held.keep(some)
    for half in (slice(0, WIDTH // 2), slice(WIDTH // 2, WIDTH)):
        for slot in slots:
            held.words[slot, half] = number
    held.commit((rows, number, 0))


def expected(last: int) -> np.ndarray:
    words = np.zeros((50, WIDTH), np.uint32)
    for number in range(last + 1):
        if number % 10 == 9:
            words = np.concatenate([words, np.zeros((3, WIDTH), np.uint32)])
        words[np.random.default_rng(number).integers(0, len(words), 20)] = number
    return words


def holds(held: Segment, last: int) -> bool:
    rows, number, _ = held.counts
    return number == last and np.array_equal(held.words[:rows], expected(last))


def in_a_child(work) -> int:
    """The process of a fork that does `work` and never comes back."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def waiting(name) -> int:
    """A child that has made the segment and waits for its death."""

    def work():
        made(name)
        os.write(write, b"!")
        signal.pause()

    read, write = os.pipe()
    child = in_a_child(work)
    os.read(read, 1)
    return child


def test_it_is_private_and_goes_with_whoever_has_it_open(name):
    held = made(name)
    assert stat.S_IMODE(held.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in held.folder.iterdir()} == {0o600}
    words = held.words
    held.close()
    assert not held.folder.exists()
    assert not words[:50].any(), "what is still in use stays valid"


def test_it_is_found_again_with_all_that_was_committed(name):
    held = made(name)
    for number in range(25):
        step(held, number)
    assert held.nbytes > 56 * WIDTH * 4
    held.close(remove=False)
    again = opened(name)
    assert again.attached and again.repaired == 0 and holds(again, 24)
    again.close()
    again = opened(name)
    assert not again.attached and again.counts.tolist() == [0, 0, 0]
    again.close()


@pytest.mark.parametrize("steps", [5, 9, 10, 23])
@pytest.mark.parametrize("place", ["armed", "kept", "half", "grown"])
def test_what_was_not_committed_is_undone(name, steps, place):
    held = made(name)
    for number in range(steps):
        step(held, number)
    slots = np.arange(0, 40, 3)
    held.keep(slots if place != "armed" else slots[:0])
    if place in ("half", "grown"):
        held.words[slots, : WIDTH // 2] = 99
        held.keep(slots)  # what is kept again later is not what was there first
    if place == "grown":
        held.grow(500)
        held.words[60:500] = 7
    held.close(remove=False)
    again = opened(name)
    assert again.repaired == {"armed": 0, "kept": slots.size}.get(place, 2 * slots.size)
    assert again.undo() == 0 and holds(again, steps - 1)
    for number in range(steps, steps + 12):  # and it goes on
        step(again, number)
    assert holds(again, steps + 11)
    again.close()


def test_killed_at_any_moment_every_row_is_as_before_or_after_its_update(name):
    """A child is killed thirty times and more, of which some in mid-update; the next one goes on where the last update that was
    finished ended."""
    made(name).close(remove=False)
    rng, kills, undone, last = np.random.default_rng(0), 0, 0, -1

    def work():
        held = opened(name)
        for number in range(int(held.counts[1]) + 1, 10**9):
            step(held, number)

    while kills < 30 or undone <= 5 or last <= 30:  # a busy machine lets a child do as little as it likes
        kills += 1
        assert kills < 300
        child = in_a_child(work)
        time.sleep(rng.uniform(0.005, 0.04))
        killed(child)
        held = opened(name)
        undone += held.repaired > 0
        assert held.counts[1] >= last
        last = int(held.counts[1])
        assert holds(held, last)
        held.close(remove=False)


def test_a_live_process_keeps_others_out(name):
    held = made(name)
    with pytest.raises(LockstepError, match="is open in another process or table"):
        opened(name)
    child = in_a_child(lambda: (segment._OPEN.clear(), opened(name), os._exit(0)))
    assert os.waitpid(child, 0)[1] != 0
    child = in_a_child(lambda: time.sleep(60))
    held.close(remove=False)
    opened(name).close(remove=False)  # a fork, which lives on, holds no lock of its parent's
    killed(child)


def test_a_fork_that_ends_leaves_its_parents_segment_alone(name):
    held = made(name)
    child = in_a_child(lambda: (held.close(), os._exit(0)))
    assert os.waitpid(child, 0)[1] == 0
    assert held.folder.exists()
    step(held, 0)
    assert holds(held, 0)
    held.close()


def test_orphans_are_swept(name):
    child = waiting(name)
    assert name not in segment.sweep(), "its process lives"
    killed(child)
    assert name in segment.sweep() and not segment.folder_of(name).exists()
    made(name).close(remove=False)
    assert name not in segment.sweep(), "this process lives"


def test_a_restarted_process_may_take_it_over(name):
    killed(waiting(name))
    held = opened(name)
    assert held.attached and holds(held, -1)
    assert name not in segment.sweep(), "it is this process's now"
    held.close()
    assert not held.folder.exists()


def test_a_table_that_a_process_leaves_behind_goes_with_it(name):
    program = "from lib.store.shared_memory.table import SharedTable; from lib.store.optim import SGD; "
    program += f"table = SharedTable(2, SGD(lr=1.0), name={name!r}, seed=0); table.pull([1]); "
    program += "print(table.segment.folder, table.segment.folder.exists())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=300)
    folder, there = done.stdout.split()
    assert (done.returncode, there, done.stderr) == (0, "True", "")
    assert not Path(folder).exists()


def test_what_does_not_fit_is_named(name):
    made(name).close(remove=False)
    with pytest.raises(BadOption, match="was made with width 8, not 9; remove it first"):
        Segment(name, 9, {"width": 9})
    with pytest.raises(BadOption, match=r"'../x' is no name of a segment"):
        opened("../x")
    held = opened(name)
    with pytest.raises(LockstepError, match="no room for"):
        held.grow(2**50)
    held.close(remove=False)
    rows = segment.folder_of(name) / "rows"
    os.truncate(rows, 4096 + 8 * WIDTH * 4)
    with pytest.raises(Damaged, match="has 8 rows, not the 50 that it counts"):
        opened(name)
    with open(rows, "r+b") as file:
        file.seek(8)
        file.write(bytes([99]))
    with pytest.raises(Damaged, match="has layout 99; this version reads 3"):
        opened(name)
