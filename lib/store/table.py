"""Sparse parameters: 64-bit ids -> rows with their optimiser state and the timestamp of their last update.

Guaranteed:
- a new id's first row depends on the table's seed and the id alone, whoever asks for it and when;
- `push` makes one optimiser step per distinct id, with the sum of the gradients that the call holds for it;
- every call is atomic for threads; the kernels release the GIL, so other threads compute meanwhile;
- `export` depends on the content alone, not on the order in which ids were met.

The table never forgets an id: it grows by doubling.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from lib.errors import BadOption
from lib.store import kernels
from lib.store.inputs import floats_of, ids_of, number, whole
from lib.store.optim import Optimizer
from lib.store.rows import Rows

_NEVER = -1
_UNSET = -2  # below every valid stamp, so that the first write to a new slot always counts as newer


class Table:
    """Rows of `dim` float32 numbers, found by any int64 id."""

    def __init__(self, dim: int, optimizer: Optimizer, *, seed: int, scale: float = 0.01, capacity: int = 1024):
        """First rows are uniform in (-scale, scale); `capacity` is the number of rows to have room for at the start."""
        self.dim = whole(dim, "dim", 1)
        self.optimizer = optimizer
        self.seed = whole(seed, "seed")
        self.scale = number(scale, "scale")
        self._width = self.dim + optimizer.columns(self.dim)
        self._lock = threading.Lock()
        self._clear(whole(capacity, "capacity", 1))

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes that the table's arrays take, room for growth included."""
        return self._ids.nbytes + self._rows.nbytes + self._clock.nbytes + self._index.nbytes

    def pull(self, ids: Any) -> np.ndarray:
        """Copies of the rows, float32[n, dim]; unknown ids are admitted."""
        ids = ids_of(ids)
        with self._lock:
            slots = self._admit(ids)  # may replace the arrays, so it comes before any use of them
            return kernels.gather(self._rows, slots, 0, self.dim)

    def peek(self, ids: Any) -> np.ndarray:
        """What `pull` would give, without admitting anything."""
        ids = ids_of(ids)
        with self._lock:
            slots, missing = kernels.find(self._index, ids)
            if not missing:
                return kernels.gather(self._rows, slots, 0, self.dim)
            known = slots >= 0
            values = np.empty((ids.size, self.dim), np.float32)
            values[known] = kernels.gather(self._rows, slots[known], 0, self.dim)
        values[~known] = self._first_rows(ids[~known])
        return values

    def push(self, ids: Any, grads: Any, stamp: int) -> None:
        """One optimiser step per distinct id, whose stamp becomes `stamp`; unknown ids are admitted first."""
        ids = ids_of(ids)
        grads = floats_of(grads, (ids.size, self.dim), "grads")
        stamp = whole(stamp, "stamp", 0)
        with self._lock:
            slots = self._admit(ids)
            distinct, positions = kernels.touch(self._clock, slots, self._mark, stamp)
            self._mark += distinct.size
            if distinct.size < ids.size:
                grads, _ = kernels.add_up(positions, grads, np.ones(ids.size, np.float32), distinct.size)
            self.optimizer.update_slots(self._rows, distinct, grads)

    def stamps(self, ids: Any) -> np.ndarray:
        """Timestamps of the last updates, int64[n]; -1 for an id that is unknown or was never updated."""
        ids = ids_of(ids)
        with self._lock:
            slots, _ = kernels.find(self._index, ids)
            return np.where(slots >= 0, self._clock[slots, 0], _NEVER)

    def read(self, ids: Any) -> Rows:
        """Copies of everything that the rows hold; unknown ids are admitted."""
        ids = ids_of(ids)
        with self._lock:
            slots = self._admit(ids)
            return self._copy(ids.copy(), slots)

    def write(self, rows: Rows, *, newer: bool = True) -> int:
        """Store rows as they are, in input order, and return how many were stored.

        With `newer`, a row that the table holds is replaced only by one with a strictly larger stamp.
        """
        rows = self._checked(rows)
        with self._lock:
            before = self._count
            slots = self._admit(rows.ids)
            self._clock[before : self._count, 0] = _UNSET
            block = np.hstack([rows.values, rows.state])
            if newer:
                chosen = kernels.advance(self._clock, slots, rows.stamps)
                slots, block = slots[chosen], block[chosen]
            else:
                self._clock[slots, 0] = rows.stamps
            kernels.scatter(self._rows, slots, block)
            return slots.size

    def assign(self, ids: Any, values: Any) -> None:
        """Replace the rows' values and keep their state and stamps; unknown ids are admitted first."""
        ids = ids_of(ids)
        values = floats_of(values, (ids.size, self.dim), "values")
        with self._lock:
            slots = self._admit(ids)
            kernels.scatter(self._rows, slots, values)

    def export(self) -> Rows:
        """The whole content, sorted by id."""
        with self._lock:
            slots = np.argsort(self._ids[: self._count])
            return self._copy(self._ids[slots], slots)

    def load(self, rows: Rows) -> None:
        """Replace the whole content."""
        rows = self._checked(rows)
        if kernels.unique(rows.ids)[0].size < rows.ids.size:
            raise BadOption("rows.ids must be distinct to be loaded as a table's content")
        with self._lock:
            self._clear(max(self._capacity, rows.ids.size))
            self._append(rows.ids, np.hstack([rows.values, rows.state]), rows.stamps)

    def _clear(self, capacity: int) -> None:
        self._count = 0
        self._mark = 1  # larger than every mark of a fresh clock
        self._ids = np.empty(0, np.int64)
        self._rows = np.empty((0, self._width), np.float32)
        self._clock = np.empty((0, 2), np.int64)
        self._resize(capacity)

    def _resize(self, capacity: int) -> None:
        ids, rows, clock = (_longer(array, capacity, self._count) for array in (self._ids, self._rows, self._clock))
        index = np.full((1 << (2 * capacity - 1).bit_length(), 2), -1, np.int64)
        kernels.insert(index, ids[: self._count], 0)
        self._capacity, self._ids, self._rows, self._clock, self._index = capacity, ids, rows, clock, index

    def _admit(self, ids: np.ndarray) -> np.ndarray:
        """The ids' slots, after the unknown ones got theirs."""
        slots, missing = kernels.find(self._index, ids)
        if missing:
            unknown = slots < 0
            new, positions = kernels.unique(ids[unknown])
            slots[unknown] = self._count + positions
            block = np.hstack([self._first_rows(new), self.optimizer.first_state(new.size, self.dim)])
            self._append(new, block, _NEVER)
        return slots

    def _append(self, ids: np.ndarray, block: np.ndarray, stamps: np.ndarray | int) -> None:
        start, stop = self._count, self._count + ids.size
        if stop > self._capacity:
            self._resize(max(stop, 2 * self._capacity))
        self._ids[start:stop] = ids
        self._rows[start:stop] = block
        self._clock[start:stop, 0] = stamps
        kernels.insert(self._index, ids, start)
        self._count = stop

    def _first_rows(self, ids: np.ndarray) -> np.ndarray:
        return kernels.first_rows(ids, self.seed, self.dim, self.scale)

    def _copy(self, ids: np.ndarray, slots: np.ndarray) -> Rows:
        values = kernels.gather(self._rows, slots, 0, self.dim)
        state = kernels.gather(self._rows, slots, self.dim, self._width)
        return Rows(ids, values, state, self._clock[slots, 0])

    def _checked(self, rows: Rows) -> Rows:
        ids = ids_of(rows.ids, "rows.ids")
        values = floats_of(rows.values, (ids.size, self.dim), "rows.values")
        state = floats_of(rows.state, (ids.size, self._width - self.dim), "rows.state")
        stamps = ids_of(rows.stamps, "rows.stamps")
        if stamps.size != ids.size or (stamps.size and stamps.min() < _NEVER):
            raise BadOption(f"rows.stamps must be {ids.size} timestamps of at least {_NEVER}")
        return Rows(ids, values, state, stamps)


def _longer(array: np.ndarray, capacity: int, count: int) -> np.ndarray:
    longer = np.zeros((capacity, *array.shape[1:]), array.dtype)
    longer[:count] = array[:count]
    return longer
