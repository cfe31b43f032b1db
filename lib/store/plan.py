"""How a batch maps to the table: its distinct ids, where they lie, and which entries are whose.

A look-up and the update that follows it concern the same ids; so the plan of a thread's last look-up serves its next
update, if no row has moved since. A batch is planned in as many parts as threads work on it, by the ids' hashes: each id
belongs to one part, whose sums run in the order of the batch, so results do not depend on the number of parts.
"""

from __future__ import annotations

import threading

import numpy as np

from lib.store import lookup
from lib.store.records import Records
from lib.store.team import together

LARGE = 16_384
"""Entries from which on threads are worth waking."""
_KEPT = 2_048
"""Entries from which on a plan is worth keeping."""


class Part:
    """The entries of some ids; arrays are as long as the largest batch so far, and used as far as the counts say."""

    def __init__(self):
        self.lists, self._room = np.empty((3, 0), np.int32), np.empty(0, np.float32)
        self.distinct = self.slots = np.empty(0, np.int64)
        self.heads = np.empty(16, np.int32)
        self.many = self.count = self.missing = 0

    def make(
        self, ids: np.ndarray, part: int, bits: int, records: Records, touch: int, values: np.ndarray, marks: bool
    ) -> None:
        if self.lists.shape[1] < ids.size:
            self.lists = np.empty((3, ids.size), np.int32)
            self.distinct, self.slots = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
            self.heads = np.empty(max(16, 1 << (2 * ids.size - 1).bit_length()), np.int32)
        self.many, self.count, self.missing = lookup.plan(
            ids, part, bits, self.lists, self.distinct, self.slots, self.heads, records.index, records.words,
            records.column, touch, marks, self.room(len(values), values.shape[1]), values,
        )  # fmt: skip

    def found(self) -> np.ndarray:
        """The slots of the ids that have one."""
        slots = self.slots[: self.count]
        return slots[slots >= 0]

    def room(self, count: int, dim: int) -> np.ndarray:
        """Memory for that many rows, used again and again."""
        if self._room.size < count * dim:
            self._room = np.empty(count * dim, np.float32)
        return self._room[: count * dim].reshape(count, dim)

    def absent(self) -> np.ndarray:
        """Ordinals of the ids without a row."""
        return np.flatnonzero(self.slots[: self.count] < 0)


class Plan(threading.local):
    """Each thread's plan."""

    def __init__(self):
        self.parts: list[Part] = []
        self._spare: list[Part] = []
        self._kept: tuple[np.ndarray, int] | None = None
        self._repeats = False

    def make(
        self, ids: np.ndarray, threads: int, records: Records, touch: int, values: np.ndarray, alone: bool
    ) -> None:
        """Plan the batch, part by part in threads, and copy the rows that are there to `values`, unless that is empty.

        `alone` says that no other call touches rows meanwhile. Then touches may tell whether an id stands twice, which is the
        faster way where none does: so it is taken while batches hold no id twice.
        """
        number = 1 << (threads.bit_length() - 1) if ids.size >= LARGE else 1
        while len(self._spare) < number:
            self._spare.append(Part())
        parts, bits = self._spare[:number], number.bit_length() - 1
        self.parts, self._kept = parts, None

        marks = alone and not self._repeats
        together(lambda which: parts[which].make(ids, which, bits, records, touch, values, marks), number)
        self._repeats = any(part.count < part.many for part in parts)

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
