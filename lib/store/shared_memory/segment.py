"""Memory that outlives its process: rows in a file of /dev/shm, or of a disk that has more room, with a journal of what is being
changed.

A segment is a folder lockstep-NAME (0700) there with two files (0600): `rows`, a page of header and then the rows, which grows in
place, and `journal`. Files and not `multiprocessing.shared_memory`, whose resource tracker would remove a segment when a
process is killed that only attached to it; here a segment stays until whoever has it open closes it, or until `sweep` finds
that process dead. One that is to be taken over (`awaited`) is swept only when nothing was written into its folder for so long.

Guaranteed, for a process that is killed at any moment (the memory itself survives; a loss of power is a checkpoint's affair):
whoever opens the segment next finds its counts and the rows that they count as the last `commit` left them.

Before a call changes such rows it copies them to the journal, and one 8-byte store in the header makes the copy count; `commit`
makes all copies void by another. Whoever finds copies that count lays them back. Rows beyond the counted ones need no copy.

One process at a time has a segment open, by a lock that the kernel drops with the process and that no fork inherits.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lib.errors import BadOption, Damaged, LockstepError

LAYOUT = 3
MAGIC = int.from_bytes(b"lockseg\0", "little")
COUNTS = 3
"""Numbers of a user's own that are kept with the rows; the first is how many rows count."""
_PAGE = 4096
_HEADER = np.dtype(
    {
        "names": ["magic", "layout", "owner", "state", "now", "before", "awaited", "config"],
        "formats": ["i8", "i8", "i8", "i8", f"{COUNTS}i8", f"{COUNTS}i8", "f8", "S2048"],
        "offsets": [0, 8, 16, 24, 32, 32 + 8 * COUNTS, 32 + 16 * COUNTS, _PAGE - 2048],
        "itemsize": _PAGE,
    }
)
"""`state`: 0, or one more than the bytes of the journal that count, or _UNKEPT; `before`: the counts when it was 0."""
_UNKEPT = -1
"""Whoever has it open keeps no journal."""
_OPEN: set[Path] = set()
"""What this process has open: its own locks do not keep it out."""


def folder_of(name: str, root: Path | None = None) -> Path:
    """Where a segment of that name lies; `root` is a folder other than /dev/shm."""
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith("."):
        raise BadOption(f"{name!r} is no name of a segment: letters, digits and . _ - are")
    return (root or _memory()) / f"lockstep-{name}"


def remove(name: str) -> None:
    """Remove a segment, also one whose process was killed. Whoever has it open keeps its memory."""
    shutil.rmtree(folder_of(name), ignore_errors=True)


