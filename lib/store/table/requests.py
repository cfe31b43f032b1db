"""Batches of look-ups and updates on a table's records: where their ids are, and the locks of the rows.

A look-up and the update that follows it concern the same ids, often with those of other callers between them: so what the last
large look-ups found is remembered, and serves an update of the same ids as long as no row was moved.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lib.store.optim import Optimizer
from lib.store.table import gradients, kernels, lookup
from lib.store.table.gate import Gate
from lib.store.table.optim_kernels import IN_ORDER
from lib.store.table.records import Records

Locking = Literal["striped", "none"]
SMALL = 2_048
"""Entries up to which a look-up is not worth remembering: caches hold what it meets twice."""
STRIPES = 8
"""Locks of rows; a power of two."""
_REMEMBERED = 2**20
"""Entries of all look-ups that are remembered."""
_LAST = 2**32 - 2**16
"""Touches are uint32; calls that share the table may go a little further before they are counted anew."""
_NO_ROWS = np.empty((0, 0), np.float32)


class Room:
    """Memory for what is found of one batch, used again and again: fresh memory would cost as much as the look-up."""

    def __init__(self, length: int):
        self.length = length
        self.ids, self.distinct, self.slots = np.empty((3, length), np.int64)
        self.lists, self.heads = np.empty((3, length), np.int32), np.empty(lookup.heads_for(length), np.int32)


@dataclass(slots=True)
class Found:
    """Where the ids of one batch are."""

    ids: np.ndarray
    """The batch's."""
    distinct: np.ndarray
    """Each once, in order of first appearance."""
    slots: np.ndarray
    """Of the distinct ids; -1 where one has no row."""
    missing: int
    """How many have none."""
    lists: np.ndarray | None
    """As `lookup.number` leaves them; None: no id stands twice."""
    moves: int
    """`Records.moves` at that time."""
    room: Room
    """The memory of all this, but the ids."""

    def entries(self, chosen: np.ndarray) -> np.ndarray:
        """The batch's entries of these distinct ids, by a mask."""
        return np.flatnonzero(chosen if self.lists is None else chosen[self.ordinals()])

    def ordinals(self) -> np.ndarray:
        """For each entry, which of the distinct ids it is."""
        count = self.distinct.size
        found = np.arange(self.ids.size)
        if self.lists is not None:
            later = self.ids.size - count
            found[self.lists[2, :count]] = np.arange(count)
            found[self.lists[0, :later]] = self.lists[1, :later]
        return found


class _Sums(threading.local):
    """Each thread's memory for sums, used again and again: fresh memory would cost as much as filling it."""

    def __init__(self):
        self._rows = np.empty((0, 1), np.float32)

    def of(self, many: int, dim: int) -> np.ndarray:
        if self._rows.shape[0] < many:
            self._rows = aligned(many, dim)
        return self._rows


def aligned(many: int, dim: int) -> np.ndarray:
    """Memory for rows that starts a cache line, so that rows of a line's length are in one and not in two."""
    block = np.empty(many * dim + 16, np.float32)
    start = -block.ctypes.data % 64 // 4
    return block[start : start + many * dim].reshape(many, dim)


