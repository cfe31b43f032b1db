"""Rows of a table as they travel and rest, with everything that belongs to them; and what the store accepts as ids and numbers:
lossless conversions are made, anything else is an error that names the argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from lib.errors import BadOption


def ids_of(ids: Any, name: str = "ids") -> np.ndarray:
    """A contiguous int64 vector with the same numbers."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise BadOption(f"{name} must be one-dimensional, not of shape {array.shape}")
    if array.dtype != np.int64:
        if array.size and not np.can_cast(array.dtype, np.int64) and not _fits(array):
            raise BadOption(f"{name} must be integers that fit int64, not {array.dtype}")
        array = array.astype(np.int64)
    return _plain(array)


def floats_of(array: Any, shape: tuple[int, ...], name: str, *, plain: bool = True) -> np.ndarray:
    """A float32 array of that shape with the same numbers; `plain`: a contiguous one."""
    array = np.asarray(array)
    if array.shape != shape:
        raise BadOption(f"{name} must be of shape {shape}, not {array.shape}")
    if array.dtype != np.float32:
        if array.size and not np.can_cast(array.dtype, np.float32):
            raise BadOption(
                f"{name} must be float32, not {array.dtype}: convert it where the loss of digits is visible"
            )
        array = array.astype(np.float32)
    return _plain(array) if plain else array


def whole(value: Any, name: str, least: int | None = None) -> int:
    """An integer, at least as large as `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise BadOption(f"{name} must be an integer{bound}, not {value!r}")
    return int(value)


def _fits(array: np.ndarray) -> bool:
    return array.dtype.kind == "u" and int(array.max()) <= np.iinfo(np.int64).max


def _plain(array: np.ndarray) -> np.ndarray:
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy()


def union(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The distinct ids of several arrays, sorted. Numpy hashes them, which takes ten times as long where each array is sorted, as
    a table's ids are."""
    ids = np.concatenate([np.empty(0, np.int64), *parts])
    ids.sort(kind="stable")
    first = np.ones(ids.size, bool)
    np.not_equal(ids[1:], ids[:-1], out=first[1:])
    return ids[first]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Copies of rows; entry i of every array belongs to `ids[i]`."""

    ids: np.ndarray
    """int64[n]."""
    values: np.ndarray
    """float32[n, dim], what a look-up gives."""
    state: np.ndarray
    """float32[n, columns], the optimiser's state."""
    stamps: np.ndarray
    """int64[n], timestamp of the last update, -1 for none."""

    def __len__(self) -> int:
        return self.ids.size

    @classmethod
    def of(cls, ids: np.ndarray, block: np.ndarray, dim: int, stamps: np.ndarray) -> Rows:
        """Rows whose values and state are the two parts of a block: nothing is copied."""
        return cls(ids, block[:, :dim], block[:, dim:], stamps)

    @property
    def block(self) -> np.ndarray:
        """float32[n, dim + columns], a copy of values and state."""
        return np.hstack([self.values, self.state])

    @property
    def fingerprints(self) -> np.ndarray:
        """int64[n], a hash of each row's values and state, to the bit: unlike rows have unlike ones, but for one pair in 2^64."""
        return np.fromiter(map(xxh3_64_intdigest, self.block), np.uint64, len(self)).view(np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all four arrays."""
        return self.ids.nbytes + self.values.nbytes + self.state.nbytes + self.stamps.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """All that decides a table's future, as its records lie in memory: unsorted, so that it costs no more than a copy."""

    words: np.ndarray
    """uint32[n, width], the records."""
    numbers: tuple[int, int, int, int]
    """Calls, lost, evicted, accesses in their order."""
