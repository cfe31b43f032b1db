"""The table's hash index: which record an id has.

An entry is one uint32: one more than the slot in the low bits, and as many bits of the id's hash as are left above them; zero
is free. So key and slot are one word, sixteen entries share a cache line, and the index takes a quarter of what pairs of id
and slot would take. A record holds the id itself, which decides: equal hash bits only propose. Open addressing, linear
probing. Removal shifts entries back, so there are no tombstones and look-ups never become slower.

A record is a row of uint32 words [values | state | stamp | id, two words | last]; `column` is where the stamp lies. In a table
with a limit the last word is the touch, the number of the call that last looked the row up; elsewhere it counts updates.

Look-ups go block by block: hash and prefetch entries, compare entries and prefetch records, compare ids. So the misses of a
block overlap. As everywhere in the store, a kernel checks no bounds and takes no lock.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import boolean, int32, int64, uint32, void

from lib.store.kernels import _INTS, _NEW_BLOCK, _NEW_INTS, _OPTIONS, mix
from lib.store.lanes import copy, prefetch, prefetch_range

NEVER, UNSET, FREE = -1, -2, -3
"""Stamps of a row that was never updated, of one whose first content is being written, and of a slot without a row."""
LARGEST_STAMP = 2**31 - 1

_ENTRIES, _WORDS, _LISTS = uint32[::1], uint32[:, ::1], int32[:, ::1]
_BLOCK = 64
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def ids_at(words: np.ndarray, slots: np.ndarray, column: int) -> np.ndarray:
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


@njit
def seek(ids, count, index, words, column, touch, slots, places, values):
    """Fill in the slots of the first `count` ids, -1 where there is none, touch the rows; how many are not there.

    If `values` is not empty, each row is also copied to its place there, as long as it lies in the nearest cache.
    """
    copies, dim = values.shape[0] > 0, values.shape[1]
    first = np.uint64(words.ctypes.data)
    out, step = np.uint64(values.ctypes.data), np.uint64(4) * np.uint64(dim)
    column, size = np.uint64(column), np.uint64(index.size)
    bits = slot_bits(index.size)
    low = (np.uint64(1) << bits) - np.uint64(1)
    codes, found = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    entry_at, stride = np.uint64(index.ctypes.data), np.uint64(4) * np.uint64(words.shape[1])
    record_at = first + np.uint64(4) * column
    missing = 0
    for start in range(0, count, _BLOCK):
        many = min(_BLOCK, count - start)
        for i in range(many):
            code = mix(np.uint64(ids[start + i]))
            codes[i] = code
            prefetch(entry_at + np.uint64(4) * home(code, size))
        for i in range(many):
            entry, tag = home(codes[i], size), (codes[i] & _LOW) >> bits
            word = np.uint64(index[entry])
            while word != 0 and word >> bits != tag:
                entry += np.uint64(1)
                if entry == size:
                    entry = np.uint64(0)
                word = np.uint64(index[entry])
            found[i] = entry
            slot = np.int64(word & low) - 1
            slots[start + i] = slot
            if slot >= 0:
                if copies:
                    prefetch_range(first + np.uint64(slot) * stride, step)
                prefetch(record_at + np.uint64(slot) * stride)
        for i in range(many):
            slot = slots[start + i]
            if slot >= 0:
                key = np.uint64(ids[start + i])
                if id_at(words, np.uint64(slot), column) != key:
                    slot = probe(index, words, column, key, codes[i], found[i], bits)
                    slots[start + i] = slot
            if slot < 0:
                missing += 1
                continue
            if touch:
                words[np.uint64(slot), column + np.uint64(3)] = touch
            if copies:
                target = out + np.uint64(places[start + i]) * step
                copy(dim, (target, first + np.uint64(slot) * stride), ())
    return missing


@njit(types.Tuple((_NEW_INTS, int64))(_INTS, _ENTRIES, _WORDS, int64, int64), nogil=True, cache=True)
def find(ids, index, words, column, touch):
    """The slot of every id, -1 for one that is not there, and how many those are."""
    slots = np.empty(ids.size, np.int64)
    none = np.empty(0, np.int32)
    return slots, seek(ids, ids.size, index, words, column, touch, slots, none, np.empty((0, 0), np.float32))


@njit
def number(keys, many, lists, distinct, heads):
    """Number distinct keys in order of first appearance: their count. `keys` may be `distinct` itself, which is overwritten.

    Whether a key is new is a branch that no processor foresees, so there is none: a candidate is written each time.
    """
    mine, ordinals, firsts = lists[0], lists[1], lists[2]
    size = np.int64(16)
    while size < 2 * many:
        size *= 2
    mask, buckets = np.uint64(size - 1), np.empty(_BLOCK, np.uint64)
    heads[:size] = 0
    head_at = np.uint64(heads.ctypes.data)
    count = np.int64(0)
    for start in range(0, many, _BLOCK):
        stop = min(start + _BLOCK, many)
        for k in range(start, stop):
            bucket = (mix(np.uint64(keys[k])) >> _32) & mask
            buckets[k - start] = bucket
            prefetch(head_at + np.uint64(4) * bucket)
        for k in range(start, stop):
            key, bucket = keys[k], buckets[k - start]
            distinct[count], firsts[count] = key, mine[k]
            head = np.int64(heads[bucket])
            known = head or count + 1
            while distinct[known - 1] != key:
                bucket = (bucket + np.uint64(1)) & mask
                head = np.int64(heads[bucket])
                known = head or count + 1
            heads[bucket] = known
            count += known > count
            ordinals[k] = known - 1
    return count


@njit
def arrange(ids, part, bits, lists, distinct, slots, heads, index, words, column, touch, values):
    """Find each distinct id of one part of a batch once; how many entries, distinct ids and unknown ids the part has.

    A part is the ids whose hash ends in its number. `lists` gets, entry by entry, the position in `ids` and the ordinal of the
    id among `distinct`, and for each ordinal the position where its id stands first; there its row is copied to `values`.
    """
    wanted, last = np.uint64(part), (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    mine, many = lists[0], 0
    if bits:
        for i in range(ids.size):
            mine[many], distinct[many] = i, ids[i]
            many += (mix(np.uint64(ids[i])) & last) == wanted
        count = number(distinct, many, lists, distinct, heads)
    else:
        many = ids.size
        for i in range(many):
            mine[i] = i
        count = number(ids, many, lists, distinct, heads)
    return many, count, seek(distinct, count, index, words, column, touch, slots, lists[2], values)


@njit(
    types.UniTuple(int64, 3)(
        _INTS, int64, int64, _LISTS, _NEW_INTS, _NEW_INTS, int32[::1], _ENTRIES, _WORDS, int64, int64, _NEW_BLOCK
    ),
    **_OPTIONS,
)
def plan(ids, part, bits, lists, distinct, slots, heads, index, words, column, touch, values):
    """`arrange`, for a batch that is worth memory of its own."""
    return arrange(ids, part, bits, lists, distinct, slots, heads, index, words, column, touch, values)


@njit(void(_ENTRIES, _WORDS, int64, _INTS), **_OPTIONS)
def enter(index, words, column, slots):
    """Enter the records of these slots; their ids must not be in the index yet."""
    column, size, bits = np.uint64(column), np.uint64(index.size), slot_bits(index.size)
    for i in range(slots.size):
        slot = np.uint64(slots[i])
        code = mix(id_at(words, slot, column))
        entry = home(code, size)
        while index[entry] != 0:
            entry += np.uint64(1)
            if entry == size:
                entry = np.uint64(0)
        index[entry] = np.uint32((((code & _LOW) >> bits) << bits) | (slot + np.uint64(1)))


@njit(void(_ENTRIES, _WORDS, int64, int64), **_OPTIONS)
def rebuild(index, words, column, count):
    """The index of the first `count` records, as far as they are in use."""
    column, size, bits = np.uint64(column), np.uint64(index.size), slot_bits(index.size)
    codes = np.empty(_BLOCK, np.uint64)
    entry_at = np.uint64(index.ctypes.data)
    index[:] = 0
    for start in range(0, count, _BLOCK):
        many = min(_BLOCK, count - start)
        for i in range(many):
            codes[i] = mix(id_at(words, np.uint64(start + i), column))
            prefetch(entry_at + np.uint64(4) * home(codes[i], size))
        for i in range(many):
            slot = np.uint64(start + i)
            if np.int32(words[slot, column]) == FREE:
                continue
            entry = home(codes[i], size)
            while index[entry] != 0:
                entry += np.uint64(1)
                if entry == size:
                    entry = np.uint64(0)
            index[entry] = np.uint32((((codes[i] & _LOW) >> bits) << bits) | (slot + np.uint64(1)))


@njit(boolean(_ENTRIES, int64, int64), **_OPTIONS)
def plausible(index, count, free):
    """Whether this may be the index of `count` records of which some are free: nothing in it can lead out of bounds."""
    low = (np.uint64(1) << slot_bits(index.size)) - np.uint64(1)
    most, used = np.uint64(0), 0
    for entry in range(index.size):
        word = np.uint64(index[entry])
        most = max(most, word & low)
        used += word != 0
    return most <= count and used == count - free and used < index.size


@njit(void(_ENTRIES, _WORDS, int64, _INTS), **_OPTIONS)
def remove(index, words, column, slots):
    """Take the records of these slots out of the index and mark them as free."""
    column, size, bits = np.uint64(column), np.uint64(index.size), slot_bits(index.size)
    low, one = (np.uint64(1) << bits) - np.uint64(1), np.uint64(1)
    for i in range(slots.size):
        slot = np.uint64(slots[i])
        words[slot, column] = np.uint32(np.int64(FREE) & 0xFFFFFFFF)
        hole = home(mix(id_at(words, slot, column)), size)
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
