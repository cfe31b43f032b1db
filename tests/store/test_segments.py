"""Segments of shared memory: who may see them, who removes them, and what a killed process leaves."""

import os
import signal
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from lib.errors import BadOption, Damaged, LockstepError
from lib.store import shared_memory
from lib.store.shared_memory import Segment, folder_of, remove_orphans

pytestmark = pytest.mark.usefixtures("own_memory")

WIDTH = 8
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
        segment.save_for_undo(slots)
        segment.words[slots] = 99
        segment.save_for_undo(slots)
        segment.grow(500)[60:] = 7
        segment.close(remove=False)
        again = opened()
        assert again.attached and again.repaired == 2 * slots.size and again.roll_back() == 0
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
        assert remove_orphans() == [], "its process lives"
        killed(child)
        assert remove_orphans() == ["lockstep-test"] and not folder_of(NAME).exists()
        made().close(remove=False)
        assert remove_orphans() == [], "this process lives"

    def test_a_restarted_process_may_take_one_over(self):
        killed(waiting())
        segment = opened()
        assert segment.attached and segment.counts == [50, -1, 0]
        assert remove_orphans() == [], "it is this process's now"
        segment.close()

    @pytest.mark.parametrize("content", [b"", b"lockseg", b"x" * 9000])
    def test_a_broken_one_breaks_nothing_and_goes_after_a_minute(self, content):
        """Such as an empty `rows`, which a full disk or a kill would leave if a segment were made in place."""
        folder = folder_of("broken")
        folder.mkdir(mode=0o700)
        (folder / "rows").write_bytes(content)
        assert remove_orphans() == []
        old(folder)
        assert remove_orphans() == ["lockstep-broken"]
        assert list(shared_memory._memory().iterdir()) == []

    def test_a_half_made_one_goes_after_a_minute(self):
        half = shared_memory._memory() / ".lockstep-abc"
        half.mkdir(mode=0o700)
        assert remove_orphans() == []
        old(half)
        assert remove_orphans() == [".lockstep-abc"]

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
        assert remove_orphans() == []
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

    @pytest.mark.parametrize("disturbed", [False, True])
    def test_processes_that_start_at_once_do_not_see_half_a_segment(self, disturbed):
        """One makes and removes segments while another sweeps, which keeps it from none, and another opens the same."""

        def make():
            for number in range(300):
                try:
                    opened(f"a-{number}").close()
                except LockstepError as error:
                    if not disturbed or "is open in another process" not in str(error):
                        os._exit(7)
            os._exit(0)

        def sweeping():
            while True:
                remove_orphans()

        def disturb():
            while True:
                for folder in shared_memory._memory().glob("lockstep-a-*"):
                    try:
                        opened(folder.name.removeprefix("lockstep-")).close()
                    except (LockstepError, BadOption) as error:
                        if "is open in another process" not in str(error):
                            os._exit(7)

        others = [in_a_child(sweeping), *([in_a_child(disturb)] if disturbed else [])]
        status = os.waitpid(in_a_child(make), 0)[1]
        for each in others:
            killed(each)
        assert status == 0
