"""A batch that holds no id twice needs no numbers: its rows are found and copied as its ids stand there.

Whether it holds one twice is told in a fraction of the time that numbering takes. Every id sets a bit of a map, at a place that
its hash says; ids that share a place with another are few, if none stands twice, and only they are compared.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import int32, int64, uint64

from lib.store.table.fork import _BOARDS, as_job, fork, spill, stretch, unspill
from lib.store.table.index import _ENTRIES, _WORDS
from lib.store.table.kernels import _INTS, _NEW_BLOCK, _NEW_INTS, _OPTIONS, mix
from lib.store.table.lookup import heads_for, seek

_PARTS, _HEADS = int64[:, ::1], int32[:, ::1]
_SCREEN = types.Tuple((_INTS, _PARTS, _HEADS, _NEW_INTS))
_SEEK = types.Tuple((_INTS, _NEW_INTS, _NEW_INTS, _ENTRIES, _WORDS, int64, int64, _NEW_BLOCK))
_5, _31, _32 = np.uint64(5), np.uint64(31), np.uint64(32)


@njit
def twice(ids, part, parts, codes, heads):
    """Whether an id of one part, those whose hash ends in its number, stands in the batch twice; "yes" if many may.

    `codes` and `heads` are room to work in, for as many ids and for as many entries as numbering them would take.
    """
    wanted, last = np.uint64(part), np.uint64(parts - 1)
    size = heads_for(ids.size) // (2 * parts)
    bits, mask = heads[: 2 * size].view(np.uint32), np.uint64(32 * size - 1)
    bits[:] = 0
    many, few = 0, 0
    for i in range(ids.size):
        code = mix(np.uint64(ids[i]))
        codes[many] = np.int64(code)
        many += (code & last) == wanted
    for k in range(many):
        place = (np.uint64(codes[k]) >> _32) & mask
        word, bit = place >> _5, np.uint32(1) << np.uint32(place & _31)
        known = bits[word]
        bits[word] = known | bit
        bits[np.uint64(size) + word] |= known & bit
    for k in range(many):
        code = codes[k]
        place = (np.uint64(code) >> _32) & mask
        codes[few] = code
        few += np.int64((bits[np.uint64(size) + (place >> _5)] >> np.uint32(place & _31)) & np.uint32(1))
    if few > 1024 + many // 16:
        return True
    found = np.sort(codes[:few])  # a hash is a bijection: equal codes are equal ids
    return bool((found[1:] == found[:-1]).any())


@as_job
def _screen(part, at):
    ids, codes, heads, answers = unspill(at, _SCREEN)
    answers[part] = twice(ids, part, answers.size, codes[part], heads[part])


@as_job
def _seek(part, at):
    ids, missing, slots, index, words, column, touch, values = unspill(at, _SEEK)
    first, last = stretch(part, missing.size, ids.size)
    none = np.empty(0, np.int32)
    missing[part] = seek(
        ids[first:last], last - first, index, words, column, touch, slots[first:last], none, values[first:last]
    )


_JOBS = tuple(np.uint64(job.address) for job in (_screen, _seek))


def plan(boards: np.ndarray, parts: int, *arguments: object) -> int:
    """The slots of a batch's ids, in as many threads as there are parts, and how many have none; -1 if an id stands there twice.

    If `values` is not empty, the rows go there.
    """
    return _plan(boards, _JOBS, parts, *arguments)


@njit(
    int64(
        _BOARDS, types.UniTuple(uint64, 2), int64, _INTS, _PARTS, _HEADS, _NEW_INTS, _ENTRIES, _WORDS, int64, int64, _NEW_BLOCK
    ),
    **_OPTIONS,
)  # fmt: skip
def _plan(boards, jobs, parts, ids, codes, heads, slots, index, words, column, touch, values):
    screening, seeking = jobs
    answers = np.zeros(parts, np.int64)
    fork(boards, screening, spill(_SCREEN, (ids, codes, heads, answers)), parts)
    if answers.any():
        return -1
    fork(boards, seeking, spill(_SEEK, (ids, answers, slots, index, words, column, touch, values)), parts)
    return answers.sum()
