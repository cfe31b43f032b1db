"""Where a table's rows are: records in one array, found by the index; ids come, and go when the table is full.

A record is [values | state | stamp | id | last] in uint32 words, so that a step touches one place in memory. `last` counts the
row's updates; in a table with a limit it is the touch, for want of room: with the index (and the queue of victims there) a row
takes less than 24 bytes beside values and state. Nothing here takes a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.errors import BadOption
from lib.store.optim import Optimizer
from lib.store.table import gradients, index, kernels, lookup
from lib.store.table.index import FREE, NEVER
from lib.store.table.policy import Admission, Eviction
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
        return self.stamp + 4

    @property
    def spare(self) -> float:
        """Entries of the index per row: the more are free, the shorter is the search."""
        return 1.9 if self.queue == 0 else 1.85

    @property
    def queue(self) -> float:
        """Bytes per row of the queue of victims."""
        return 0.25 if self.limited else 0.0

    @property
    def bytes_per_row(self) -> float:
        """All that a row of a full table takes."""
        return 4 * self.width + 4 * self.spare + self.queue


class Records:
    """Rows by id. `words` and `index` are replaced in `resize` alone."""

    def __init__(
        self,
        layout: Layout,
        optimizer: Optimizer,
        *,
        seed: int,
        scale: float,
        capacity: int,
        limit: int | None,
        eviction: Eviction,
        admission: Admission,
        allocate: Allocate,
    ):
        self.layout, self.column = layout, layout.stamp
        self.evicted = 0
        self._optimizer, self._seed, self._scale = optimizer, seed, scale
        self._limit = _MOST if limit is None else limit
        self._admission, self._allocate = admission, allocate
        self._victims = Victims(eviction, layout.dim, self.column)
        self.generation = 0
        self.clear(min(capacity, self._limit))

    def __len__(self) -> int:
        return self.count - self.free.size

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.index.nbytes + self.free.nbytes + self._victims.nbytes

    @property
    def capacity(self) -> int:
        return self.words.shape[0]

    def clear(self, capacity: int) -> None:
        """Forget everything, and have room for that many rows."""
        self.count = 0
        self.free = np.empty(0, np.int64)
        self.sketch = self._admission.memory()
        self._victims.forget()
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Move the rows to new arrays."""
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
        self.free = np.flatnonzero(words[:count, self.column] == np.uint32(FREE % 2**32))
        self._victims.forget()
        index.rebuild(entries, words, self.column, count)
        self._set(words, entries)

    def become(self, words: np.ndarray, entries: np.ndarray, free: np.ndarray) -> None:
        """Go on with these records, their index, and the slots among them that hold no row."""
        self.count, self.free = len(words), free
        self._victims.forget()
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
        always: bool = False,
        protect: np.ndarray | None = None,
        stamp: int = NEVER,
    ) -> np.ndarray:
        """Slots for distinct ids without a row; -1 for one that is not admitted, or that does not fit in.

        Rows that call `now` looked up stay, and so do those in the slots to `protect`.
        """
        slots = np.full(ids.size, -1)
        chosen = np.arange(ids.size)
        if not always:
            chosen = np.flatnonzero(self._admission.chosen(ids, self.sketch, self._seed, now))
        if not chosen.size:
            return slots
        room = self._room(chosen.size, now, np.empty(0, np.int64) if protect is None else protect)
        chosen = chosen[: room.size]
        new = ids[chosen]
        block = np.hstack(
            [
                self.first_rows(new) if values is None else values[chosen],
                self._optimizer.first_state(new.size, self.layout.dim),
            ]
        )
        last = now if self.layout.limited else 0
        gradients.settle(self.words, room, new, block, self.column, stamp, last)
        index.enter(self.index, self.words, self.column, room)
        slots[chosen] = room
        return slots

    def drop(self, slots: np.ndarray) -> None:
        """Evict the rows in these slots."""
        self._remove(slots)
        self.free = np.concatenate([self.free, slots])

    def used(self) -> np.ndarray:
        """The slots that hold a row, sorted by id, and those ids."""
        slots = np.flatnonzero(self.words[: self.count, self.column] != np.uint32(FREE % 2**32))
        ids = index.ids_at(self.words, slots, self.column)
        order = np.argsort(ids)
        return slots[order], ids[order]

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
        self.generation += 1

    def _room(self, many: int, now: int, spared: np.ndarray) -> np.ndarray:
        """Up to `many` slots that hold no row: given back ones, new ones, and those of victims."""
        again = self.free[self.free.size - min(many, self.free.size) :][::-1]
        self.free = self.free[: self.free.size - again.size]
        fresh = min(many - again.size, self._limit - self.count)
        start, stop = self.count, self.count + fresh
        if stop > self.capacity:
            self.resize(max(stop, min(2 * self.capacity, self._limit)))
        self.count = stop
        missing = many - again.size - fresh
        if not missing:
            return np.concatenate([again, np.arange(start, stop)])
        self.words[start:stop, self.column] = np.uint32(FREE % 2**32)  # not in the index yet, so no victims
        victims = self._victims.take(self.words, self.count, missing, now, spared)
        self._remove(victims)
        return np.concatenate([again, np.arange(start, stop), victims])

    def _remove(self, slots: np.ndarray) -> None:
        index.remove(self.index, self.words, self.column, slots)
        self.evicted += slots.size
        self.generation += 1
