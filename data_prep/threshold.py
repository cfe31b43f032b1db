"""Which values are frequent, counted in bounded memory, however many distinct ones there are.

A count-min sketch (Cormode and Muthukrishnan, 2005) of two rows of saturating one-byte counters. An estimate is never below
the true count, so a frequent value is never taken for a rare one; the chance of the opposite, for a value that was
never seen, is `false_keep`. Counts are sums, so the result does not depend on the order in which threads deliver them.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from data_prep.parse import MISSING, RARE
from lib.paths import write_atomic
from lib.store.kernels import mix_bits

LARGEST = 255
"""Where a counter stops."""


class Sketch:
    """How often each (field, code) was seen."""

    def __init__(self, bits: int):
        self.counters = np.zeros((2, 1 << bits), np.uint8)
        self._lock = threading.Lock()

    def add(self, codes: np.ndarray, fields: np.ndarray | None = None) -> None:
        """Counts a block's codes (rows, columns); column c belongs to field c or `fields[c]`."""
        with self._lock:
            _add(codes, np.arange(codes.shape[1]) if fields is None else fields, self.counters)

    def drop_rare(self, codes: np.ndarray, least: int, fields: np.ndarray | None = None) -> None:
        """Writes RARE over every code that was seen fewer than `least` times."""
        _drop(codes, np.arange(codes.shape[1]) if fields is None else fields, self.counters, least)

    def false_keep(self, least: int) -> float:
        """The chance that a value is kept which was never seen."""
        return float(np.prod([np.count_nonzero(row >= least) / row.size for row in self.counters]))

    def describe(self, least: int, days: int) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"least": least, "days": days, "false_keep": self.false_keep(least)}

    def save(self, path: Path) -> None:
        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.save(file, self.counters)

        write_atomic(path, write)

    @classmethod
    def load(cls, path: Path) -> Sketch:
        sketch = cls(0)
        sketch.counters = np.load(path)
        return sketch


@njit(nogil=True, cache=True)
def _places(code, field, mask):
    hashed = mix_bits((np.uint64(field + 1) << np.uint64(40)) ^ np.uint64(code))
    return hashed & mask, (hashed >> np.uint64(32)) & mask


@njit(nogil=True, cache=True)
def _add(codes, fields, counters):
    mask = np.uint64(counters.shape[1] - 1)
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            if codes[row, column] != MISSING:
                first, second = _places(codes[row, column], fields[column], mask)
                if counters[0, first] < LARGEST:
                    counters[0, first] += 1
                if counters[1, second] < LARGEST:
                    counters[1, second] += 1


@njit(nogil=True, cache=True)
def _drop(codes, fields, counters, least):
    mask = np.uint64(counters.shape[1] - 1)
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            if codes[row, column] != MISSING:
                first, second = _places(codes[row, column], fields[column], mask)
                if min(counters[0, first], counters[1, second]) < least:
                    codes[row, column] = RARE
