"""`lookup.plan` in several threads, and the sums of a batch's gradients: the same results, whatever the number of threads.

Ids belong to parts by their hash, so that a part numbers and sums its ids alone, in the order of the batch. Rows are copied to
their entries by stretches of the batch: were neighbouring rows written by two threads, processors would pass lines to and fro.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import boolean, int32, int64, uint64, void

from lib.store.fork import _BOARDS, as_job, fork, spill, unspill
from lib.store.index import _ENTRIES, _WORDS
from lib.store.kernels import _BLOCK, _INTS, _NEW_BLOCK, _OPTIONS, mix
from lib.store.lookup import number, repeat, seek
from lib.store.moves import add_up

_LISTS, _PARTS, _HEADS = int32[:, :, ::1], int64[:, ::1], int32[:, ::1]
_NUMBER = types.Tuple((_INTS, _LISTS, _PARTS, _HEADS, _PARTS))
_SEEK = types.Tuple((_PARTS, _PARTS, _PARTS, _LISTS, _ENTRIES, _WORDS, int64, int64, _NEW_BLOCK))
_SEEK_ALL = types.Tuple((_INTS, _PARTS, _PARTS, _ENTRIES, _WORDS, int64, int64, _NEW_BLOCK))
_REPEAT = types.Tuple((_LISTS, _PARTS, _NEW_BLOCK))
_TOTAL = types.Tuple((_LISTS, _PARTS, _BLOCK, _NEW_BLOCK, _HEADS))


@njit(**_OPTIONS)
def stretch(part, parts, size):
    """From where to where a part of a batch goes."""
    return part * size // parts, (part + 1) * size // parts


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


@as_job
def _seek(part, at):
    counts, distinct, slots, lists, index, words, column, touch, values = unspill(at, _SEEK)
    ids, mine, firsts, count = distinct[part], slots[part], lists[part, 2], counts[part, 1]
    counts[part, 2], _ = seek(ids, count, index, words, column, touch, mine, firsts, values)


@as_job
def _seek_all(part, at):
    ids, counts, slots, index, words, column, touch, values = unspill(at, _SEEK_ALL)
    first, last = stretch(part, counts.shape[0], ids.size)
    mine, out, none = slots[0, first:last], values[first:last], np.empty(0, np.int32)
    counts[part, 2], _ = seek(ids[first:last], last - first, index, words, column, touch, mine, none, out)


@as_job
def _repeat(part, at):
    lists, counts, values = unspill(at, _REPEAT)
    first, last = stretch(part, counts.shape[0], values.shape[0])
    for owner in range(counts.shape[0]):
        entries = lists[owner, 0, : counts[owner, 0] - counts[owner, 1]]
        repeat(lists[owner], np.searchsorted(entries, first), np.searchsorted(entries, last), values)


@as_job
def _total(part, at):
    lists, counts, grads, sums, places = unspill(at, _TOTAL)
    base = part * lists.shape[2]
    add_up(lists[part], counts[part, 0], counts[part, 1], grads, sums, base, places[part])


_JOBS = tuple(np.uint64(job.address) for job in (_number, _seek, _seek_all, _repeat))


def plan(boards: np.ndarray, *arguments: object) -> bool:
    """Plan as many parts as `counts` has rows: entries, distinct ids and unknown ids of each.

    True if the batch holds no id twice and rows were copied: then there are no parts, and `slots[0]` is in the batch's order.
    """
    return _plan(boards, _JOBS, *arguments)


def total(boards: np.ndarray, *arguments: object) -> None:
    """`moves.add_up` for each part; its sums start at the row that its ordinals would have if all parts' were one list."""
    _totals(boards, np.uint64(_total.address), *arguments)


@njit(
    boolean(
        _BOARDS, types.UniTuple(uint64, 4), _INTS, _LISTS, _PARTS, _PARTS, _HEADS, _PARTS, _ENTRIES, _WORDS, int64, int64,
        _NEW_BLOCK,
    ),
    **_OPTIONS,
)  # fmt: skip
def _plan(boards, jobs, ids, lists, distinct, slots, heads, counts, index, words, column, touch, values):
    numbering, seeking, seeking_all, repeating = jobs
    parts = counts.shape[0]
    fork(boards, numbering, spill(_NUMBER, (ids, lists, distinct, heads, counts)), parts)
    if values.shape[0] and counts[:, 1].sum() == ids.size:
        fork(boards, seeking_all, spill(_SEEK_ALL, (ids, counts, slots, index, words, column, touch, values)), parts)
        return True
    fork(boards, seeking, spill(_SEEK, (counts, distinct, slots, lists, index, words, column, touch, values)), parts)
    if values.shape[0]:
        fork(boards, repeating, spill(_REPEAT, (lists, counts, values)), parts)
    return False


@njit(void(_BOARDS, uint64, _LISTS, _PARTS, _BLOCK, _NEW_BLOCK, _HEADS), **_OPTIONS)
def _totals(boards, job, lists, counts, grads, sums, places):
    fork(boards, job, spill(_TOTAL, (lists, counts, grads, sums, places)), counts.shape[0])
