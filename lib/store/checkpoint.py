"""Checkpoints: named parts, whole or not at all, with every byte under a checksum.

A checkpoint is a folder:

    server0.bin ...   one file a part (a shard): its tree as JSON, then its arrays' bytes, 64-byte aligned
    manifest.json     each file's part, size and XXH64; the base that an incremental one builds on
    complete          the manifest's BLAKE2b hash, written last

Guaranteed:
- `save` fills a temporary folder beside the target and renames it: a reader sees the old checkpoint or the new one;
- `load` gives back exactly what was saved, or raises `Damaged` with the file and the part whose bytes are not what was
  written (a wrong byte has one chance in 2^64 not to be found; this is no protection against a forger);
- nothing is pickled (`lib.store.tree`).

An incremental checkpoint holds, of each table, the rows whose stamp is above the largest of its base, those that were never
updated, and the list of ids that are there; `load` resolves the chain. That is exact where every change of a row
raises its stamp, as pushes and newer writes do and `Table.assign` does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadOption, Damaged, LockstepError
from lib.store import tree
from lib.store.rows import Rows
from lib.store.table.team import together
from lib.store.wire.kernels import XXH64

FORMAT = 1
MAGIC = b"lockstp\x01"
MANIFEST, MARKER = "manifest.json", "complete"
_ALIGN, _CHUNK = 64, 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What an incremental checkpoint holds of a table."""

    rows: Rows
    """Those that the base does not have as they are."""
    ids: np.ndarray
    """int64[n], all ids that are there, ascending."""


def save(folder: Path, parts: Mapping[str, Any], *, base: Path | None = None, durable: bool = True) -> int:
    """Write a checkpoint and return its bytes; `folder` is replaced if it exists.

    A part is a tree of containers, dataclasses, numpy arrays and generators. With `base`, another checkpoint, tables (`Rows`)
    that it has too are written as their `Change`; the base must stay where it is, seen from here. `durable` waits for
    the disk, so that a loss of power loses nothing either.
    """
    folder = Path(folder)
    for name in parts:
        if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
            raise BadOption(f"{name!r} is no name of a part: letters, digits and . _ + - are")
    manifest: dict[str, Any] = {"format": FORMAT, "files": {}, "stamps": {}, "base": None}
    cuts: dict[str, int] = {}
    if base is not None:
        below, sealed = _manifest(Path(base))
        cuts = below["stamps"]
        manifest["base"] = {"folder": os.path.relpath(base, folder.parent), "manifest": sealed}

    changes: set[str] = set()

    def special(path: str, thing: Any) -> Any:
        if type(thing) is not Rows or path.rpartition("/")[0] in changes:
            return thing
        manifest["stamps"][path] = int(thing.stamps.max()) if len(thing) else -1
        if path in cuts and type(change := _change(thing, cuts[path])) is Change:
            changes.add(path)
            return change
        return thing

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-new-", dir=folder.parent))
        try:
            for name, part in parts.items():
                arrays: list[np.ndarray] = []
                plain = tree.pack(part, arrays, special, name)
                manifest["files"][name] = _write(new / f"{name}.bin", plain, arrays, durable)
            text = json.dumps(manifest, indent=1).encode()
            _put(new / MANIFEST, text, durable)
            _put(new / MARKER, hashlib.blake2b(text).hexdigest().encode(), durable)
            new.chmod(0o755)
            _replace(new, folder, durable)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise LockstepError(f"cannot save the checkpoint {folder}: {error.strerror or error}") from error
    return sum(entry["bytes"] for entry in manifest["files"].values()) + len(text)


def load(folder: Path, kinds: Iterable[type] = (), *, parts: Iterable[str] | None = None) -> dict[str, Any]:
    """Part -> what was saved under that name; arrays are views of one writable buffer a part.

    `kinds` are the dataclasses that the trees may hold, beside `Rows`; `parts` names those wanted, by default all.
    """
    return _load(Path(folder), tree.by_name([Rows, Change, *kinds]), None if parts is None else set(parts), {})


