"""Tables in a file that is mapped into memory: their rows outlive the process, and the next one goes on (Persia, Section 4.2.4).

A segment is a folder `lockstep-NAME` (mode 0700) in /dev/shm, or on a disk that has more room, with two files (0600): `rows`, a
page of header and then the records, which grows in place, and `undo`. It is made under a temporary name and renamed, so a
segment is whole from its first moment. It stays until the process that has it open closes it, or until `remove_orphans` finds
that process dead. Files are used instead of `multiprocessing.shared_memory`, whose resource tracker removes a segment when a
process that only attached to it is killed.

Guaranteed, for a process that is killed at any moment (a loss of power is a checkpoint's affair): the next process that opens
the segment finds counts and records as the last `commit` left them. Before a call changes records it copies them to the undo
file, and one 8-byte store in the header makes the copies count; `commit` makes them void by another. Opening a segment lays back
copies that count. New records need no copy: only the committed ones count.

One process at a time has a segment open, by a lock that the kernel drops with the process. A folder of another user, or one
that others may write to, is never opened or removed.
"""

import errno
import fcntl
import json
import mmap
import os
import re
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import psutil

from lib.errors import BadOption, Damaged, LockstepError
from lib.store.optim import Optimizer
from lib.store.table import Table

MAGIC = int.from_bytes(b"lockseg4", "little")
"""What a file of records starts with; its last letter says how it is laid out."""
NO_UNDO = -1
"""The header's `undo` while a process that keeps no undo records has the segment open."""
_PAGE, _MINUTE = 4096, 60.0
_HEADER = np.dtype("i8,i8,i8,3i8,3i8,S4024")
_HEADER.names = "magic", "owner", "undo", "counts", "before", "config"
"""`undo`: 0, or one more than the bytes of the undo file that count, or NO_UNDO; `before`: the counts when it was 0."""


def folder_of(name: str, root: Path | None = None) -> Path:
    """The folder of a segment of that name; `root` is a folder other than /dev/shm."""
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith("."):
        raise BadOption(f"{name!r} is no name of a segment: letters, digits and . _ - are")
    return (root or _memory()) / f"lockstep-{name}"


def remove(name: str) -> None:
    """Remove a segment, also one whose process was killed. A process that has it open keeps its memory."""
    shutil.rmtree(folder_of(name), ignore_errors=True)


def remove_orphans(root: Path | None = None) -> list[str]:
    """Remove the segments whose last process is dead, and broken ones older than a minute; returns their folders' names."""
    root, removed = root or _memory(), []
    for folder in sorted([*root.glob("lockstep-*"), *root.glob(".lockstep-*")]):
        with suppress(OSError):  # of another user, open in another process, or removed by one
            if _remove_if_orphan(folder):
                removed.append(folder.name)
    return removed


def _remove_if_orphan(folder: Path) -> bool:
    info = folder.lstat()
    if not _private(info):
        return False
    try:
        with _open_private_file(folder / "rows") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            [header] = np.fromfile(file, _HEADER, 1)
            if header["magic"] != MAGIC:
                raise Damaged(f"{folder} is no segment")
            if dead := not psutil.pid_exists(int(header["owner"])):
                shutil.rmtree(folder)
    except (Damaged, ValueError, FileNotFoundError):  # half made: perhaps a process is at it
        if dead := time.time() - info.st_mtime > _MINUTE:
            shutil.rmtree(folder)
    return dead


