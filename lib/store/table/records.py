"""Where a table's rows are: records in one array, found by the index; ids come, and go when the table is full.

A record is [values | state | stamp | id] in uint32 words, so that a step touches one place in memory; in a table with a limit
the touch follows. With the index (and the queue of victims there) a row takes less than 24 bytes beside values and state.
Nothing here takes a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lib.errors import BadOption
from lib.store.rows import Dump, Rows
from lib.store.table import index, kernels, lookup
from lib.store.table.index import NEVER
from lib.store.table.victims import Victims

NO_ROWS = np.empty((0, 0), np.float32)
NO_SLOTS = np.empty(0, np.int64)
_MOST = 2**31 - 2
_LAST = 2**32 - 2**16
"""Touches are uint32; calls that share the table may go a little further before they are counted anew."""


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


def content(dump: Dump | Rows, dim: int, columns: int) -> Rows:
    """The rows of what a table has dumped, in no order; they are parts of its records."""
    if isinstance(dump, Rows):  # of a table without values
        return dump
    column, every = dim + columns, slice(None)
    stamps = dump.words[:, column].view(np.int32).astype(np.int64)
    block = dump.words.view(np.float32)[:, :column]
    return Rows.of(index.ids_at(dump.words, every, column), block, dim, stamps)


class Records:
    """Rows by id. `words` and `index` are replaced in `resize` and `become` alone."""

    def __init__(
        self, layout: Layout, first: Callable[[np.ndarray], np.ndarray], *, capacity: int, limit: int | None = None
    ):
        """`first` gives [values | state] of new ids; there is room for `capacity` rows at the start, and for `limit` at most."""
        self.layout, self.column = layout, layout.stamp
        self.count = self.lost = self.evicted = self.calls = 0
        self.first = first
        self._limit = _MOST if limit is None else limit
        self._victims = Victims(self.column)
        self.resize(min(capacity, self._limit))

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.index.nbytes + self._victims.nbytes

    @property
    def capacity(self) -> int:
        return self.words.shape[0]

    def resize(self, capacity: int) -> None:
        """Move the rows to new arrays, each to the same slot."""
        if capacity > _MOST:
            raise BadOption(f"a table has room for at most {_MOST} rows, not {capacity}")
        words = self._grown(capacity)
        entries = np.zeros(int(capacity * self.layout.spare) + 2, np.uint32)
        index.enter(entries, words, self.column, np.arange(self.count))
        self._set(words, entries)

    def become(self, words: np.ndarray, entries: np.ndarray) -> None:
        """Go on with these records and their index."""
        self.count = len(words)
        self._victims.forget()
        self._set(words, entries)

    def clear(self) -> None:
        """Forget all rows."""
        self.changing(np.arange(self.count))
        self.count = 0
        self._victims.forget()
        self.index[:] = 0

    def changing(self, slots: np.ndarray) -> None:
        """These records are about to change. Nothing to do, but where a process that dies has heirs."""

    def fault_in(self, ids: np.ndarray) -> None:
        """A call for these ids is about to come. Nothing to do, but where rows may have to come from a disk."""

    def now(self) -> int:
        """The number of this call."""
        self.calls += 1
        return self.calls

    @property
    def exhausted(self) -> bool:
        """Whether calls have to be counted anew, alone, before the next one."""
        return self.calls >= _LAST

    def renumber(self) -> None:
        """Touches as small as they can be in the same order, if numbers have come to their end."""
        if not self.exhausted:
            return
        self.calls = 0
        if self.layout.limited:
            self.changing(np.arange(self.count))
            touches = self.words[: self.count, self.column + 3]
            distinct, ranks = np.unique(touches, return_inverse=True)
            touches[:] = ranks + 1
            self.calls = distinct.size
            self._victims.forget()

    def find(self, ids: np.ndarray, values: np.ndarray = NO_ROWS, now: int = 0) -> tuple[np.ndarray, int]:
        """The slot of every id, -1 where it has no row, and how many have none; rows that are there are copied to `values`.

        With `now`, the number of a call, that is use of them.
        """
        slots, touch = np.empty(ids.size, np.int64), now if self.layout.limited else 0
        return slots, lookup.fetch(ids, self.index, self.words, self.column, touch, slots, values)

    def stamps(self, slots: np.ndarray) -> np.ndarray:
        """int64[n]; -1 for a row that was never updated and for the slot -1."""
        return index.stamps_at(self.words, self.column, slots)

    def admit(self, ids: np.ndarray, now: int, stamp: int = NEVER) -> np.ndarray:
        """The slots of ids that are admitted where they have no row; -1 for one that finds no room.

        Rows that call `now` looked up stay, and so do those of these ids.
        """
        slots, missing = self.find(ids)
        if missing:
            unknown = slots < 0
            new, positions = kernels.unique(ids[unknown])
            got = np.full(new.size, -1)
            room = self.add(new, now, stamp, slots[~unknown])
            got[: room.size] = room
            slots[unknown] = got[positions]
        return slots

    def add(self, ids: np.ndarray, now: int, stamp: int = NEVER, spared: np.ndarray = NO_SLOTS) -> np.ndarray:
        """The slots of distinct ids that have no row yet, or of as many as there is room for without those spared."""
        slots = self._room(ids.size, now, spared)
        self._settle(slots, ids[: slots.size], now, stamp)
        return slots

    def used(self) -> tuple[np.ndarray, np.ndarray]:
        """All slots, sorted by id, and those ids."""
        ids = self.ids()
        order = np.argsort(ids)
        return order, ids[order]

    def ids(self) -> np.ndarray:
        """Of each slot."""
        return index.ids_at(self.words, slice(0, self.count), self.column)

    def _set(self, words: np.ndarray, entries: np.ndarray) -> None:
        self.words, self.index = words, entries
        self.rows = words.view(np.float32)  # [values | state | what is no number]

    def _grown(self, capacity: int) -> np.ndarray:
        """Room for so many records, with those that there are."""
        words = np.empty((capacity, self.layout.width), np.uint32)
        if self.count:
            words[: self.count] = self.words[: self.count]
        return words

    def _settle(self, slots: np.ndarray, ids: np.ndarray, now: int, stamp: int) -> None:
        """Fill in the records of new rows, and enter them in the index."""
        column, words = self.column, self.words
        kernels.scatter(self.rows, slots, self.first(ids))
        index.label(words, column, slots, ids, stamp, now)
        index.enter(self.index, words, column, slots)

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
        self.changing(victims)
        index.remove(self.index, self.words, self.column, victims)
        self.evicted += victims.size
        return np.concatenate([np.arange(start, stop), victims])
