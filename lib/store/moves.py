"""What goes into a table's records: gradients summed for rows, stamps, new rows."""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import int64, void

from lib.store.index import _ENTRIES, _WORDS
from lib.store.kernels import _BLOCK, _INTS, _NEW_BLOCK, _NEW_INTS, _OPTIONS
from lib.store.lanes import add
from lib.store.lookup import _LISTS, arrange

_4 = np.uint64(4)
_CLEARED = 64


@njit
def add_up(lists, many, count, grads, sums):
    """Sums start from -0.0, to which any x adds as x itself: so one gradient alone and a sum of one have the same bits.

    They are cleared little by little, so that each is still in the nearest cache when its first gradient comes.
    """
    mine, ordinals, dim = lists[0], lists[1], grads.shape[1]
    source, target, step = np.uint64(grads.ctypes.data), np.uint64(sums.ctypes.data), _4 * np.uint64(dim)
    cleared = 0
    for k in range(many):
        if ordinals[k] >= cleared:
            sums[cleared : min(cleared + _CLEARED, count)] = np.float32(-0.0)
            cleared += _CLEARED
        add(dim, (target + np.uint64(ordinals[k]) * step, source + np.uint64(mine[k]) * step), ())


@njit(void(_LISTS, int64, int64, _BLOCK, _NEW_BLOCK), **_OPTIONS)
def total(lists, many, count, grads, sums):
    """The sum of each distinct id's gradients, in the order of the batch."""
    add_up(lists, many, count, grads, sums)


@njit(types.Tuple((_NEW_INTS, _NEW_BLOCK, int64))(_INTS, _BLOCK, _ENTRIES, _WORDS, int64), **_OPTIONS)
def reduce(ids, grads, index, words, column):
    """For a small batch at once: the distinct slots, the sums of their gradients, and how many ids have no row.

    If there are such, nothing was summed.
    """
    heads = 16
    while heads < 2 * ids.size:
        heads *= 2
    lists, distinct, slots = (
        np.empty((3, ids.size), np.int32),
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
    )
    entries, none = np.empty(heads, np.int32), np.empty((0, grads.shape[1]), np.float32)
    many, count, missing = arrange(ids, lists, distinct, slots, entries, index, words, column, 0, none, none)
    if missing:
        return slots, none, missing
    sums = np.empty((count, grads.shape[1]), np.float32)
    add_up(lists, many, count, grads, sums)
    return slots[:count], sums, missing


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
        words[slot, column + np.uint64(3)] = np.uint32(last)