class Segment:
    """Records that are mapped into memory, three counts (the first is how many records count), and undo records."""

    def __init__(self, name: str, width: int, config: dict[str, Any], root: Path | None, kept: bool):
        """Open the segment or create it; one that exists must have been made with the same `config`.

        `kept`: changes are kept for undo. `repaired` is how many records were laid back after a death.
        """
        self.name, self.folder, self.kept = name, folder_of(name, root), kept
        self._width, self._process = width, os.getpid()
        self.attached = True
        """Whether it was there."""
        self._rows = self._open_locked(config)
        try:
            self._undo = _open_private_file(self.folder / "undo")
            self._map(_PAGE)
            self._check(config)
            self._header["owner"] = self._process
            self.repaired = self.roll_back()
            if not kept:
                self._header["undo"] = NO_UNDO
        except BaseException:
            self._unlock_and_close()
            raise

    def protect_for_process(self, process: int) -> None:
        """Let no `remove_orphans` remove the segment while that process runs."""
        self._header["owner"] = process

    @property
    def counts(self) -> list[int]:
        """The counts as the last `commit` left them."""
        return self._header["counts"].tolist()

    def grow(self, capacity: int) -> np.ndarray:
        """Room for so many records at least; those that are there stay, and so do earlier maps of them."""
        self._map(_PAGE + 4 * self._width * capacity)
        return self.words[:capacity]

    def save_for_undo(self, slots: np.ndarray) -> None:
        """Copy the committed ones of these records to the undo file; all of them may be changed from here on."""
        self._begin_change()
        slots = slots[slots < self._header["before"][0]]
        for part in (np.array([slots.size]), slots, self.words[slots]):
            self._undo.write(part)
        self._undo.flush()
        self._header["undo"] = 1 + self._undo.tell()

    def commit(self, counts: tuple[int, int, int]) -> None:
        """Let all changes since the last commit count, from one instant to the next."""
        self._begin_change()
        self._header["counts"] = counts
        self._header["undo"] = 0

    def roll_back(self) -> int:
        """Lay back what was kept and not committed, the last first; how many records."""
        end, kept = int(self._header["undo"]), []
        self._undo.seek(0)
        while self._undo.tell() < end - 1:
            [count] = np.fromfile(self._undo, np.int64, 1)
            slots = np.fromfile(self._undo, np.int64, count)
            kept.append((slots, np.fromfile(self._undo, np.uint32, count * self._width)))
        for slots, records in reversed(kept):
            self.words[slots] = records.reshape(-1, self._width)
        if end:
            self._header["counts"] = self._header["before"]
            self._header["undo"] = 0
        return sum(slots.size for slots, _ in kept)

    def close(self, *, remove: bool = True, counts: tuple[int, int, int] | None = None) -> None:
        """Let go of the segment; remove it, or leave it with these counts. Arrays that are in use stay valid."""
        if os.getpid() == self._process and not self._rows.closed:  # a fork leaves its parent's alone
            if remove:
                shutil.rmtree(self.folder, ignore_errors=True)
            elif counts:
                self.commit(counts)
            self._undo.close()
            self._unlock_and_close()

    def _unlock_and_close(self) -> None:
        fcntl.flock(self._rows, fcntl.LOCK_UN)  # maps that are in use would keep the lock
        self._rows.close()

    def _begin_change(self) -> None:
        """Remember the counts, for the first change since a commit."""
        if not self._header["undo"]:
            self._header["before"] = self._header["counts"]
            self._undo.seek(0)
            self._header["undo"] = 1

    def _open_locked(self, config: dict[str, Any]) -> BinaryIO:
        """The file of records, with its lock."""
        for _ in range(100):
            if not os.path.lexists(self.folder):
                self.attached = not self._create(config)
            with suppress(FileNotFoundError, BlockingIOError), ExitStack() as stack:
                file = stack.enter_context(_open_private_file(self.folder / "rows"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.folder / "rows")):
                    stack.pop_all()
                    return file
            time.sleep(0.005)  # removed meanwhile, or a sweep is looking at it
        raise LockstepError(f"the segment {self.name!r} is open in another process or table")

    def _create(self, config: dict[str, Any]) -> bool:
        """Make the segment, unless another process is first; whether it was made."""
        header = np.zeros((), _HEADER)
        header["magic"], header["owner"] = MAGIC, self._process
        header["config"] = json.dumps(config).encode()
        root = self.folder.parent
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".lockstep-", dir=root) as temporary:
                made = Path(temporary) / "segment"
                made.mkdir(mode=0o700)
                (made / "undo").touch()
                (made / "rows").write_bytes(header.tobytes())
                made.rename(self.folder)
        except OSError as error:
            if root.is_dir() and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            raise LockstepError(f"no segment can be made in {root}: {error.strerror}") from error
        return True

    def _map(self, size: int) -> None:
        try:
            os.posix_fallocate(self._rows.fileno(), 0, size)  # want of room is an error here, not a bus error later
        except OSError as error:
            raise LockstepError(f"no room for {size} bytes in {self.folder}: {error.strerror}") from error
        memory = mmap.mmap(self._rows.fileno(), 0)
        self._header = np.ndarray((), _HEADER, memory)
        self.words = np.ndarray(((len(memory) - _PAGE) // (4 * self._width), self._width), np.uint32, memory, _PAGE)

    def _check(self, config: dict[str, Any]) -> None:
        header = self._header
        if header["magic"] != MAGIC:
            raise Damaged(f"{self.folder} is no segment of this version; remove it")
        if header["undo"] == NO_UNDO:
            raise Damaged(f"the segment {self.name!r} was open without a journal when its process died; remove it")
        found = json.loads(header["config"].item())
        for key, value in config.items():
            if found.get(key) != value:
                made = f"the segment {self.name!r} was made with {key} {found.get(key)!r}"
                raise BadOption(f"{made}, not {value!r}; remove it first")
        if len(self.words) < max(header["counts"][0], header["before"][0]):
            raise Damaged(f"the segment {self.name!r} has {len(self.words)} rows, not the {self.counts[0]} it counts")


class SharedTable(Table):
    """A `Table` in the segment `name`: created there, or found there with all that it held. With `root`, a folder on a disk, it
    may be larger than the memory.

    Guaranteed in addition to what `Table` guarantees: a process that is killed in the midst of a call leaves the rows as they
    were before that call, and a call that fails changes nothing. That a call looked a row up is not undone. The index is the
    process's own.

    Without `journal` a call spares its copies of all rows that it changes, and calls meet as `locking` says; but a call that
    fails may have changed some rows, and a segment that a killed process leaves cannot be opened.
    """

    segment: Segment | None = None

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer,
        *,
        name: str,
        journal: bool = True,
        root: Path | None = None,
        **options: Any,
    ):
        capacity = options.pop("capacity", 1024)
        options |= {"locking": "table"} if journal else {}
        super().__init__(dim, optimizer, capacity=1, **options)
        config = {"optimizer": type(optimizer).__name__, **asdict(optimizer), "max_rows": self.max_rows}
        config |= {"dim": self.dim, "seed": self.seed, "scale": self.scale}
        self.segment = Segment(name, self._width, config, root, journal)
        weakref.finalize(self, self.segment.close)
        self.attached, self.repaired = self.segment.attached, self.segment.repaired
        self._resume_from_segment(capacity)

    def close(self, *, remove: bool = True) -> None:
        """Let go of the segment, and remove it unless another process is to go on with it."""
        self.segment.close(remove=remove, counts=(self._count, self.lost, self.evicted))

    def _resume_from_segment(self, capacity: int = 0) -> None:
        """Go on with what the segment has."""
        self._count, self.lost, self.evicted = self.segment.counts
        self._queue = self._queue[:0]
        self._resize(max(capacity, len(self.segment.words)))
        if self.max_rows is not None:
            self._calls = int(self._words[: self._count, -1].max(initial=0))

    @contextmanager
    def _exclusive_change(self) -> Iterator[None]:
        """Exclude all other calls; what the call changes is done wholly or not at all."""
        with super()._exclusive_change():
            try:
                yield
            except BaseException:
                if self.segment.kept:
                    self.segment.roll_back()
                    self._resume_from_segment()
                raise
            if self.segment.kept:
                self.segment.commit((self._count, self.lost, self.evicted))

    def _before_change(self, slots: np.ndarray) -> None:
        if self.segment.kept:
            self.segment.save_for_undo(slots)

    def _larger_records(self, capacity: int) -> np.ndarray:
        return self.segment.grow(capacity) if self.segment else super()._larger_records(capacity)


def _open_private_file(path: Path) -> BinaryIO:
    """A regular file in a private folder of this user."""
    if not _private(path.parent.lstat()):
        raise Damaged(f"{path.parent} is no private folder of this user (mode 0700); remove it or choose another place")
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Damaged(f"{path} is no regular file; remove {path.parent}")
    return os.fdopen(handle, "r+b")


def _private(folder: os.stat_result) -> bool:
    return stat.S_ISDIR(folder.st_mode) and stat.S_IMODE(folder.st_mode) == 0o700 and folder.st_uid == os.getuid()


def _memory() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())
