"""Batches of look-ups and of updates on a table's records, with their threads and the locks of single rows."""

from __future__ import annotations

import threading
from typing import Literal

import numpy as np

from lib.store.optim import Optimizer
from lib.store.table import gradients, kernels, lookup, split
from lib.store.table.batch_plan import Part, Plan, shares
from lib.store.table.fork import boards
from lib.store.table.optim_kernels import IN_ORDER
from lib.store.table.records import Records
from lib.store.table.team import together

Locking = Literal["call", "striped", "hogwild"]
SMALL = 2_048
"""Entries up to which a look-up needs no plan: caches hold what it meets twice."""
_STRIPES = 16
_NONE = np.empty((0, 0), np.float32)
_LAST = 2**32 - 1


class Traffic:
    """What `alone` says: that no other call is in the table. A call that is not may neither admit nor evict."""

    def __init__(self, records: Records, optimizer: Optimizer, *, threads: int, locking: Locking, admits: bool):
        self._records, self._optimizer, self.threads, self._admits = records, optimizer, threads, admits
        self._striped, self._limited = locking == "striped", records.layout.limited
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._plan = Plan()
        self.calls = self.lost = 0

    def now(self) -> int:
        """The number of this call."""
        if self.calls >= _LAST and self._limited:
            self.calls = self._records.renumber()
        self.calls += 1
        return self.calls

    def touch(self, now: int) -> int:
        """What a training look-up writes into rows."""
        return now if self._limited else 0

    def look_up(self, ids: np.ndarray, values: np.ndarray, alone: bool) -> bool:
        """Fill in the rows; False if that would take new rows and the call is not alone."""
        if not alone and self.calls >= _LAST:
            return False
        records, now, striped = self._records, self.now(), self._striped and not alone
        if ids.size <= SMALL and not striped:
            slots = np.empty(ids.size, np.int64)
            missing = lookup.fetch(ids, records.index, records.words, records.column, self.touch(now), slots, values)
            if missing and alone:
                unknown, positions, first = self.admit(ids, slots, now)
                values[unknown] = first[positions]
            return alone or not missing
        self._plan.make(ids, self.threads, records, self.touch(now), values[:0] if striped else values)
        if self._plan.missing:
            if not alone:
                return False
            self._fill_up(now, values)
        if striped:
            for part in self._plan.parts:
                self._copy_by_stripes(part, values)
        self._plan.keep(ids, records)
        return True

    def update(self, ids: np.ndarray, grads: np.ndarray, stamp: int, alone: bool) -> bool:
        """One step per distinct id; False if that would take new rows and the call is not alone."""
        records, plan = self._records, self._plan
        if ids.size <= SMALL and (alone or not self._striped):
            slots, sums, places, missing = gradients.reduce(ids, grads, records.index, records.words, records.column)
            if not missing:
                self._apply(slots, grads, stamp, sums, places)
            if not missing or not alone:
                return not missing
        if not plan.fits(ids, records):
            plan.make(ids, self.threads, records, 0, _NONE)
        if plan.missing:
            if not alone:
                return False
            if self._admits:
                self._fill_up(self.now(), None)
            self.lost += plan.missing
        if self._striped and not alone:
            parts = plan.parts  # a helper's own plan is another
            together(lambda which: self._step_by_stripes(parts[which], grads, stamp), len(parts))
        else:
            self._step(grads, stamp)
        return True

    def admit(self, ids: np.ndarray, slots: np.ndarray, now: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Admit ids whose slot is -1, as far as they may come in: their entries, which new id each is, those ids' first rows."""
        unknown = np.flatnonzero(slots < 0)
        new, positions = kernels.unique(ids[unknown])
        first = self._records.first_rows(new)
        slots[unknown] = self._records.admit(new, now, values=first)[positions]
        return unknown, positions, first

    def place(self, ids: np.ndarray, stamp: int) -> tuple[np.ndarray, np.ndarray]:
        """The slots of ids that are written whether they had a row or not, and which entries found room."""
        slots, missing = self._records.find(ids)
        if missing:
            unknown, found = slots < 0, slots[slots >= 0]
            new, positions = kernels.unique(ids[unknown])
            got = self._records.admit(new, self.now(), always=True, protect=found, stamp=stamp)
            slots[unknown] = got[positions]
            self.lost += int((got < 0).sum())
        kept = slots >= 0
        return slots[kept], kept

    def _fill_up(self, now: int, values: np.ndarray | None) -> None:
        """Admit the plan's unknown ids, in the order in which the batch met them; their entries get their first rows."""
        parts = self._plan.parts
        ids, which, ordinals = self._plan.absent()
        first = self._records.first_rows(ids)
        found = None if values is not None else np.concatenate([part.found() for part in parts])
        slots = self._records.admit(ids, now, values=first, protect=found)
        for number, part in enumerate(parts):
            mine = np.flatnonzero(which == number)
            part.slots[ordinals[mine]] = slots[mine]
            part.missing = int((slots[mine] < 0).sum())
            if values is not None:
                row_of = np.full(part.count, -1)
                row_of[ordinals[mine]] = mine
                values[part.lists[2, ordinals[mine]]] = first[mine]
                entries, ordinal = part.lists[:2, : part.many - part.count]
                row = row_of[ordinal]
                values[entries[row >= 0]] = first[row[row >= 0]]

    def _step(self, grads: np.ndarray, stamp: int) -> None:
        """The sums of the plan's gradients, and one step of the optimiser with them."""
        plan, first = self._plan, self._plan.parts[0]
        if len(plan.parts) > 1:
            sums, places = plan.room(grads.shape[1]), plan.places
            split.total(boards(len(plan.parts)), plan.lists, plan.counts, grads, sums, places)
            starts = np.arange(len(plan.parts)) * plan.slots.shape[1]
            ranges = np.stack([starts, starts + plan.counts[:, 1]], axis=1)
            self._apply(plan.slots.reshape(-1), grads, stamp, sums, places.reshape(-1), ranges)
        elif first.count < first.many:
            sums, places = plan.room(grads.shape[1]), plan.places[0]
            gradients.total(first.lists, first.many, first.count, grads, sums, places)
            self._apply(first.slots[: first.count], grads, stamp, sums, places)
        else:
            count, parts = first.count, shares(first.count, self.threads)
            ranges = np.array([(count * part // parts, count * (part + 1) // parts) for part in range(parts)])
            self._apply(first.slots[:count], grads, stamp, ranges=ranges)

    def _step_by_stripes(self, part: Part, grads: np.ndarray, stamp: int) -> None:
        slots, places = part.slots[: part.count], np.empty(part.count, np.int32)
        sums = np.empty((part.many - part.count, grads.shape[1]), np.float32)
        gradients.total(part.lists, part.many, part.count, grads, sums, places)
        for lock, mine in self._by_stripe(slots):
            with lock:
                self._apply(slots[mine], grads, stamp, sums, places[mine])

    def _apply(
        self,
        slots: np.ndarray,
        grads: np.ndarray,
        stamp: int,
        sums: np.ndarray | None = None,
        places: np.ndarray = IN_ORDER,
        ranges: np.ndarray | None = None,
    ) -> None:
        """The only place where a row that exists is updated."""
        mark = self._records.column, stamp, int(not self._limited)
        self._optimizer.update_slots(self._records.rows, slots, grads, mark, sums, places, ranges)

    def _copy_by_stripes(self, part: Part, values: np.ndarray) -> None:
        slots, block = part.slots[: part.count], np.empty((part.count, values.shape[1]), np.float32)
        for lock, mine in self._by_stripe(slots):
            with lock:
                block[mine] = kernels.gather(self._records.rows, slots[mine], 0, values.shape[1])
        entries, ordinals = part.lists[:2, : part.many - part.count]
        values[part.lists[2, : part.count]], values[entries] = block, block[ordinals]

    def _by_stripe(self, slots: np.ndarray):
        """Stripes in ascending order: whoever holds one waits at most for a later one, and nobody holds two."""
        stripe = slots % _STRIPES
        order = np.argsort(stripe, kind="stable")
        ends = np.searchsorted(stripe[order], np.arange(_STRIPES + 1))
        for number, lock in enumerate(self._stripes):
            if ends[number] < ends[number + 1]:
                yield lock, order[ends[number] : ends[number + 1]]
