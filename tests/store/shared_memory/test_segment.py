"""Shared memory: who may see it, who removes it, and that a process may be killed at any moment."""

import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from lib.errors import BadOption, Damaged, LockstepError
from lib.store.shared_memory import segment
from lib.store.shared_memory.segment import Segment

WIDTH = 8


@pytest.fixture
def name(request):
    """A segment's name that is free, and free again afterwards."""
    name = f"test-{os.getpid()}"
    segment.remove(name)
    yield name
    segment.remove(name)


def made(name, rows=50):
    made = Segment(name, config={"width": WIDTH})
    made.arm()
    made.allocate("words", (rows, WIDTH), np.int64)[:] = 0
    made.counts[0] = -1
    made.commit()
    return made


def step(held: Segment, number: int) -> None:
    """One update as a table makes it: some rows get the step's number, first their left halves, then the right ones."""
    rng = np.random.default_rng(number)
    held.arm()
    words = held.arrays()["words"]
    if number % 10 == 9:
        grown = held.allocate("words", (len(words) + 3, WIDTH), np.int64)
        grown[: len(words)] = words
        words = grown
    slots = rng.integers(0, len(words), 20)
    held.keep("words", slots)
    for half in (slice(0, WIDTH // 2), slice(WIDTH // 2, WIDTH)):
        for slot in slots:
            words[slot, half] = number
    held.counts[0] = number
    held.commit()


def expected(last: int) -> np.ndarray:
    words = np.zeros((50, WIDTH), np.int64)
    for number in range(last + 1):
        if number % 10 == 9:
            words = np.concatenate([words, np.zeros((3, WIDTH), np.int64)])
        words[np.random.default_rng(number).integers(0, len(words), 20)] = number
    return words


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


def test_it_is_private_and_goes_with_its_owner(name):
    held = made(name)
    assert name in segment.names()
    assert stat.S_IMODE(held.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in held.folder.iterdir()} == {0o600}
    words = held.arrays()["words"]
    held.close()
    assert name not in segment.names()
    assert not words.any(), "what is still in use stays valid"
    assert not segment.remove(name)


def test_it_is_found_again_with_all_that_was_committed(name):
    held = made(name)
    for number in range(25):
        step(held, number)
    assert held.nbytes > 59 * WIDTH * 8
    held.close(remove=False)
    with Segment(name, config={"width": WIDTH}) as again:
        assert again.attached and not again.armed and again.restore() == {}
        assert np.array_equal(again.arrays()["words"], expected(24)) and again.counts[0] == 24
        assert len([path for path in again.folder.iterdir() if path.name.startswith("words")]) == 1
    assert name in segment.names(), "only its owner removes it"


@pytest.mark.parametrize("steps", [5, 9, 10, 23])
@pytest.mark.parametrize("place", ["armed", "kept", "half", "linked"])
def test_what_was_armed_is_undone(name, steps, place):
    held = made(name)
    for number in range(steps):
        step(held, number)
    held.arm()
    slots = np.arange(0, 40, 3)
    if place != "armed":
        held.keep("words", slots)
    if place in ("half", "linked"):
        held.arrays()["words"][slots, : WIDTH // 2] = -1
        held.counts[0] = 10**6
    if place == "linked":
        held.allocate("words", (500, WIDTH), np.int64)
    held.close(remove=False)
    with Segment(name) as again:
        assert again.armed
        assert again.restore() == {"words": 0 if place == "armed" else slots.size}
        assert not again.armed
        assert np.array_equal(again.arrays()["words"], expected(steps - 1)) and again.counts[0] == steps - 1
        for number in range(steps, steps + 12):  # and it goes on
            step(again, number)
        assert np.array_equal(again.arrays()["words"], expected(steps + 11))


def test_killed_at_any_moment_every_row_is_as_before_or_after_its_update(name):
    """A child is killed thirty times in mid-update; the next one goes on where the last update that was finished ended."""
    made(name).close(remove=False)
    rng, undone, last = np.random.default_rng(0), 0, -1

    def work():
        held = Segment(name)
        held.restore()
        for number in range(int(held.counts[0]) + 1, 10**9):
            step(held, number)

    for _ in range(30):
        child = in_a_child(work)
        time.sleep(rng.uniform(0.005, 0.04))
        killed(child)
        with Segment(name) as held:
            undone += held.armed
            held.restore()
            assert held.counts[0] >= last
            last = int(held.counts[0])
            assert np.array_equal(held.arrays()["words"], expected(last))
            held.close(remove=False)
    assert last > 30 and undone > 5, "most of its time a child is in the midst of an update"


def test_a_live_process_keeps_others_out(name):
    held = made(name)
    with pytest.raises(LockstepError, match="is open in another process or table"):
        Segment(name)
    child = in_a_child(lambda: (Segment(name), time.sleep(60)))  # a fork holds no lock of its parent's
    assert os.waitpid(child, 0)[1] != 0
    child = in_a_child(lambda: time.sleep(60))
    held.close(remove=False)
    Segment(name).close(remove=False)  # though the fork lives on
    killed(child)


def test_orphans_are_swept(name):
    def work():
        made(name)
        signal.pause()

    child = in_a_child(work)
    while name not in segment.names() or not (segment.folder_of(name) / "layout.1").exists():
        time.sleep(0.01)
    assert name not in segment.sweep(), "its owner lives"
    killed(child)
    assert name in segment.sweep() and name not in segment.names()
    made(name).close(remove=False)
    assert name not in segment.sweep(), "this process owns it still"


def test_a_restarted_process_may_take_it_over(name):
    def work():
        made(name)
        signal.pause()

    child = in_a_child(work)
    while not (segment.folder_of(name) / "layout.1").exists():
        time.sleep(0.01)
    killed(child)
    held = Segment(name)
    assert held.owner == child
    held.own()
    assert held.owner == os.getpid()
    held.close()
    assert name not in segment.names()


def test_a_segment_that_is_closed_late_leaves_its_namesake_alone(name):
    old = Segment(name)
    segment.remove(name)
    new = Segment(name)
    old.close()
    assert name in segment.names()
    new.close()
    assert name not in segment.names()


@pytest.mark.parametrize("handed_on", [False, True])
def test_a_process_that_ends_removes_what_it_owns_without_a_word(name, handed_on):
    program = "from lib.store.shared_memory.segment import Segment; "
    program += f"s = Segment({name!r}); s.arm(); s.allocate('a', (9,), 'i8'); s.commit()"
    program += f"; s.close(remove=False); t = Segment({name!r}); assert t.attached" if handed_on else ""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert name not in segment.names()


def test_what_does_not_fit_is_named(name):
    made(name).close(remove=False)
    with pytest.raises(BadOption, match="was made with width 8, not 9; remove it first"):
        Segment(name, config={"width": 9})
    with pytest.raises(BadOption, match=r"'../x' is no name of a segment"):
        Segment("../x")
    with pytest.raises(LockstepError, match="there is no segment 'nobody'"):
        Segment("nobody", create=False)
    with Segment(name) as held:
        with pytest.raises(LockstepError, match="no room for"):
            held.allocate("huge", (2**50,), np.uint8)
        with pytest.raises(BadOption, match="'journal' is no name of an array"):
            held.allocate("journal", (1,), np.uint8)
        held.close(remove=False)
    os.truncate(segment.folder_of(name) / "words.1", 8)
    with pytest.raises(Damaged, match=r"words\.1 has 8 bytes, not 3200"):
        Segment(name)
    with open(segment.folder_of(name) / "header", "r+b") as file:
        file.seek(8)
        file.write(bytes([99]))
    with pytest.raises(Damaged, match="has layout 99; this version reads 2"):
        Segment(name)
