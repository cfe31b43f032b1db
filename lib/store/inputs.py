"""What the store accepts: lossless conversions are made, anything else is an error that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np

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