def verify(folder: Path) -> None:
    """Check every byte of a checkpoint, and of those that it builds on."""
    for link in chain(folder):
        for name, entry in _manifest(link)[0]["files"].items():
            _read(link, name, entry)


def chain(folder: Path) -> list[Path]:
    """A checkpoint and those that it builds on, down to a whole one."""
    links = [Path(folder)]
    while (base := _manifest(links[-1])[0]["base"]) is not None:
        links.append(Path(os.path.normpath(links[-1].parent / base["folder"])))
    return links


def latest(root: Path) -> Path | None:
    """The complete checkpoint in a folder whose name is the last in alphabetical order."""
    root = Path(root)
    found = [path.parent for path in root.glob(f"*/{MARKER}") if not path.parent.name.startswith(".")]
    return max(found, key=lambda path: path.name, default=None)


def _load(
    folder: Path,
    kinds: Mapping[str, type],
    wanted: set[str] | None,
    tables: dict[str, Rows],
    above: tuple[Path, ...] = (),
) -> dict[str, Any]:
    """The parts; `tables` is filled with every table in them, by its path."""
    manifest, _ = _manifest(folder)
    files = manifest["files"]
    if missing := sorted((wanted or set()) - set(files)):
        raise BadOption(f"the checkpoint {folder} has no part {missing[0]!r}; it has: {', '.join(sorted(files))}")
    below: dict[str, Rows] = {}
    if (link := manifest["base"]) is not None:
        base = Path(os.path.normpath(folder.parent / link["folder"]))
        if base in above or not (base / MANIFEST).exists():
            raise Damaged(f"the checkpoint {folder} builds on {base}, which is not there; put it back")
        if _manifest(base)[1] != link["manifest"]:
            raise Damaged(f"the checkpoint {folder} builds on another {base} than the one that is there")
        named = {path.split("/")[0] for path in manifest["stamps"]} & (set(files) if wanted is None else wanted)
        _load(base, kinds, named & set(_manifest(base)[0]["files"]), below, (*above, folder))

    def made(path: str, thing: Any) -> Any:
        if type(thing) is Change:
            tables.pop(f"{path}/rows")
            thing = _laid_over(below.get(path), thing, f"{folder}: {path}")
        if type(thing) is Rows:
            tables[path] = thing
        return thing

    result = {}
    for name, entry in files.items():
        if wanted is None or name in wanted:
            plain, arrays = _read(folder, name, entry)
            result[name] = tree.unpack(plain, arrays, kinds, made, name)
    return result


def _change(rows: Rows, cut: int) -> Change | Rows:
    mine = np.flatnonzero((rows.stamps > cut) | (rows.stamps < 0))
    newer = Rows(rows.ids[mine], rows.values[mine], rows.state[mine], rows.stamps[mine])
    return Change(newer, rows.ids) if newer.nbytes + rows.ids.nbytes < rows.nbytes else rows


def _laid_over(base: Rows | None, change: Change, path: str) -> Rows:
    if base is None:
        raise Damaged(f"{path} changes a table that the base does not have")
    ids, from_base, from_change = change.ids, _find(base.ids, change.ids), _find(change.rows.ids, change.ids)
    if ((from_base < 0) & (from_change < 0)).any():
        raise Damaged(f"{path} lists an id that neither it nor its base holds")
    new = from_change >= 0
    arrays = []
    for name in ("values", "state", "stamps"):
        old, fresh = getattr(base, name), getattr(change.rows, name)
        array = np.empty((ids.size, *old.shape[1:]), old.dtype)
        array[~new], array[new] = old[from_base[~new]], fresh[from_change[new]]
        arrays.append(array)
    return Rows(ids, *arrays)


