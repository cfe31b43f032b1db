"""Shared memory that outlives a process: arrays in named files of /dev/shm, and a table that lives in them.

A segment is a folder /dev/shm/lockstep-NAME (0700) with a file (0600) for each array of each generation, a header and a journal.
Files and not `multiprocessing.shared_memory`, whose resource tracker would remove a segment when a process is killed that
only attached to it; here a segment stays until its owner closes it, or until `sweep` finds its owner dead.

Guaranteed, for a process that is killed at any moment (the memory itself survives; a loss of power is a checkpoint's affair):
- a table that is opened again holds every update that was finished, and each row that was being written as it was before.

Before a call changes rows, it arms the journal by one 8-byte store and copies them there, and it disarms it by another when
it is done; so whoever finds it armed lays the old rows back. New arrays of a table that grows are another generation, whose
number stands in the same 8 bytes: growth is undone alike.

One process at a time has a segment open (a lock that the kernel drops with the process).
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import mmap
import os
import re
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadOption, Damaged, LockstepError

LAYOUT = 2
MAGIC = int.from_bytes(b"lockseg\0", "little")
_PAGE = 4096
_FIELDS = ("magic", "layout", "owner", "born", "state", "entries", "length")
_COUNTS = 16
"""Room for a user's own numbers, of now and as they were when the journal was armed."""
_NOW, _BEFORE = len(_FIELDS), len(_FIELDS) + _COUNTS


def folder_of(name: str) -> Path:
    """Where a segment of that name lies."""
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith("."):
        raise BadOption(f"{name!r} is no name of a segment: letters, digits and . _ - are")
    return _root() / f"lockstep-{name}"


def names() -> list[str]:
    """Every segment of this machine that this user may see."""
    return sorted(path.name.removeprefix("lockstep-") for path in _root().glob("lockstep-*") if path.is_dir())


def remove(name: str) -> bool:
    """Remove a segment, also one whose process was killed; whether there was one. Whoever has it open keeps its memory."""
    folder = folder_of(name)
    found = folder.is_dir()
    shutil.rmtree(folder, ignore_errors=True)
    return found


def sweep() -> list[str]:
    """Remove the segments whose owner is dead and that nobody has open; their names."""
    removed = []
    for name in names():
        try:
            segment = Segment(name, create=False)
        except (LockstepError, OSError):
            continue
        orphan = not _alive(segment.owner, segment.born)
        segment.close(remove=orphan)
        if orphan:
            removed.append(name)
    return removed


