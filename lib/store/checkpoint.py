"""Checkpoints: a tree of plain data and arrays in one file, whole or not at all, with all that it says under checksums.

A checkpoint is a safetensors file: the array "tree" is the tree as JSON (`lib.store.tree`), the others are the tree's arrays by
their numbers, and the metadata has the XXH3 of each array's name, type, shape and bytes.

Guaranteed:
- `save` fills a temporary file beside the target and renames it: whatever interrupts it and when, the old checkpoint or the
  new one is there under its name, and whole;
- `load` gives back exactly what was saved, or raises `Damaged` with the file and the array that are not what was written (a
  wrong byte has one chance in 2^64 not to be found; this is no protection against a forger);
- nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from xxhash import xxh3_64

from lib import paths
from lib.errors import Damaged
from lib.store import tree

TREE = "tree"
_CHUNK = 1 << 20
"""Bytes that are hashed while they are still in the cache."""


def save(path: Path, thing: Any, *, durable: bool = True) -> int:
    """Write a checkpoint over what was there and return its bytes.

    `thing` is a tree of containers, dataclasses, numpy arrays and generators. `durable` waits for the disk, so that a loss of
    power loses nothing either.
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(tree.pack(thing, arrays)).encode()
    named = {TREE: np.frombuffer(text, np.uint8), **{str(number): array for number, array in enumerate(arrays)}}
    seals = {}
    for name, array in named.items():
        seal = _seal(name, array)
        seal.update(array)
        seals[name] = seal.hexdigest()

    def write(temporary: Path) -> None:
        temporary.unlink()  # safetensors renames a file of its own, and over another one ext4 would flush it first
        try:
            save_file(named, temporary, seals)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    return paths.write_atomic(path, write, durable=durable).stat().st_size


def load(path: Path, kinds: Iterable[type] = (), digest: str | None = None) -> Any:
    """What was saved, and has this `digest`, if one is given; `kinds` are the dataclasses that it may hold, beside those of
    this package. Its arrays are its
    own and may be written to."""
    try:
        arrays = _read(path)
        if digest not in (None, found := digest_of(path)):
            raise Damaged(f"{path} is another checkpoint than is meant: its digest is {found}, not {digest}")
        plain = json.loads(arrays.pop(TREE).tobytes())
    except Damaged:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is no checkpoint, or a damaged one: {error}") from error
    return tree.unpack(plain, arrays, {tree.name_of(kind): kind for kind in kinds})


def digest_of(path: Path) -> str:
    """What tells a checkpoint from all others: the XXH3 of its arrays' own."""
    with safe_open(path, "np") as header:
        return xxh3_64(json.dumps(header.metadata(), sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays, once all of them are known to be what was written."""
    with safe_open(path, "np") as header:
        seals = header.metadata()
        slices = {name: header.get_slice(name) for name in header.offset_keys()}
        arrays = {name: np.empty(each.get_shape(), _type(each.get_dtype())) for name, each in slices.items()}
    with open(path, "rb") as file:
        file.seek(-sum(array.nbytes for array in arrays.values()), os.SEEK_END)
        for name, array in arrays.items():
            seal, flat = _seal(name, array), array.reshape(-1).view(np.uint8)
            for start in range(0, flat.size, _CHUNK):
                file.readinto(chunk := flat[start : start + _CHUNK])
                seal.update(chunk)
            if (found := seal.hexdigest()) != seals[name]:
                raise Damaged(
                    f"{path} is damaged: the XXH3 of array {name!r} is {found}, and {seals[name]} was written"
                )
    return arrays


def _seal(name: str, array: np.ndarray) -> xxh3_64:
    return xxh3_64(f"{name} {array.dtype.str} {array.shape}".encode())


def _type(code: str) -> np.dtype:
    """numpy's type for one of safetensors' names: F32, U8, BOOL."""
    return np.dtype(bool) if code == "BOOL" else np.dtype(f"{code[0].lower()}{int(code[1:]) // 8}")
