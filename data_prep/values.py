"""What the text of a column stands for: a number, a moment, a click or not, one id, or a bag of ids.

Where a text is none of what its column holds, the row is reported; an empty field is nan, or the code MISSING.
"""

import numpy as np
import pyarrow as pa
from numba import njit
from pyarrow import compute

from data_prep.parse import MISSING, code_of

_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_WHOLE = r"^\s*[+-]?\d+\s*$"
_NOTHING = pa.array([b"NA", b"N/A", b"NaN", b"nan", b"null", b"None", b"-", b"?"])
_TRUTHS = {b"true": 1.0, b"false": 0.0, b"yes": 1.0, b"no": 0.0, b"t": 1.0, b"f": 0.0}


def numbers(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """float64, nan where the field is empty; and where its text is no number, or one that is too large for a float64."""
    array = _known(array)
    fits = compute.match_substring_regex(array, _NUMBER)
    found = compute.utf8_trim_whitespace(compute.if_else(fits, array, None).cast(pa.string())).cast(pa.float64())
    found, wrong = _filled(found), ~_true(fits, empty=True)
    wrong |= np.isinf(found)
    return np.where(wrong, np.nan, found), wrong


def labels(array: pa.Array, least: float | None) -> tuple[np.ndarray, np.ndarray]:
    """1.0 for a click, else 0.0; and where the text is neither. `least`: the number from which on it is a click."""
    found, wrong = numbers(array)
    for text, value in _TRUTHS.items() if least is None and wrong.any() else ():
        same = wrong & np.array([each is not None and each.lower() == text for each in array.to_pylist()], bool)
        found[same], wrong[same] = value, False
    wrong |= np.isnan(found)
    if least is None:
        return found, wrong | ((found != 0) & (found != 1))
    return (found >= least).astype(float), wrong


def times(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as they are, and dates and times in seconds; and where the text is neither, or nothing."""
    found, wrong = numbers(array)
    if wrong.any():
        dates = compute.if_else(pa.array(wrong), array, None).cast(pa.string())
        for layout in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"):
            cut = compute.utf8_slice_codeunits(compute.utf8_trim_whitespace(dates), 0, 10 if layout[-1] == "d" else 19)
            moments = compute.strptime(cut, layout, "s", error_is_null=True)
            days = compute.utf8_lpad(compute.replace_substring_regex(cut, r"^\d+-\d+-(\d+).*$", r"\1"), 2, "0")
            same = compute.equal(compute.strftime(moments, "%d"), days)
            read = _filled(
                compute.if_else(same, moments, None).cast(pa.int64()).cast(pa.float64())
            )  # 2024-02-31 is no day
            found = np.where(np.isnan(found), read, found)
    return found, np.isnan(found)


def looks(array: pa.Array) -> list[int]:
    """How many there are, how many of them are numbers, and how many are whole."""
    array = _known(array).drop_null()
    fit = [compute.sum(compute.match_substring_regex(array, each)).as_py() or 0 for each in (_NUMBER, _WHOLE)]
    return [len(array), *fit]


def codes(array: pa.Array, field: int, buckets: int) -> np.ndarray:
    """The codes of a field (`data_prep.parse`): of the text's 32-bit hash, the same in every file."""
    offsets, data = _buffers(array)
    return _codes(offsets, data, compute.is_valid(array).to_numpy(False), field, buckets)


def bags(array: pa.Array, between: str, longest: int, field: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """The codes of a bag's first ids (rows, longest), MISSING after its end; and how many it has."""
    parts = compute.split_pattern(array.fill_null(b""), between.encode())
    lengths, flat = compute.list_value_length(parts).to_numpy(False), parts.flatten()
    found = codes(compute.if_else(compute.equal(flat, b""), None, flat), field, buckets)
    row = np.repeat(np.arange(len(lengths)), lengths)
    there = found != MISSING
    row, found = row[there], found[there]
    held = np.bincount(row, minlength=len(lengths))
    place = np.arange(len(row)) - np.repeat(np.cumsum(held) - held, held)
    filled = np.full((len(lengths), longest), MISSING, found.dtype)
    kept = place < longest
    filled[row[kept], place[kept]] = found[kept]
    return filled, held


def _known(array: pa.Array) -> pa.Array:
    return compute.if_else(compute.is_in(array, _NOTHING), None, array)


def _filled(array: pa.Array) -> np.ndarray:
    return array.fill_null(np.nan).to_numpy(False).copy()


def _true(mask: pa.Array, empty: bool) -> np.ndarray:
    return mask.fill_null(empty).to_numpy(False)


def _buffers(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Where each text ends among the bytes of all."""
    array = array.cast(pa.binary())
    _, offsets, data = array.buffers()
    offsets = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets, np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)


@njit(nogil=True, cache=True)
def _codes(offsets, data, there, field, buckets):
    found = np.zeros(len(there), np.int64)
    for row in range(len(there)):
        if there[row]:
            hashed = np.uint64(2166136261)  # FNV-1a, as data_prep.parse hashes text
            for at in range(offsets[row], offsets[row + 1]):
                hashed = ((hashed ^ np.uint64(data[at])) * np.uint64(16777619)) & np.uint64(0xFFFFFFFF)
            found[row] = code_of(hashed, field, buckets)
    return found
