"""The files that a run's own code reads: a name that did not know them would find the result of what has been replaced since.

Known are the files and prepared folders that a field of the workload names, and files that a text in the user's own modules
names, beside the module or in the folder that the process works in. Not seen are a path that is put together at run time, and
what lies in any other folder, which may be one that a run writes to.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lib.data import source

WHOLE = 64 * 2**20
"""Bytes up to which a file is taken as a whole; of a larger one its size, when it was written, and so many pieces."""
PIECES, PIECE = 64, 64 * 2**10


def of(thing: Any) -> dict[str, str]:
    """Each path in a configuration object's fields -> the digest of what lies there."""
    found = {text: content(Path(text)) for text in _texts_of(thing) if _could_be(text)}
    return {text: digest for text, digest in sorted(found.items()) if digest}


def read_by(module: str, path: Path) -> dict[str, str]:
    """The same of the texts in a module, whose code is given with its path."""
    constants = (node.value for node in ast.walk(ast.parse(module)) if isinstance(node, ast.Constant))
    texts = sorted({each for each in constants if isinstance(each, str) and _could_be(each)})
    places = {text: [place / text for place in (path.parent, Path.cwd())] for text in texts}
    found = {text: next((place for place in there if place.is_file()), None) for text, there in places.items()}
    return {text: content(place) for text, place in found.items() if place}


def content(path: Path) -> str:
    """The digest of a file, or of a prepared folder's manifest, which holds that of every file; "" of anything else."""
    if not path.is_file():
        return source.digest(str(path))
    status = path.stat()
    return _digest(path.resolve(), status.st_size, status.st_mtime_ns)


@cache
def _digest(path: Path, size: int, written: int) -> str:
    with path.open("rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256(f"{size} {written}".encode())
        for piece in range(PIECES):
            file.seek((size - PIECE) * piece // (PIECES - 1))
            digest.update(file.read(PIECE))
        return digest.hexdigest()


def _texts_of(thing: Any) -> Iterator[str]:
    if isinstance(thing, (str, Path)):
        yield str(thing)
    elif is_dataclass(thing):
        thing = [getattr(thing, field.name) for field in fields(thing)]
    if isinstance(thing, Iterable) and not isinstance(thing, (str, bytes)):
        for each in thing.values() if isinstance(thing, dict) else thing:
            yield from _texts_of(each)


def _could_be(text: str) -> bool:
    """Whether it may name a file, and is neither prose nor what every folder has; no file system has longer names."""
    names = max(len(name.encode(errors="replace")) for name in text.split("/")) < 256 and len(text) < 1000
    return names and not {"\n", "\0"} & {*text} and bool(text.strip("./\\ "))
