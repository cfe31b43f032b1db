"""Batches of ids through the index: where each one's record is, and the rows out of the records.

An id's entry is asked for some turns before it is read, and so is the record to which it leads: the misses of many ids overlap.
A large batch that holds ids many times is numbered first, so that each is looked up once.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import boolean, int32, int64

from lib.store.table.index import _BLOCK, _ENTRIES, _LOW, _WORDS, _32, home, id_at, probe, slot_bits
from lib.store.table.kernels import _INTS, _NEW_BLOCK, _NEW_INTS, _OPTIONS, mix
from lib.store.table.simd import copy, prefetch, prefetch_range

_LISTS = int32[:, ::1]
_4, _5, _31 = np.uint64(4), np.uint64(5), np.uint64(31)
_AHEAD, _RING = 12, 31
"""Turns from asking to reading; one less than a power of two that exceeds them twice."""


@njit
def seek(ids, count, index, words, column, touch, slots, places, values):
    """Fill in the slots of the first `count` ids, -1 where there is none, and touch the rows; how many are not there.

    If `values` is not empty, each row is also copied there, as long as it lies in the nearest cache: to its place, if
    `places` is not empty either, and else in order.
    """
    copies, scattered, dim = values.shape[0] > 0, places.size > 0, values.shape[1]
    first, entry_at = np.uint64(words.ctypes.data), np.uint64(index.ctypes.data)
    out, step, stride = np.uint64(values.ctypes.data), _4 * np.uint64(dim), _4 * np.uint64(words.shape[1])
    column, size = np.uint64(column), np.uint64(index.size)
    bits = slot_bits(index.size)
    low = (np.uint64(1) << bits) - np.uint64(1)
    codes, found = np.empty(_RING + 1, np.uint64), np.empty(_RING + 1, np.uint64)
    missing = 0
    for turn in range(count + 2 * _AHEAD):
        i = turn
        if i < count:
            code = mix(np.uint64(ids[i]))
            codes[i & _RING] = code
            prefetch(entry_at + _4 * home(code, size))
        i = turn - _AHEAD
        if 0 <= i < count:
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
                    prefetch_range(record, step)
                prefetch_range(record + _4 * column, np.uint64(16))
        i = turn - 2 * _AHEAD
        if i < 0:
            continue
        slot = slots[i]
        if slot >= 0:
            key = np.uint64(ids[i])
            if id_at(words, np.uint64(slot), column) != key:
                slot = probe(index, words, column, key, codes[i & _RING], found[i & _RING], bits)
                slots[i] = slot
        if slot < 0:
            missing += 1
            continue
        if touch:
            words[np.uint64(slot), column + np.uint64(3)] = touch
        if copies:
            place = np.uint64(places[i] if scattered else i)
            copy(dim, (out + place * step, first + np.uint64(slot) * stride), ())
    return missing


@njit(types.Tuple((_NEW_INTS, int64))(_INTS, _ENTRIES, _WORDS, int64, int64), nogil=True, cache=True)
def find(ids, index, words, column, touch):
    """The slot of every id, -1 for one that is not there, and how many those are."""
    slots = np.empty(ids.size, np.int64)
    none = np.empty(0, np.int32)
    return slots, seek(ids, ids.size, index, words, column, touch, slots, none, np.empty((0, 0), np.float32))


@njit(int64(_INTS, _ENTRIES, _WORDS, int64, int64, _NEW_INTS, _NEW_BLOCK), **_OPTIONS)
def fetch(ids, index, words, column, touch, slots, values):
    """Find every entry's slot and copy the rows that are there; how many are not. For batches so small that caches hold them."""
    return seek(ids, ids.size, index, words, column, touch, slots, np.empty(0, np.int32), values)


@njit(**_OPTIONS)
def heads_for(many):
    """Room that numbering so many keys takes."""
    size = 16
    while size < 2 * many:
        size *= 2
    return size


