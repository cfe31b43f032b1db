"""What goes into a table's records: gradients summed for rows, stamps, new rows."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import int32, int64, void

from lib.store.table.index import _ENTRIES, _WORDS
from lib.store.table.kernels import _BLOCK, _INTS, _NEW_BLOCK, _NEW_INTS, _OPTIONS
from lib.store.table.lookup import _LISTS, arrange, heads_for
from lib.store.table.optim_kernels import _PLACES, AHEAD, of
from lib.store.table.simd import join, prefetch_range

_4 = np.uint64(4)
_NEW_PLACES = int32[::1]


@njit
def add_up(lists, count, grads, sums, places):
    """Where each distinct id's gradient is: row p of `grads` if its place is p >= 0, row r of `sums` if it is -1 - r.

    An id that stands once has no sum of its own, and the others' lie close together. Sums run in the order of the batch.
    """
    later, ordinals, many, dim = lists[0], lists[1], grads.shape[0], grads.shape[1]
    source, target, step = np.uint64(grads.ctypes.data), np.uint64(sums.ctypes.data), _4 * np.uint64(dim)
    places[:count] = lists[2, :count]
    free = np.int64(0)
    for k in range(many - count):
        if k + AHEAD < many - count:
            prefetch_range(of(source, target, step, places, ordinals[k + AHEAD]), step)
            prefetch_range(source + np.uint64(later[k + AHEAD]) * step, step)
        ordinal = ordinals[k]
        before, place = of(source, target, step, places, ordinal), np.int64(places[ordinal])
        summed = place >> np.int64(63)  # all bits or none: whether the id has a sum is nothing to branch on
        row = (~place & summed) | (free & ~summed)
        join(dim, (target + np.uint64(row) * step, before, source + np.uint64(later[k]) * step), ())
        places[ordinal] = ~row
        free += 1 + summed


@njit(void(_LISTS, int64, _BLOCK, _NEW_BLOCK, _NEW_PLACES), **_OPTIONS)
def total(lists, count, grads, sums, places):
    """`add_up` by the lists of `lookup.number`, in memory that is there."""
    add_up(lists, count, grads, sums, places)


@njit(types.Tuple((_NEW_INTS, _NEW_BLOCK, _NEW_PLACES, int64))(_INTS, _BLOCK, _ENTRIES, _WORDS, int64), **_OPTIONS)
def reduce(ids, grads, index, words, column):
    """For a small batch at once: the distinct slots, sums and places of their gradients, and how many ids have no row.

    If there are such, nothing was summed.
    """
    many, none = ids.size, np.empty((0, grads.shape[1]), np.float32)
    lists, distinct, slots = np.empty((3, many), np.int32), np.empty(many, np.int64), np.empty(many, np.int64)
    heads = np.empty(heads_for(many), np.int32)
    count, missing = arrange(ids, lists, distinct, slots, heads, index, words, column, 0, none)
    if missing:
        return slots, none, np.empty(0, np.int32), missing
    sums, places = np.empty((many - count, grads.shape[1]), np.float32), np.empty(count, np.int32)
    add_up(lists, count, grads, sums, places)
    return slots[:count], sums, places, missing


@njit(_NEW_INTS(_INTS, _PLACES, int64, _NEW_INTS, _NEW_PLACES), **_OPTIONS)
def by_stripe(slots, places, stripes, sorted_, where):
    """Sort slots and their places by stripe, a slot's low bits; where each stripe ends. Slots of -1 are left out."""
    ends, last = np.zeros(stripes + 1, np.int64), stripes - 1
    for slot in slots:
        ends[(slot & last) + 1] += slot >= 0
    ends = np.cumsum(ends)
    following = ends.copy()
    for i in range(slots.size):
        if slots[i] >= 0:
            at = following[slots[i] & last]
            sorted_[at], where[at] = slots[i], places[i] if places.size else i
            following[slots[i] & last] = at + 1
    return ends


@njit(_NEW_INTS(_WORDS, _INTS, int64, _INTS), **_OPTIONS)
def advance(words, slots, column, stamps):
    """Raise the slots' stamps; return the entries, in input order, whose stamp was larger than the one it replaced."""
    column = np.uint64(column)
    raised = np.empty(slots.size, np.int64)
    count = 0
    for i in range(slots.size):
        slot = np.uint64(slots[i])
        if stamps[i] > np.int64(np.int32(words[slot, column])):
            words[slot, column] = np.uint32(stamps[i] & 0xFFFFFFFF)
            raised[count] = i
            count += 1
    return raised[:count].copy()


@njit(void(_WORDS, _INTS, _INTS, _BLOCK, int64, int64, int64), **_OPTIONS)
def settle(words, slots, ids, block, column, stamp, last):
    """Fill the records of new rows: [values | state] from the block, and what belongs to the row."""
    rows, column = words.view(np.float32), np.uint64(column)
    for i in range(slots.size):
        slot, key = np.uint64(slots[i]), np.uint64(ids[i])
        for d in range(column):
            rows[slot, d] = block[i, d]
        words[slot, column] = np.uint32(stamp & 0xFFFFFFFF)
        words[slot, column + np.uint64(1)] = np.uint32(key & np.uint64(0xFFFFFFFF))
        words[slot, column + np.uint64(2)] = np.uint32(key >> np.uint64(32))
        if last >= 0:
            words[slot, column + np.uint64(3)] = np.uint32(last)
