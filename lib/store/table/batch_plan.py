"""How a batch maps to the table: its distinct ids, where they lie, and which entries are whose.

A look-up and the update that follows it concern the same ids; so the plan of a thread's last look-up serves its next
update, if no row has moved since. A batch is planned in as many parts as threads work on it, by the ids' hashes: each id
belongs to one part, whose sums run in the order of the batch, so results do not depend on the number of parts.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from lib.store.table import lookup, once, split
from lib.store.table.fork import MOST, boards
from lib.store.table.records import Records

LARGE = 16_384
"""Entries from which on threads are worth waking."""
_KEPT = 2_048
"""Entries from which on a plan is worth keeping."""


def shares(size: int, threads: int) -> int:
    """Among how many threads a batch is shared out: a power of two."""
    return 1 << (min(threads, MOST).bit_length() - 1) if size >= LARGE else 1


@dataclass(slots=True)
class Part:
    """Some of a batch's ids, with all their entries."""

    lists: np.ndarray
    """int32[3, >= many], as `lookup.number` leaves them."""
    distinct: np.ndarray
    slots: np.ndarray
    """By ordinal."""
    many: int
    """Entries."""
    count: int
    """Distinct ids."""
    missing: int
    """Those without a row."""

    def found(self) -> np.ndarray:
        """The slots of the ids that have one."""
        slots = self.slots[: self.count]
        return slots[slots >= 0]

    def absent(self) -> np.ndarray:
        """Ordinals of the ids without a row."""
        return np.flatnonzero(self.slots[: self.count] < 0)


class Plan(threading.local):
    """Each thread's plan; arrays are as long as its largest batch so far."""

    def __init__(self):
        self.parts: list[Part] = []
        self.counts = np.zeros((0, 3), np.int64)
        self._lists, self._heads = np.empty((0, 3, 0), np.int32), np.empty((0, 0), np.int32)
        self._places, self._order = self._heads, self._lists
        self._distinct = self._slots = np.empty((0, 0), np.int64)
        self._room = np.empty(0, np.float32)
        self._kept: tuple[np.ndarray, int] | None = None
        self._repeats = False

    def make(self, ids: np.ndarray, threads: int, records: Records, touch: int, values: np.ndarray) -> None:
        """Plan the batch, part by part in threads, and copy the rows that are there to `values`, unless that is empty.

        A batch that holds no id twice is one part in its own order, and planned faster: so that is tried while batches hold none.
        """
        parts = shares(ids.size, threads)
        self._kept = None
        self._reserve(parts, ids.size)
        lists, distinct, slots, heads = self.lists, self._distinct[:parts], self.slots, self._heads[:parts]
        where = records.index, records.words, records.column, touch
        if not self._repeats:
            missing = once.plan(boards(parts), parts, ids, distinct, heads, slots[0], *where, values)
            if missing >= 0:
                self.parts = [Part(self._order, ids, slots[0], ids.size, ids.size, missing)]
                return
        if parts == 1:
            counts = lookup.plan(ids, lists[0], distinct[0], slots[0], heads[0], *where, values)
            self.parts = [Part(lists[0], distinct[0], slots[0], *counts)]
        else:
            split.plan(boards(parts), ids, lists, distinct, slots, heads, self.counts, *where, values)
            self.parts = [
                Part(*each, *map(int, counts))
                for *each, counts in zip(lists, distinct, slots, self.counts, strict=True)
            ]
        self._repeats = any(part.count < part.many for part in self.parts)

    @property
    def lists(self) -> np.ndarray:
        """int32[parts, 3, length], all parts' lists."""
        return self._lists[: len(self.counts)]

    @property
    def slots(self) -> np.ndarray:
        """int64[parts, length], all parts' slots."""
        return self._slots[: len(self.counts)]

    @property
    def places(self) -> np.ndarray:
        """int32[parts, length], room for where each ordinal's gradient is."""
        return self._places[: len(self.counts)]

    def room(self, dim: int) -> np.ndarray:
        """float32[parts x length, dim], room for sums, used again and again."""
        rows = self.slots.size
        if self._room.size < rows * dim:
            self._room = np.empty(rows * dim, np.float32)
        return self._room[: rows * dim].reshape(rows, dim)

    def _reserve(self, parts: int, length: int) -> None:
        if len(self._lists) < parts or self._lists.shape[2] < length:
            parts_, length = max(parts, len(self._lists)), max(length, self._lists.shape[2])
            self._lists = np.empty((parts_, 3, length), np.int32)
            self._distinct, self._slots = np.empty((parts_, length), np.int64), np.empty((parts_, length), np.int64)
            self._places = np.empty((parts_, length), np.int32)
            self._heads = np.empty((parts_, lookup.heads_for(length)), np.int32)
            self._order = np.tile(np.arange(length, dtype=np.int32), (3, 1))
        self.counts = np.zeros((parts, 3), np.int64)

    def keep(self, ids: np.ndarray, records: Records) -> None:
        """Remember the plan for `fits`, if every id has a row: another call may give one to those that have none."""
        if ids.size >= _KEPT and not self.missing:
            self._kept = ids.copy(), records.generation

    def fits(self, ids: np.ndarray, records: Records) -> bool:
        """Whether the plan is the one of these ids, and rows are where they were."""
        if self._kept is None or self._kept[1] != records.generation or self._kept[0].size != ids.size:
            return False
        return np.array_equal(self._kept[0], ids)

    @property
    def missing(self) -> int:
        return sum(part.missing for part in self.parts)

    def absent(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids without a row in order of first appearance, with their part and their ordinal there."""
        ordinals = [part.absent() for part in self.parts]
        which = np.repeat(np.arange(len(self.parts)), [each.size for each in ordinals])
        firsts = np.concatenate([part.lists[2, each] for part, each in zip(self.parts, ordinals, strict=True)])
        ids = np.concatenate([part.distinct[each] for part, each in zip(self.parts, ordinals, strict=True)])
        order = np.argsort(firsts)
        return ids[order], which[order], np.concatenate(ordinals)[order]
