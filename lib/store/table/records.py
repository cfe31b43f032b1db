"""Where a table's rows are: records in one array, found by the index; ids come, and go when the table is full.

A record is [values | state | stamp | id] in uint32 words, so that a step touches one place in memory; in a table with a limit
the touch follows. With the index (and the queue of victims there) a row takes less than 24 bytes beside values and state.
Nothing here takes a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.errors import BadOption
from lib.store.optim import Optimizer
from lib.store.table import gradients, index, kernels, lookup
from lib.store.table.index import NEVER
from lib.store.table.victims import Victims

Allocate = Callable[[str, tuple[int, ...], Any], np.ndarray]
_MOST = 2**31 - 2


def private(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """The default memory of a table's arrays."""
    return np.empty(shape, dtype)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a row needs."""

    dim: int
    columns: int
    """Numbers of optimiser state."""
    limited: bool
    """Whether rows may be evicted for want of room."""

    @property
    def stamp(self) -> int:
        """The column of the stamp, and the width of values and state."""
        return self.dim + self.columns

    @property
    def width(self) -> int:
        return self.stamp + 3 + self.limited

    @property
    def spare(self) -> float:
        """Entries of the index per row: the more are free, the shorter is the search."""
        return 1.85 if self.limited else 1.9

    @property
    def bytes_per_row(self) -> float:
        """All that a row of a full table takes; a quarter of a byte is the queue of victims'."""
        return 4 * self.width + 4 * self.spare + 0.25 * self.limited


class Records:
    """Rows by id. `words` and `index` are replaced in `resize`, `adopt` and `become` alone."""

    def __init__(
        self,
        layout: Layout,
        optimizer: Optimizer,
        *,
        seed: int,
        scale: float,
        capacity: int,
        limit: int | None,
        allocate: Allocate = private,
    ):
        self.layout, self.column = layout, layout.stamp
        self.evicted = 0
        self._optimizer, self._seed, self._scale = optimizer, seed, scale
        self._limit = _MOST if limit is None else limit
        self._allocate = allocate
        self._victims = Victims(self.column)
        self.moves = 0
        """How often a row may have left its slot."""
        self.clear(min(capacity, self._limit))

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.index.nbytes + self._victims.nbytes

    @property
    def capacity(self) -> int:
        return self.words.shape[0]

    def clear(self, capacity: int) -> None:
        """Forget everything, and have room for that many rows."""
        self.count = 0
        self._moved()
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Move the rows to new arrays, each to the same slot."""
        if capacity > _MOST:
            raise BadOption(f"a table has room for at most {_MOST} rows, not {capacity}")
        words = self._allocate("words", (capacity, self.layout.width), np.uint32)
        entries = self._allocate("index", (int(capacity * self.layout.spare) + 2,), np.uint32)
        if self.count:
            words[: self.count] = self.words[: self.count]
        index.rebuild(entries, words, self.column, self.count)
        self._set(words, entries)

    def adopt(self, words: np.ndarray, entries: np.ndarray, count: int) -> None:
        """Go on with arrays that `allocate` gave to another process, of which `count` records were in use; index anew."""
        self.count = count
        self._moved()
        index.rebuild(entries, words, self.column, count)
        self._set(words, entries)

    def become(self, words: np.ndarray, entries: np.ndarray) -> None:
        """Go on with these records and their index."""
        self.count = len(words)
        self._moved()
        self._set(words, entries)

    def find(self, ids: np.ndarray, touch: int = 0) -> tuple[np.ndarray, int]:
        """The slot of every id, -1 where it has no row, and how many have none."""
        return lookup.find(ids, self.index, self.words, self.column, touch)

    def stamps(self, slots: np.ndarray) -> np.ndarray:
        """int64[n]; -1 for a row that was never updated and for the slot -1."""
        if not self.capacity:
            return np.full(slots.size, NEVER)
        return np.where(slots >= 0, self.words[slots, self.column].astype(np.int32), NEVER).astype(np.int64)

    def first_rows(self, ids: np.ndarray) -> np.ndarray:
        return kernels.first_rows(ids, self._seed, self.layout.dim, self._scale)

    def admit(
        self,
        ids: np.ndarray,
        now: int,
        *,
        values: np.ndarray | None = None,
        protect: np.ndarray | None = None,
        stamp: int = NEVER,
    ) -> np.ndarray:
        """Slots for distinct ids without a row; -1 for one that does not fit in.

        Rows that call `now` looked up stay, and so do those in the slots to `protect`.
        """
        slots = np.full(ids.size, -1)
        if not ids.size:
            return slots
        room = self._room(ids.size, now, np.empty(0, np.int64) if protect is None else protect)
        new = ids[: room.size]
        first = self.first_rows(new) if values is None else values[: room.size]
        block = np.hstack([first, self._optimizer.first_state(new.size, self.layout.dim)])
        gradients.settle(self.words, room, new, block, self.column, stamp, now if self.layout.limited else -1)
        index.enter(self.index, self.words, self.column, room)
        slots[: room.size] = room
        return slots

    def used(self) -> tuple[np.ndarray, np.ndarray]:
        """All slots, sorted by id, and those ids."""
        ids = index.ids_at(self.words, slice(0, self.count), self.column)
        order = np.argsort(ids)
        return order, ids[order]

    def renumber(self) -> int:
        """Touches as small as they can be in the same order; the largest."""
        touches = self.words[: self.count, self.column + 3]
        distinct, ranks = np.unique(touches, return_inverse=True)
        self.words[: self.count, self.column + 3] = ranks + 1
        self._victims.forget()
        return distinct.size

    def _set(self, words: np.ndarray, entries: np.ndarray) -> None:
        self.words, self.index = words, entries
        self.rows = words.view(np.float32)  # [values | state | what is no number]

    def _moved(self) -> None:
        self._victims.forget()
        self.moves += 1

    def _room(self, many: int, now: int, spared: np.ndarray) -> np.ndarray:
        """Up to `many` slots that hold no row: new ones, and those of victims."""
        fresh = min(many, self._limit - self.count)
        start, stop = self.count, self.count + fresh
        if stop > self.capacity:
            self.resize(max(stop, min(2 * self.capacity, self._limit)))
        self.count = stop
        if fresh == many:
            return np.arange(start, stop)
        victims = self._victims.take(self.words, start, many - fresh, now, spared)
        self._remove(victims)
        return np.concatenate([np.arange(start, stop), victims])

    def _remove(self, slots: np.ndarray) -> None:
        index.remove(self.index, self.words, self.column, slots)
        self.evicted += slots.size
        self.moves += 1