class Segment:
    """Named arrays in shared memory, some counts, and a journal of what is being changed."""

    def __init__(self, name: str, *, create: bool = True, config: dict[str, Any] | None = None):
        """Open the segment or create it; the header of one that exists must have been made with the same `config`."""
        self.name, self.folder = name, folder_of(name)
        self._arrays: dict[str, np.ndarray] = {}
        self._fresh: set[str] = set()
        self._journals: dict[int, np.ndarray] = {}
        self._handle = -1
        if create:
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
        try:
            self._open(create)
            self.attached = bool(self._word("magic"))
            if self.attached:
                self._check(config)
            elif create:
                self._write_header({} if config is None else config)
            else:
                raise Damaged(f"the segment {name!r} has no header: its process died while it was made; remove it")
        except BaseException:
            self._let_go()
            raise
        self._owns = not self.attached
        _OPEN.add(self)
        if self._owns:
            _MADE.add(name)

    @property
    def owner(self) -> int:
        """The process that is to remove the segment."""
        return self._word("owner")

    @property
    def born(self) -> int:
        """When the owner started, in the kernel's ticks: process numbers come again."""
        return self._word("born")

    @property
    def armed(self) -> bool:
        """Whether a change is under way."""
        return bool(self._word("state") & 1)

    @property
    def generation(self) -> int:
        return self._word("state") >> 1

    @property
    def counts(self) -> np.ndarray:
        """int64[16] for the user; the journal puts them back too."""
        return self._head[_NOW:_BEFORE]

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def own(self) -> None:
        """Make this process the one that removes the segment: at `close` or at its end; `sweep` does after its death."""
        self._set("born", _born(os.getpid()))
        self._set("owner", os.getpid())
        self._owns = True
        _MADE.add(self.name)

    def allocate(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A zeroed array in the place of the one of that name, once `commit` is called; a death before leaves the old one."""
        if name in ("journal", "layout", "header") or not name.isidentifier():
            raise BadOption(f"{name!r} is no name of an array in a segment")
        array = self._map(self._file(name, self.generation + 1), tuple(shape), np.dtype(dtype), create=True)
        self._arrays[name] = array
        self._fresh.add(name)
        return array

    def arrays(self) -> dict[str, np.ndarray]:
        """Name -> array, as the last commit left them or as they were allocated since."""
        return dict(self._arrays)

    def arm(self) -> None:
        """From here on until `commit`, a death puts the counts back, and what `keep` was given."""
        if not self.armed:
            self._set("entries", 0)
            self._head[_BEFORE : _BEFORE + _COUNTS] = self.counts
            self._set("state", self._word("state") | 1)

    def keep(self, name: str, slots: np.ndarray, columns: slice = slice(None)) -> None:
        """Copy these rows of an array, or some columns of them, to the journal; they may be changed from here on."""
        if name in self._fresh:
            return  # a death leaves the generation before
        part = _as_rows(self._arrays[name])[:, columns]
        which, first = sorted(self._arrays).index(name), columns.start or 0
        number = self._word("entries")
        journal = self._journal(number, 32 + slots.size * (8 + part.shape[1] * part.itemsize))
        journal[:32].view(np.int64)[:] = which, first, part.shape[1], slots.size
        kept, block = _entry(journal, part)
        kept[:] = slots
        if part.flags.c_contiguous:
            np.take(part, slots, axis=0, out=block, mode="clip")  # into its place, and not by way of another array
        else:
            block[:] = part[slots]
        self._set("entries", number + 1)

    def commit(self) -> None:
        """What was changed is what counts, from one instant to the next."""
        state = self._word("state")
        if not self._fresh:
            self._set("state", state & ~1)
            return
        following = (state >> 1) + 1
        for name in self._arrays:
            if name not in self._fresh:
                os.link(self._file(name, state >> 1), self._file(name, following))
        self._describe(following)
        self._set("state", following << 1)
        self._fresh.clear()
        self._clear_away()

    def restore(self) -> dict[str, int]:
        """Undo what was armed and not committed; how many rows of each array were laid back."""
        if not self.armed:
            return {}
        self._load()
        laid, ordered = dict.fromkeys(self._arrays, 0), sorted(self._arrays)
        for number in reversed(range(self._word("entries"))):
            journal = self._map_bytes(self.folder / f"journal.{number}")
            which, first, width, _ = journal[:32].view(np.int64)
            part = _as_rows(self._arrays[ordered[which]])[:, first : first + width]
            slots, block = _entry(journal, part)
            part[slots] = block
            laid[ordered[which]] += slots.size
        self.counts[:] = self._head[_BEFORE : _BEFORE + _COUNTS]
        self._set("state", self._word("state") & ~1)
        self._clear_away()
        return laid

    def close(self, *, remove: bool | None = None) -> None:
        """Let go; its owner removes it. Arrays that are still in use stay valid until they are given up."""
        if self._handle >= 0:
            if (self._owns if remove is None else remove) and self._there():
                shutil.rmtree(self.folder, ignore_errors=True)
            self._let_go()

    def _there(self) -> bool:
        """Whether what has this name is still this segment: it may have been removed, and another been made."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._handle), os.stat(self.folder / "header"))
        return False

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def _open(self, create: bool) -> None:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        try:
            self._handle = os.open(self.folder / "header", flags, 0o600)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError as error:
            raise LockstepError(
                f"there is no segment {self.name!r}; there are: {', '.join(names()) or 'none'}"
            ) from error
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LockstepError(f"the segment {self.name!r} is open in another process or table") from error
            raise
        if os.fstat(self._handle).st_size < _PAGE:
            os.ftruncate(self._handle, _PAGE)
        self._head = self._map_bytes(self.folder / "header").view(np.int64)  # by another handle: a map keeps its own

    def _check(self, config: dict[str, Any] | None) -> None:
        if self._word("magic") != MAGIC or self._word("layout") != LAYOUT:
            raise Damaged(f"the segment {self.name!r} has layout {self._word('layout')}; this version reads {LAYOUT}")
        described = self._described()
        for key, value in (config or {}).items():
            if described["config"].get(key) != value:
                found = described["config"].get(key)
                raise BadOption(
                    f"the segment {self.name!r} was made with {key} {found!r}, not {value!r}; remove it first"
                )
        self._load()
        if not self.armed:
            self._clear_away()

    def _write_header(self, config: dict[str, Any]) -> None:
        self._head[:] = 0
        self._set("layout", LAYOUT)
        self._set("born", _born(os.getpid()))
        self._set("owner", os.getpid())
        _put(self.folder / "layout.0", json.dumps({"config": config, "arrays": {}}))
        self.config = config
        self._set("magic", MAGIC)

    def _describe(self, generation: int) -> None:
        arrays = {name: [array.dtype.str, list(array.shape)] for name, array in self._arrays.items()}
        _put(self.folder / f"layout.{generation}", json.dumps({"config": self.config, "arrays": arrays}))

    def _described(self) -> dict[str, Any]:
        path = self.folder / f"layout.{self.generation}"
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise Damaged(f"the segment {self.name!r}: {path.name} cannot be read: {error}") from error

    def _load(self) -> None:
        described = self._described()
        self.config = described["config"]
        self._arrays, self._fresh = {}, set()
        for name, (dtype, shape) in described["arrays"].items():
            self._arrays[name] = self._map(self._file(name, self.generation), tuple(shape), np.dtype(dtype))

    def _clear_away(self) -> None:
        """Files of other generations than the one that counts."""
        for path in self.folder.iterdir():
            stem, _, number = path.name.rpartition(".")
            if number.isdecimal() and stem != "journal" and int(number) != self.generation:
                path.unlink()

    def _journal(self, number: int, size: int) -> np.ndarray:
        """Room in the number-th file of the journal; a larger one takes its place while it counts for nothing."""
        path, known = self.folder / f"journal.{number}", self._journals.get(number)
        if known is None or known.size < size:
            path.unlink(missing_ok=True)
            known = self._map(path, (2 * size,), np.dtype(np.uint8), create=True)
            self._journals[number] = known
        return known

    def _map(self, path: Path, shape: tuple[int, ...], dtype: np.dtype, create: bool = False) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if create:
            path.unlink(missing_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                if size:
                    os.posix_fallocate(handle, 0, size)  # a full /dev/shm is an error here, not a bus error later
            except OSError as error:
                os.close(handle)
                path.unlink()
                raise LockstepError(f"no room for {size} bytes in {path.parent}: {error.strerror}") from error
            os.close(handle)
        elif path.stat().st_size != size:
            raise Damaged(f"the segment {self.name!r}: {path.name} has {path.stat().st_size} bytes, not {size}")
        return self._map_bytes(path).view(dtype).reshape(shape)

    def _map_bytes(self, path: Path) -> np.ndarray:
        handle = os.open(path, os.O_RDWR)
        try:
            size = os.fstat(handle).st_size
            return np.frombuffer(mmap.mmap(handle, size), np.uint8) if size else np.empty(0, np.uint8)
        finally:
            os.close(handle)

    def _file(self, name: str, generation: int) -> Path:
        return self.folder / f"{name}.{generation}"

    def _word(self, field: str) -> int:
        return int(self._head[_FIELDS.index(field)])

    def _set(self, field: str, value: int) -> None:
        self._head[_FIELDS.index(field)] = value

    def _let_go(self) -> None:
        if self._handle >= 0:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            os.close(self._handle)
        self._handle, self._arrays, self._fresh = -1, {}, set()


_OPEN: weakref.WeakSet[Segment] = weakref.WeakSet()
_MADE: set[str] = set()
"""Segments that this process owned at some time."""


def _in_child() -> None:
    """A forked child would hold the parent's lock beyond its death."""
    for segment in list(_OPEN):
        if segment._handle >= 0:
            os.close(segment._handle)
            segment._handle = -1
    _OPEN.clear()
    _MADE.clear()


os.register_at_fork(after_in_child=_in_child)


@atexit.register
def _at_the_end() -> None:
    for segment in list(_OPEN):
        segment.close()
    for name in _MADE:
        with suppress(OSError, ValueError, IndexError):
            head = np.fromfile(folder_of(name) / "header", np.int64, len(_FIELDS))
            if head[_FIELDS.index("owner")] == os.getpid() and head[_FIELDS.index("born")] == _born(os.getpid()):
                remove(name)


def _as_rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(array.shape[0], -1)


def _entry(journal: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where an entry of the journal has the slots, and where the rows, of which `part` is made."""
    size = int(journal[24:32].view(np.int64)[0])
    slots, block = journal[32 : 32 + 8 * size], journal[32 + 8 * size :][: size * part.shape[1] * part.itemsize]
    return slots.view(np.int64), block.view(part.dtype).reshape(size, part.shape[1])


def _put(path: Path, text: str) -> None:
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # 0600
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(new, path)


def _root() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


def _born(pid: int) -> int:
    """When a process started; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _alive(pid: int, born: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _born(pid) == born
