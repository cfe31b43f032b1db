"""Who goes next from a full table: exact least-recently-used order for four bytes a row, without a list.

A list through the rows (previous and next) costs eight bytes a row and three scattered writes for each row that is looked
up. Here a look-up writes the number of its call into the record, which it has in its hands anyway. When a victim is needed,
one pass over the table picks the sixteenth with the least keys, in order, and they serve until they are used up: a row that is
looked up meanwhile has a larger number than all that were picked, so it is passed over, and the order is that of the list.
"""

from __future__ import annotations

import numpy as np

from lib.store.index import FREE, ids_at
from lib.store.policy import Eviction

_PART = 16


class Victims:
    """Slots of a table in the order in which they go."""

    def __init__(self, eviction: Eviction, dim: int, column: int):
        self._eviction, self._dim, self._column = eviction, dim, column
        self.forget()

    @property
    def nbytes(self) -> int:
        return self._queue.nbytes

    def forget(self) -> None:
        """The table's content was replaced."""
        self._queue, self._cut = np.empty(0, np.int32), 0

    def take(self, words: np.ndarray, count: int, many: int, now: int) -> np.ndarray:
        """Up to `many` slots among the first `count`; none that call `now` touched."""
        taken, missing = [], many
        while missing:
            if not self._queue.size and not self._refill(words, count, missing, now):
                break
            slots, self._queue = self._queue[:missing].astype(np.int64), self._queue[missing:]
            slots = slots[self._goes(words, slots, now) & (self._keys(words, slots) <= self._cut)]
            words[slots, self._column + 3] = now  # not to be taken twice
            taken.append(slots)
            missing -= slots.size
        return np.concatenate([np.empty(0, np.int64), *taken])

    def _refill(self, words: np.ndarray, count: int, many: int, now: int) -> bool:
        slots = np.flatnonzero(self._goes(words, slice(0, count), now))
        if not slots.size:
            return False
        keys = self._keys(words, slice(0, count))[slots]
        want = max(many, slots.size // _PART)
        self._cut = np.partition(keys, want - 1)[want - 1] if want < slots.size else keys.max()
        picked = keys <= self._cut
        slots = slots[picked]
        self._queue = slots[np.lexsort((ids_at(words, slots, self._column), keys[picked]))].astype(np.int32)
        return True

    def _goes(self, words: np.ndarray, slots: np.ndarray | slice, now: int) -> np.ndarray:
        return (words[slots, self._column] != np.uint32(FREE % 2**32)) & (words[slots, self._column + 3] != now)

    def _keys(self, words: np.ndarray, slots: np.ndarray | slice) -> np.ndarray:
        return self._eviction.keys(words, slots, self._column, self._dim)
