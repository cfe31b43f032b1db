"""The table's hash index: which record an id has, and how that changes.

An entry is one uint32: one more than the slot in the low bits, and as many bits of the id's hash as are left above them; zero
is free. So key and slot are one word, sixteen entries share a cache line, and the index takes a quarter of what pairs of id
and slot would take. A record holds the id itself, which decides: equal hash bits only propose. Open addressing, linear
probing. Removal shifts entries back, so there are no tombstones and look-ups never become slower.

A record is a row of uint32 words [values | state | stamp | id, two words]; `column` is where the stamp lies. In a table with a
limit another word follows, the touch: the number of the call that last looked the row up.

As everywhere in the store, a kernel checks no bounds and takes no lock.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.types import boolean, int64, uint32, void

from lib.store.table.kernels import _INTS, _OPTIONS, _4, mix, prefetch, prefetch_range

NEVER, UNSET = -1, -2
"""Stamps of a row that was never updated, and of one whose first content is being written."""
LARGEST_STAMP = 2**31 - 1

_ENTRIES, _WORDS = uint32[::1], uint32[:, ::1]
_PART = 64
_8, _32 = np.uint64(8), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def ids_at(words: np.ndarray, slots: np.ndarray | slice, column: int) -> np.ndarray:
    """The ids of these records."""
    low, high = words[slots, column + 1].astype(np.uint64), words[slots, column + 2].astype(np.uint64)
    return (low | (high << _32)).view(np.int64)


@njit
def slot_bits(size):
    """Bits that hold one more than any slot of a table whose index has this size: rows are fewer than entries."""
    bits = np.uint64(1)
    while (np.uint64(1) << bits) <= np.uint64(size):
        bits += np.uint64(1)
    return bits


@njit
def home(code, size):
    """The entry where the probing of a hash code starts."""
    return ((code >> _32) * np.uint64(size)) >> _32


@njit
def id_at(words, slot, column):
    low, high = np.uint64(words[slot, column + np.uint64(1)]), np.uint64(words[slot, column + np.uint64(2)])
    return low | (high << _32)


@njit
def probe(index, words, column, key, code, entry, bits):
    """The slot of a key from this entry on, or -1."""
    size, tag = np.uint64(index.size), (code & _LOW) >> bits
    low = (np.uint64(1) << bits) - np.uint64(1)
    while index[entry] != 0:
        word = np.uint64(index[entry])
        if word >> bits == tag:
            slot = (word & low) - np.uint64(1)
            if id_at(words, slot, column) == key:
                return np.int64(slot)
        entry += np.uint64(1)
        if entry == size:
            entry = np.uint64(0)
    return np.int64(-1)


@njit(_INTS(_WORDS, int64, _INTS), **_OPTIONS)
def stamps_at(words, column, slots):
    """The stamps of these records; -1 for the slot -1."""
    stamps, column = np.empty(slots.size, np.int64), np.uint64(column)
    for i in range(slots.size):
        stamps[i] = np.int64(np.int32(words[np.uint64(slots[i]), column])) if slots[i] >= 0 else NEVER
    return stamps


@njit(void(_WORDS, int64, _INTS, int64, int64), **_OPTIONS)
def note(words, column, slots, first, stamp):
    """Write into these records, which have one number, that it is the first one's and so on, and their stamp."""
    column, place = np.uint64(column), np.uint64(first)
    for i in range(slots.size):
        slot = np.uint64(slots[i])
        words[slot, np.uint64(0)] = np.uint32(place + np.uint64(i))
        words[slot, column] = np.uint32(stamp)