@njit
def number(keys, many, lists, distinct, heads):
    """Number distinct keys in order of first appearance: their count. `keys` may be `distinct` itself, which is overwritten.

    The positions in the batch are in `lists[0]`; it is overwritten by those of entries that are no id's first, and `lists[1]`
    by their ids' ordinals. `lists[2]` gets each ordinal's first position.
    Whether a key is new is a branch that no processor foresees, so there is none: a candidate is written each time.
    """
    mine, ordinals, firsts = lists[0], lists[1], lists[2]
    size = heads_for(many)
    mask, buckets = np.uint64(size - 1), np.empty(_BLOCK, np.uint64)
    heads[:size] = 0
    head_at = np.uint64(heads.ctypes.data)
    count, later = np.int64(0), np.int64(0)
    for start in range(0, many, _BLOCK):
        stop = min(start + _BLOCK, many)
        for k in range(start, stop):
            bucket = (mix(np.uint64(keys[k])) >> _32) & mask
            buckets[k - start] = bucket
            prefetch(head_at + _4 * bucket)
        for k in range(start, stop):
            key, bucket, position = keys[k], buckets[k - start], mine[k]
            distinct[count], firsts[count] = key, position
            head = np.int64(heads[bucket])
            known = head or count + 1
            while distinct[known - 1] != key:
                bucket = (bucket + np.uint64(1)) & mask
                head = np.int64(heads[bucket])
                known = head or count + 1
            heads[bucket] = known
            mine[later], ordinals[later] = position, known - 1
            new = known > count
            count += new
            later += not new
    return count


@njit
def repeat(lists, later, values):
    """Copy the row at an id's first entry to its `later` ones, those that `number` found."""
    mine, ordinals, firsts, dim = lists[0], lists[1], lists[2], values.shape[1]
    start, step = np.uint64(values.ctypes.data), _4 * np.uint64(dim)
    for k in range(later):
        if k + _AHEAD < later:
            prefetch_range(start + np.uint64(firsts[ordinals[k + _AHEAD]]) * step, step)
            prefetch_range(start + np.uint64(mine[k + _AHEAD]) * step, step)
        source = start + np.uint64(firsts[ordinals[k]]) * step
        copy(dim, (start + np.uint64(mine[k]) * step, source), ())


@njit
def arrange(ids, lists, distinct, slots, heads, index, words, column, touch, values):
    """Number a batch's ids and find each once: how many are distinct, and how many of these have no row.

    `lists` are those of `number`. If `values` is not empty, the rows go to their entries there.
    """
    many = ids.size
    for i in range(many):
        lists[0, i] = i
    count = number(ids, many, lists, distinct, heads)
    missing = seek(distinct, count, index, words, column, touch, slots, lists[2], values)
    if values.shape[0]:
        repeat(lists, many - count, values)
    return count, missing


@njit(
    types.UniTuple(int64, 2)(
        _INTS, _LISTS, _NEW_INTS, _NEW_INTS, int32[::1], _ENTRIES, _WORDS, int64, int64, _NEW_BLOCK
    ),
    **_OPTIONS,
)  # fmt: skip
def plan(ids, lists, distinct, slots, heads, index, words, column, touch, values):
    """`arrange`, in memory that is there."""
    return arrange(ids, lists, distinct, slots, heads, index, words, column, touch, values)


@njit(boolean(_INTS, _NEW_INTS, int32[::1]), **_OPTIONS)
def repeats(ids, codes, heads):
    """Whether an id stands there twice; "yes" if many may. It takes a fraction of the time that numbering takes.

    Every id sets a bit of a map, at a place that its hash says; ids that share a place with another are few, if none stands
    twice, and only they are compared. `codes` and `heads` are room to work in, for as many ids and `heads_for` them.
    """
    size = heads_for(ids.size) // 2
    bits, mask, few = heads[: 2 * size].view(np.uint32), np.uint64(32 * size - 1), 0
    bits[:] = 0
    for i in range(ids.size):
        code = mix(np.uint64(ids[i]))
        codes[i] = np.int64(code)
        place = (code >> _32) & mask
        word, bit = place >> _5, np.uint32(1) << np.uint32(place & _31)
        known = bits[word]
        bits[word] = known | bit
        bits[np.uint64(size) + word] |= known & bit
    for i in range(ids.size):
        code = codes[i]
        place = (np.uint64(code) >> _32) & mask
        codes[few] = code
        few += np.int64((bits[np.uint64(size) + (place >> _5)] >> np.uint32(place & _31)) & np.uint32(1))
    if few > 1024 + ids.size // 16:
        return True
    found = np.sort(codes[:few])  # a hash is a bijection: equal codes are equal ids
    return bool((found[1:] == found[:-1]).any())