def _find(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The position of each wanted id, -1 where it is not there."""
    if not ids.size:
        return np.full(wanted.size, -1)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids, wanted, sorter=order), ids.size - 1)
    return np.where(ids[order[place]] == wanted, order[place], -1)


def _write(path: Path, plain: Any, arrays: Sequence[np.ndarray], durable: bool) -> dict[str, Any]:
    places, at = [], 0
    for array in arrays:
        places.append([array.dtype.str, list(array.shape), at])
        at += -(-array.nbytes // _ALIGN) * _ALIGN
    header = json.dumps({"tree": plain, "arrays": places}).encode()
    header += b" " * (-(len(MAGIC) + 8 + len(header)) % _ALIGN)
    blocks = [np.frombuffer(MAGIC + len(header).to_bytes(8, "little") + header, np.uint8)]
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        rest = flat.size % _ALIGN
        blocks.append(flat[: flat.size - rest])
        if rest:
            blocks.append(np.concatenate([flat[flat.size - rest :], np.zeros(_ALIGN - rest, np.uint8)]))
    seal = XXH64()

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            for block in blocks:
                for start in range(0, block.size, _CHUNK):
                    _write_all(file, memoryview(block[start : start + _CHUNK]))
            if durable:
                os.fsync(file.fileno())

    def add_up() -> None:
        for block in blocks:
            seal.update(block)

    together(lambda part: (write, add_up)[part](), 2)
    return {"file": path.name, "bytes": sum(block.size for block in blocks), "xxh64": seal.hexdigest()}


def _write_all(file, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[file.write(chunk) :]


def _read(folder: Path, name: str, entry: Mapping[str, Any]) -> tuple[Any, list[np.ndarray]]:
    """A part's tree and arrays, once every byte is known to be what was written."""
    path, size = folder / entry["file"], entry["bytes"]
    what = f"the checkpoint {folder}: file {entry['file']} (part {name!r})"
    try:
        found = path.stat().st_size
    except OSError as error:
        raise Damaged(f"{what} cannot be read: {error.strerror or error}") from error
    if found != size:
        raise Damaged(f"{what} has {found} bytes, and {size} were written")
    if size % _ALIGN or not size:
        raise Damaged(f"{what} has {size} bytes, which is no multiple of {_ALIGN}")
    buffer, seal = np.empty(size, np.uint8), XXH64()
    with open(path, "rb", buffering=0) as file:
        for start in range(0, size, _CHUNK):
            chunk = buffer[start : start + _CHUNK]
            got, view = 0, memoryview(chunk)
            while got < len(view):
                if not (more := file.readinto(view[got:])):
                    raise Damaged(f"{what} ends early, at byte {start + got}")
                got += more
            seal.update(chunk)
    if (found := seal.hexdigest()) != entry["xxh64"]:
        raise Damaged(f"{what} is damaged: its XXH64 is {found}, and {entry['xxh64']} was written")
    length = int.from_bytes(buffer[len(MAGIC) : len(MAGIC) + 8].tobytes(), "little")
    if buffer[: len(MAGIC)].tobytes() != MAGIC:
        raise Damaged(f"{what} is of another format than {MAGIC!r}")
    first = len(MAGIC) + 8 + length
    header = json.loads(buffer[len(MAGIC) + 8 : first].tobytes())
    arrays = []
    for dtype, shape, at in header["arrays"]:
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        arrays.append(buffer[first + at : first + at + count].view(dtype).reshape(shape))
    return header["tree"], arrays


def _manifest(folder: Path) -> tuple[dict[str, Any], str]:
    """The manifest and its hash, once the marker has vouched for it."""
    try:
        text, marker = (folder / MANIFEST).read_bytes(), (folder / MARKER).read_bytes()
    except OSError as error:
        raise Damaged(f"{folder} is no complete checkpoint: {error.filename}: {error.strerror or error}") from error
    sealed = hashlib.blake2b(text).hexdigest()
    if marker != sealed.encode():
        raise Damaged(f"the checkpoint {folder}: {MANIFEST} or {MARKER} is damaged: they do not belong together")
    manifest = json.loads(text)
    if manifest["format"] != FORMAT:
        raise Damaged(f"the checkpoint {folder} is of format {manifest['format']}; this version reads {FORMAT}")
    return manifest, sealed


def _put(path: Path, text: bytes, durable: bool) -> None:
    with open(path, "wb") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _replace(new: Path, folder: Path, durable: bool) -> None:
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    try:
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
        if durable:
            for path in (folder, folder.parent):
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
    finally:
        shutil.rmtree(old, ignore_errors=True)
