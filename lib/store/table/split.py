"""`lookup.plan` in several threads, and the sums of a batch's gradients: the same results, whatever the number of threads.

Ids belong to parts by their hash, so that a part numbers and sums its ids alone, in the order of the batch. Rows are found and
copied to their entries by stretches of the batch: were neighbouring rows written by two threads, processors would pass lines to
and fro. A stretch ends where the threads have the same number of ids to find, or of entries to copy.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import int32, int64, uint64, void

from lib.store.table.fork import _BOARDS, as_job, fork, spill, unspill
from lib.store.table.gradients import add_up
from lib.store.table.index import _ENTRIES, _WORDS
from lib.store.table.kernels import _BLOCK, _INTS, _NEW_BLOCK, _OPTIONS, mix
from lib.store.table.lookup import number, repeat, seek

_LISTS, _PARTS, _HEADS = int32[:, :, ::1], int64[:, ::1], int32[:, ::1]
_NUMBER = types.Tuple((_INTS, _LISTS, _PARTS, _HEADS, _PARTS))
_SEEK = types.Tuple((_PARTS, _PARTS, _PARTS, _PARTS, _LISTS, _ENTRIES, _WORDS, int64, int64, _NEW_BLOCK))
_REPEAT = types.Tuple((_LISTS, _PARTS, _NEW_BLOCK))
_TOTAL = types.Tuple((_LISTS, _PARTS, _BLOCK, _NEW_BLOCK, _HEADS))


@as_job
def _number(part, at):
    """The part's ids, whose hash ends in its number, and their count; nothing branches on what nobody foresees."""
    ids, lists, distinct, heads, counts = unspill(at, _NUMBER)
    wanted, last = np.uint64(part), np.uint64(counts.shape[0] - 1)
    mine, found, many = lists[part, 0], distinct[part], 0
    for i in range(ids.size):
        mine[many], found[many] = i, ids[i]
        many += (mix(np.uint64(ids[i])) & last) == wanted
    counts[part, 0], counts[part, 1] = many, number(found, many, lists[part], found, heads[part])


@njit(**_OPTIONS)
def cuts(lists, which, counts, size):
    """How far each stretch goes in each part's list of positions, int64[parts + 1, parts]; stretches have equal numbers."""
    parts = counts.size
    ends, whole = np.zeros((parts + 1, parts), np.int64), counts.sum()
    for stretch_ in range(1, parts + 1):
        low, high = 0, size
        while low < high:
            middle, before = (low + high) // 2, 0
            for part in range(parts):
                before += np.searchsorted(lists[part, which, : counts[part]], middle)
            if before < stretch_ * whole // parts:
                low = middle + 1
            else:
                high = middle
        for part in range(parts):
            ends[stretch_, part] = np.searchsorted(lists[part, which, : counts[part]], low)
    return ends


@as_job
def _seek(part, at):
    ends, missing, distinct, slots, lists, index, words, column, touch, values = unspill(at, _SEEK)
    for owner in range(ends.shape[1]):
        first, last = ends[part, owner], ends[part + 1, owner]
        ids, mine, places = distinct[owner, first:last], slots[owner, first:last], lists[owner, 2, first:last]
        missing[part, owner] = seek(ids, last - first, index, words, column, touch, mine, places, values)


@as_job
def _repeat(part, at):
    lists, ends, values = unspill(at, _REPEAT)
    for owner in range(ends.shape[1]):
        repeat(lists[owner], ends[part, owner], ends[part + 1, owner], values)


@as_job
def _total(part, at):
    lists, counts, grads, sums, places = unspill(at, _TOTAL)
    base = part * lists.shape[2]
    add_up(lists[part], counts[part, 0], counts[part, 1], grads, sums, base, places[part])


_JOBS = tuple(np.uint64(job.address) for job in (_number, _seek, _repeat))


def plan(boards: np.ndarray, *arguments: object) -> None:
    """Plan as many parts as `counts` has rows: entries, distinct ids and unknown ids of each."""
    _plan(boards, _JOBS, *arguments)


def total(boards: np.ndarray, *arguments: object) -> None:
    """`moves.add_up` for each part; its sums start at the row that its ordinals would have if all parts' were one list."""
    _totals(boards, np.uint64(_total.address), *arguments)


@njit(
    void(
        _BOARDS, types.UniTuple(uint64, 3), _INTS, _LISTS, _PARTS, _PARTS, _HEADS, _PARTS, _ENTRIES, _WORDS, int64, int64,
        _NEW_BLOCK,
    ),
    **_OPTIONS,
)  # fmt: skip
def _plan(boards, jobs, ids, lists, distinct, slots, heads, counts, index, words, column, touch, values):
    numbering, seeking, repeating = jobs
    parts = counts.shape[0]
    fork(boards, numbering, spill(_NUMBER, (ids, lists, distinct, heads, counts)), parts)
    ends, missing = cuts(lists, 2, counts[:, 1], ids.size), np.empty((parts, parts), np.int64)
    arguments = ends, missing, distinct, slots, lists, index, words, column, touch, values
    fork(boards, seeking, spill(_SEEK, arguments), parts)
    counts[:, 2] = missing.sum(axis=0)
    if values.shape[0]:
        ends = cuts(lists, 0, counts[:, 0] - counts[:, 1], ids.size)
        fork(boards, repeating, spill(_REPEAT, (lists, ends, values)), parts)


@njit(void(_BOARDS, uint64, _LISTS, _PARTS, _BLOCK, _NEW_BLOCK, _HEADS), **_OPTIONS)
def _totals(boards, job, lists, counts, grads, sums, places):
    fork(boards, job, spill(_TOTAL, (lists, counts, grads, sums, places)), counts.shape[0])