class Requests:
    """What callers do that share the table, and the part of it for which one has to be alone."""

    def __init__(self, records: Records, optimizer: Optimizer, gate: Gate, locking: Locking):
        self._records, self._optimizer, self._gate = records, optimizer, gate
        self._stripes = [threading.Lock() for _ in range(STRIPES if locking == "striped" else 0)]
        self._remembered: dict[tuple[int, int, int], Found] = {}
        self._entries = 0
        self._remembering = threading.Lock()
        self._repeats = False
        self._sums = _Sums()
        self._spare: deque[Room] = deque(maxlen=4)
        self.calls = self.lost = 0

    @property
    def exhausted(self) -> bool:
        """Whether touches have to be counted anew, alone, before the next call."""
        return self.calls >= _LAST

    def renumber(self) -> None:
        if self.exhausted:
            self.calls = self._records.renumber() if self._records.layout.limited else 0

    def now(self) -> int:
        """The number of this call."""
        self.calls += 1
        return self.calls

    def look_up(self, ids: np.ndarray, values: np.ndarray, now: int) -> Found | None:
        """Fill in the rows that are there; where the others are to go, or None if there are no others."""
        records, touch = self._records, self.touch(now)
        if ids.size <= SMALL:
            slots = np.empty(ids.size, np.int64)
            if not lookup.fetch(ids, records.index, records.words, records.column, touch, slots, values):
                return None
        found = self.find(ids, touch, values)
        if found.missing:
            return found
        self._remember(found)
        return None

    def complete(self, found: Found, values: np.ndarray, now: int) -> None:
        """Alone: admit the ids that had no row, and fill in theirs."""
        entries = found.entries(found.slots < 0)
        found = self.admit(found, now)
        if not found.missing:
            self._remember(found)
        ids, records = found.ids[entries], self._records
        slots, block = np.empty(ids.size, np.int64), np.empty((ids.size, values.shape[1]), np.float32)
        lookup.fetch(ids, records.index, records.words, records.column, 0, slots, block)
        block[slots < 0] = records.first_rows(ids[slots < 0])
        values[entries] = block

    def find(self, ids: np.ndarray, touch: int = 0, values: np.ndarray = _NO_ROWS) -> Found:
        """Where a batch's ids are. Whether one stands twice is asked while batches hold none: then they need no numbers."""
        records, room = self._records, self._room_for(ids.size)
        where = records.index, records.words, records.column, touch
        if self._repeats or lookup.repeats(ids, room.distinct, room.heads):
            count, missing = lookup.plan(ids, room.lists, room.distinct, room.slots, room.heads, *where, values)
            self._repeats = count < ids.size
            return Found(ids, room.distinct[:count], room.slots[:count], missing, room.lists, records.moves, room)
        slots = room.slots[: ids.size]
        return Found(ids, ids, slots, lookup.fetch(ids, *where, slots, values), None, records.moves, room)

    def update(self, ids: np.ndarray, grads: np.ndarray, stamp: int) -> Found | None:
        """One step per distinct id, if all have a row; else where they are, and nothing was done."""
        records = self._records
        if ids.size <= SMALL:
            slots, sums, places, missing = gradients.reduce(ids, grads, records.index, records.words, records.column)
            if not missing:
                self.step(slots, grads, stamp, sums, places)
                return None
        found = self._recall(ids) or self.find(ids)
        if not found.missing:
            self.step_with(found, grads, stamp)
        return found if found.missing else None

    def step_with(self, found: Found, grads: np.ndarray, stamp: int) -> None:
        """One step per distinct id that has a row.

        A caller that nobody else is with takes all stripes for one go. Else they are taken one at a time, those first that
        are free.
        """
        sums, places, room = None, IN_ORDER, found.room
        if found.lists is not None:
            sums, places = self._sums.of(*grads.shape), np.empty(found.slots.size, np.int32)
            gradients.total(found.lists, found.slots.size, grads, sums, places)
        if not self._stripes or found.slots.size <= SMALL or self._gate.inside <= 1:
            self.step(found.slots, grads, stamp, sums, places)
        else:
            slots, where = room.distinct, room.heads
            ends = gradients.by_stripe(found.slots, places, STRIPES, slots, where)
            for number in self._each_stripe():
                mine = slice(ends[number], ends[number + 1])
                self._step(slots[mine], grads, stamp, sums, where[mine])
        self.release(found)

    def release(self, found: Found) -> None:
        """It is not needed any more: its memory may be the next call's."""
        self._spare.append(found.room)

    def admit(self, found: Found, now: int) -> Found:
        """Alone: rows for the ids that have none, as far as there is room."""
        if found.moves != self._records.moves:
            found = self.find(found.ids)
        absent = np.flatnonzero(found.slots < 0)
        slots, _ = self._records.find(found.distinct[absent])  # another call may have admitted some
        new = slots < 0
        spared = np.concatenate([found.slots[found.slots >= 0], slots[~new]])
        slots[new] = self._records.admit(found.distinct[absent[new]], now, protect=spared)
        found.slots[absent] = slots
        found.missing = int((slots < 0).sum())
        return found

    def place(self, ids: np.ndarray, stamp: int) -> tuple[np.ndarray, np.ndarray]:
        """Alone: the slots of ids that are written whether they had a row or not, and which entries found room."""
        slots, missing = self._records.find(ids)
        if missing:
            unknown, found = slots < 0, slots[slots >= 0]
            new, positions = kernels.unique(ids[unknown])
            got = self._records.admit(new, self.now(), protect=found, stamp=stamp)
            slots[unknown] = got[positions]
            self.lost += int((got < 0).sum())
        kept = slots >= 0
        return slots[kept], kept

    def touch(self, now: int) -> int:
        """What a training look-up writes into rows."""
        return now if self._records.layout.limited else 0

    def step(
        self,
        slots: np.ndarray,
        grads: np.ndarray,
        stamp: int,
        sums: np.ndarray | None = None,
        places: np.ndarray = IN_ORDER,
        rate: float = 1.0,
    ) -> None:
        """One step on these slots, under all stripes; `rate` times the learning rate."""
        for lock in self._stripes:
            lock.acquire()
        try:
            self._step(slots, grads, stamp, sums, places, rate=rate)
        finally:
            for lock in self._stripes:
                lock.release()

    def _each_stripe(self) -> Iterator[int]:
        """Every stripe once, held until the next is asked for; only where none is free is one waited for."""
        left = dict(enumerate(self._stripes))
        while left:
            number = next((number for number, lock in left.items() if lock.acquire(blocking=False)), None)
            if number is None:
                number = next(iter(left))
                left[number].acquire()
            try:
                yield number
            finally:
                left.pop(number).release()

    def _step(
        self, slots: np.ndarray, grads: np.ndarray, stamp: int, *which: np.ndarray | None, rate: float = 1.0
    ) -> None:
        mark = self._records.column, stamp
        self._optimizer.at(rate).update_slots(self._records.rows, slots, grads, mark, *which)

    def _remember(self, found: Found) -> None:
        if found.ids.size > SMALL:
            ids = found.room.ids[: found.ids.size]
            ids[:] = found.ids
            found.ids, found.distinct = ids, ids if found.lists is None else found.distinct
            with self._remembering:
                self._drop(_name(ids))
                self._remembered[_name(ids)] = found
                self._entries += ids.size
                while self._entries > _REMEMBERED:
                    self._drop(next(iter(self._remembered)))

    def _recall(self, ids: np.ndarray) -> Found | None:
        """What a look-up of these ids found, if it still holds; it serves once."""
        if ids.size <= SMALL:
            return None
        with self._remembering:
            found = self._forget(_name(ids))
        if found and not (found.moves == self._records.moves and np.array_equal(found.ids, ids)):
            self._spare.append(found.room)
            return None
        return found

    def _forget(self, name: tuple[int, int, int]) -> Found | None:
        found = self._remembered.pop(name, None)
        self._entries -= found.ids.size if found else 0
        return found

    def _drop(self, name: tuple[int, int, int]) -> None:
        if found := self._forget(name):
            self._spare.append(found.room)

    def _room_for(self, many: int) -> Room:
        """Memory that nobody has now; of several pieces the one that was used last, since it is in the caches."""
        with suppress(IndexError):
            if (room := self._spare.pop()).length >= many:
                return room
        return Room(many)


def _name(ids: np.ndarray) -> tuple[int, int, int]:
    return ids.size, int(ids[0]), int(ids[-1])