@njit(void(_WORDS, int64, _INTS, _INTS, int64, int64), **_OPTIONS)
def label(words, column, slots, ids, stamp, now):
    """Write into these records their stamp and ids, and where there is room for it who looked them up last."""
    column, touched = np.uint64(column), words.shape[1] > column + 3
    for i in range(slots.size):
        slot, key = np.uint64(slots[i]), np.uint64(ids[i])
        words[slot, column] = np.uint32(stamp)
        words[slot, column + np.uint64(1)] = np.uint32(key & _LOW)
        words[slot, column + np.uint64(2)] = np.uint32(key >> _32)
        if touched:
            words[slot, column + np.uint64(3)] = np.uint32(now)


@njit(void(_ENTRIES, _WORDS, int64, _INTS), **_OPTIONS)
def enter(index, words, column, slots):
    """Enter the records of these slots; their ids must not be in the index yet."""
    column, size, bits = np.uint64(column), np.uint64(index.size), slot_bits(index.size)
    codes, entry_at = np.empty(_PART, np.uint64), np.uint64(index.ctypes.data)
    for start in range(0, slots.size, _PART):
        many = min(_PART, slots.size - start)
        for i in range(many):
            codes[i] = mix(id_at(words, np.uint64(slots[start + i]), column))
            prefetch(entry_at + _4 * home(codes[i], size))
        for i in range(many):
            slot, entry = np.uint64(slots[start + i]), home(codes[i], size)
            while index[entry] != 0:
                entry += np.uint64(1)
                if entry == size:
                    entry = np.uint64(0)
            index[entry] = np.uint32((((codes[i] & _LOW) >> bits) << bits) | (slot + np.uint64(1)))


@njit(boolean(_ENTRIES, int64), **_OPTIONS)
def plausible(index, count):
    """Whether this may be the index of `count` records: nothing in it can lead out of bounds."""
    low = (np.uint64(1) << slot_bits(index.size)) - np.uint64(1)
    most, used = np.uint64(0), 0
    for entry in range(index.size):
        word = np.uint64(index[entry])
        most = max(most, word & low)
        used += word != 0
    return most <= count and used == count and used < index.size


@njit(void(_ENTRIES, _WORDS, int64, _INTS), **_OPTIONS)
def remove(index, words, column, slots):
    """Take the records of these slots out of the index.

    Of a part, all that will be read is asked for first: the records, their entries, and the records of the entries that may
    move back. Each of them lies anywhere in memory, and one after the other they would be most of what an eviction costs.
    """
    column, size, bits = np.uint64(column), np.uint64(index.size), slot_bits(index.size)
    low, one = (np.uint64(1) << bits) - np.uint64(1), np.uint64(1)
    homes, entry_at = np.empty(_PART, np.uint64), np.uint64(index.ctypes.data)
    first, stride = np.uint64(words.ctypes.data) + _4 * (column + one), _4 * np.uint64(words.shape[1])
    for begin in range(0, slots.size, _PART):
        many = min(_PART, slots.size - begin)
        for i in range(many):
            prefetch_range(first + np.uint64(slots[begin + i]) * stride, _8)
        for i in range(many):
            homes[i] = home(mix(id_at(words, np.uint64(slots[begin + i]), column)), size)
            prefetch(entry_at + _4 * homes[i])
        for i in range(many):
            entry = homes[i]
            while index[entry] != 0:
                prefetch_range(first + ((np.uint64(index[entry]) & low) - one) * stride, _8)
                entry = entry + one if entry + one < size else np.uint64(0)
        for i in range(many):
            slot, hole = np.uint64(slots[begin + i]), homes[i]
            while np.uint64(index[hole]) & low != slot + one:
                hole = hole + one if hole + one < size else np.uint64(0)
            entry = hole
            while True:
                entry = entry + one if entry + one < size else np.uint64(0)
                if index[entry] == 0:
                    break
                start = home(mix(id_at(words, (np.uint64(index[entry]) & low) - one, column)), size)
                # an entry may move back unless its own start lies behind the hole
                behind = hole < start <= entry if hole <= entry else hole < start or start <= entry
                if not behind:
                    index[hole] = index[entry]
                    hole = entry
            index[hole] = 0
