"""Batches of ids through the index: where each one's record is, and the rows out of the records.

An id's entry is asked for some turns before it is read, and so is the record to which it leads: the misses of many ids overlap.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.types import int64, uint32

from lib.store.table.index import _ENTRIES, _LOW, _WORDS, home, id_at, probe, slot_bits
from lib.store.table.kernels import _INTS, _NEW_BLOCK, _NEW_INTS, _OPTIONS, _4, mix, prefetch, prefetch_range

_AHEAD, _RING = 12, 31
"""Turns from asking to reading; one less than a power of two that exceeds them twice."""
_PAGE = np.uint64(1024)
"""Words of a page."""


@njit(int64(_INTS, _ENTRIES, _WORDS, int64, int64, _NEW_INTS, _NEW_BLOCK), **_OPTIONS)
def fetch(ids, index, words, column, touch, slots, values):
    """Fill in the slot of every id, -1 where there is none; how many are not there.

    Rows that are there are touched, unless `touch` is 0, and copied to `values`, unless it is empty.
    """
    copies, dim = values.shape[0] > 0, np.uint64(values.shape[1])
    rows, column, size = words.view(np.float32), np.uint64(column), np.uint64(index.size)
    entry_at, first, stride = np.uint64(index.ctypes.data), np.uint64(words.ctypes.data), _4 * np.uint64(words.shape[1])
    bits = slot_bits(index.size)
    low = (np.uint64(1) << bits) - np.uint64(1)
    codes, found = np.empty(_RING + 1, np.uint64), np.empty(_RING + 1, np.uint64)
    missing = 0
    for turn in range(ids.size + 2 * _AHEAD):
        i = turn
        if i < ids.size:
            code = mix(np.uint64(ids[i]))
            codes[i & _RING] = code
            prefetch(entry_at + _4 * home(code, size))
        i = turn - _AHEAD
        if 0 <= i < ids.size:
            code = codes[i & _RING]
            entry, tag = home(code, size), (code & _LOW) >> bits
            word = np.uint64(index[entry])
            while word != 0 and word >> bits != tag:
                entry += np.uint64(1)
                if entry == size:
                    entry = np.uint64(0)
                word = np.uint64(index[entry])
            found[i & _RING] = entry
            slot = np.int64(word & low) - 1
            slots[i] = slot
            if slot >= 0:
                record = first + np.uint64(slot) * stride
                if copies:
                    prefetch_range(record, _4 * dim)
                prefetch_range(record + _4 * column, stride - _4 * column)
        i = turn - 2 * _AHEAD
        if i < 0:
            continue
        key, slot = np.uint64(ids[i]), slots[i]
        if slot >= 0 and id_at(words, np.uint64(slot), column) != key:
            slot = probe(index, words, column, key, codes[i & _RING], found[i & _RING], bits)
            slots[i] = slot
        if slot < 0:
            missing += 1
            continue
        here, there = np.uint64(slot), np.uint64(i)
        if touch:
            words[here, column + np.uint64(3)] = touch
        if copies:
            for d in range(dim):
                values[there, d] = rows[here, d]
    return missing


@njit(uint32(_WORDS, _INTS), **_OPTIONS)
def touch(words, slots):
    """Read a word of every page of these records, -1 being none; their sum, or nothing would have to be read."""
    total, last = np.uint32(0), np.uint64(words.shape[1] - 1)
    for slot in slots:
        if slot >= 0:
            for at in range(np.uint64(0), last, _PAGE):
                total += words[np.uint64(slot), at]
            total += words[np.uint64(slot), last]
    return total