def sweep(root: Path | None = None) -> list[str]:
    """Remove the segments whose last process is dead; their names."""
    removed = []
    for folder in sorted((root or _memory()).glob("lockstep-*")):
        name = folder.name.removeprefix("lockstep-")
        if folder in _OPEN:
            continue
        with suppress(OSError, IndexError):  # one that is being made, or somebody else's
            [header] = np.fromfile(folder / "rows", _HEADER, 1)
            unseen = time.time() - folder.stat().st_mtime
            if not header["owner"] or _alive(int(header["owner"])) or unseen < header["awaited"]:
                continue
            with open(folder / "journal", "r+b") as journal:
                fcntl.lockf(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed.append(name)
    return removed


class Segment:
    """Rows of uint32 words that are mapped into memory, some counts, and a journal of what is being changed."""

    def __init__(
        self,
        name: str,
        width: int,
        config: dict[str, Any],
        root: Path | None = None,
        journaled: bool = True,
        awaited: float = 0.0,
    ):
        """Open the segment or create it; one that exists must have been made with the same `config`. `awaited`: seconds for which
        it is left to a process that is to take it over.

        What a death left half done is undone: `repaired` says how many rows were laid back. What was open without a journal at a
        death is refused.
        """
        self.name, self.folder = name, folder_of(name, root)
        self._width, self._config, self._process = width, config, os.getpid()
        self.journaled, self.on_disk = journaled, not self.folder.is_relative_to(_memory())
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700, parents=root is not None)
        self._journal = self._locked()
        try:
            self._map(_PAGE)
            self.attached = bool(self._header["magic"])
            """Whether it was there."""
            if self.attached:
                self._check()
            else:
                self._header["layout"], self._header["config"] = LAYOUT, json.dumps(config).encode()
            self._header["owner"], self._header["awaited"] = self._process, awaited
            self._header["magic"] = MAGIC
            self.repaired = self.undo()
            if not journaled:
                self._header["state"] = _UNKEPT
        except BaseException:
            self._let_go()
            raise

    @property
    def counts(self) -> np.ndarray:
        """As the last `commit` left them."""
        return self._header["now"].copy()

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def grow(self, capacity: int) -> None:
        """Have room in `words` for so many rows at least. The ones that are there stay, and so do earlier maps of them."""
        self._map(_PAGE + 4 * self._width * capacity)

    def keep(self, slots: np.ndarray) -> None:
        """Copy those of these rows that count to the journal; all of them may be changed from here on."""
        self._arm()
        counted = slots[slots < self._header["before"][0]]
        for part in (np.array([counted.size]), counted, self.words[counted]):
            self._journal.write(part)
        self._journal.flush()
        self._header["state"] = 1 + self._journal.tell()

    def commit(self, counts: tuple[int, ...]) -> None:
        """What was changed since the last one is what counts, from one instant to the next."""
        self._arm()
        self._header["now"] = counts
        self._header["state"] = 0

    def undo(self) -> int:
        """Lay back what was kept and not committed, the last first; how many rows."""
        state, kept = int(self._header["state"]), []
        self._journal.seek(0)
        while self._journal.tell() < state - 1:
            count = np.fromfile(self._journal, np.int64, 1)[0]
            slots = np.fromfile(self._journal, np.int64, count)
            kept.append((slots, np.fromfile(self._journal, np.uint32, count * self._width)))
        for slots, rows in reversed(kept):
            self.words[slots] = rows.reshape(-1, self._width)
        if state:
            self._header["now"] = self._header["before"]
            self._header["state"] = 0
        return sum(slots.size for slots, _ in kept)

    def close(self, *, remove: bool = True, counts: tuple[int, ...] | None = None) -> None:
        """Let go, and remove it unless another process is to go on with it, with these counts.

        Arrays that are in use stay valid.
        """
        if not self._journal.closed and os.getpid() == self._process:
            if remove:
                shutil.rmtree(self.folder, ignore_errors=True)
            elif counts:
                self.commit(counts)
            self._let_go()

    def _arm(self) -> None:
        if not self._header["state"]:
            self._header["before"] = self._header["now"]
            self._journal.seek(0)
            self._header["state"] = 1

    def _locked(self) -> BinaryIO:
        """The journal, which only this process has; nothing else ever opens it, since any `close` would drop the lock."""
        taken = LockstepError(f"the segment {self.name!r} is open in another process or table")
        if self.folder in _OPEN:
            raise taken
        journal = _file(self.folder / "journal")
        try:
            fcntl.lockf(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            journal.close()
            raise taken from error
        _OPEN.add(self.folder)
        return journal

    def _let_go(self) -> None:
        self._journal.close()
        _OPEN.discard(self.folder)

    def _map(self, size: int) -> None:
        with _file(self.folder / "rows") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)  # want of room is an error here, not a bus error later
            except OSError as error:
                raise LockstepError(f"no room for {size} bytes in {self.folder}: {error.strerror}") from error
            memory = mmap.mmap(file.fileno(), 0)
        self._header = np.ndarray((), _HEADER, memory)
        capacity = (len(memory) - _PAGE) // (4 * self._width)
        self.words = np.ndarray((capacity, self._width), np.uint32, memory, _PAGE)

    def _check(self) -> None:
        if self._header["magic"] != MAGIC or self._header["layout"] != LAYOUT:
            layout = self._header["layout"]
            raise Damaged(f"the segment {self.name!r} has layout {layout}; this version reads {LAYOUT}")
        if self._header["state"] == _UNKEPT:
            raise Damaged(
                f"the segment {self.name!r} was open without a journal when its process died; remove it: rows may be half written"
            )
        found = json.loads(self._header["config"].item())
        for key, value in self._config.items():
            if found.get(key) != value:
                raise BadOption(
                    f"the segment {self.name!r} was made with {key} {found.get(key)!r}, not {value!r}; remove it first"
                )
        if len(self.words) < max(self._header["now"][0], self._header["before"][0]):
            raise Damaged(
                f"the segment {self.name!r} has {len(self.words)} rows, not the {self.counts[0]} that it counts"
            )


def _file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")


def _memory() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
