"""Who goes next from a full table: exact least-recently-used order for four bytes a row, without a list.

A list through the rows (previous and next) costs eight bytes a row and three scattered writes for each row that is looked
up. Here a look-up writes the number of its call into the record, which it has in its hands anyway. When a victim is needed,
one pass over the table picks about the sixteenth with the least numbers, in order, and they serve until they are used up: a row
that is looked up meanwhile has a larger number than all that were picked, so it is passed over, and the order is that of the
list. How many are picked is no matter, so a sample says up to which number. Rows of one call are equally recent; among them the
one with the least id goes first.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.types import int32, int64

from lib.store.table.index import _WORDS, ids_at
from lib.store.table.kernels import _OPTIONS

_PART, _SAMPLE = 16, 2**16


class Victims:
    """Slots of a table in the order in which they go."""

    def __init__(self, column: int):
        self._column = column
        self.forget()

    @property
    def nbytes(self) -> int:
        return self._queue.nbytes

    def forget(self) -> None:
        """The table's content was replaced."""
        self._queue, self._cut = np.empty(0, np.int32), 0

    def take(self, words: np.ndarray, count: int, many: int, now: int, spared: np.ndarray) -> np.ndarray:
        """Up to `many` slots among the first `count`; none that call `now` touched, none that are to be spared."""
        none = np.empty(0, np.int64)
        taken, held, missing, spared = [none], none, many, np.sort(spared)
        while missing:
            if not self._queue.size:
                held = none  # picked again
                self._refill(words, count, missing + spared.size, now, np.concatenate(taken))
                if _among(self._queue, spared).all():
                    break
            slots, self._queue = self._queue[:missing].astype(np.int64), self._queue[missing:]
            slots = slots[self._goes(words, slots, now) & (words[slots, self._column + 3] <= self._cut)]
            stays = _among(slots, spared)
            held = np.concatenate([held, slots[stays]])
            taken.append(slots[~stays])
            missing -= taken[-1].size
        self._queue = np.concatenate([held.astype(np.int32), self._queue])
        return np.concatenate(taken)

    def _refill(self, words: np.ndarray, count: int, many: int, now: int, taken: np.ndarray) -> None:
        """Pick at least so many that are not taken, or all that there are."""
        taken = np.sort(taken)
        for stride in sorted({max(1, count // _SAMPLE), 1}, reverse=True):  # where a sample misleads, all are asked
            touches = words[:count:stride, self._column + 3]
            touches = touches[touches != now]
            want = min(max(-(-(many + taken.size) // stride), touches.size // _PART), touches.size)
            if not want:
                continue
            self._cut = int(np.partition(touches, want - 1)[want - 1])
            slots = _until(words, count, self._column + 3, self._cut, now)
            slots = slots[~_among(slots, taken)]
            slots = slots[np.argsort(ids_at(words, slots, self._column))]  # a third of what a lexsort takes
            self._queue = slots[np.argsort(words[slots, self._column + 3], kind="stable")]
            if self._queue.size >= many:
                return

    def _goes(self, words: np.ndarray, slots: np.ndarray | slice, now: int) -> np.ndarray:
        return words[slots, self._column + 3] != now


@njit(int32[::1](_WORDS, int64, int64, int64, int64), **_OPTIONS)
def _until(words, count, touch, cut, now):
    """The slots of records that were touched up to a call, and not by this one."""
    slots, found, column = np.empty(count, np.int32), 0, np.uint64(touch)
    for slot in range(np.uint64(count)):
        at = words[slot, column]
        if at <= cut and at != now:
            slots[found] = slot
            found += 1
    return slots[:found].copy()


def _among(slots: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Which of the slots are in an ascending list."""
    if not ordered.size:
        return np.zeros(slots.size, bool)
    return ordered[np.minimum(np.searchsorted(ordered, slots), ordered.size - 1)] == slots
