"""A table that lives in shared memory, so that a server's process may die and the next one goes on (Persia, Section 4.2.4)."""

from __future__ import annotations

import threading
import weakref
from dataclasses import asdict
from typing import Any

import numpy as np

from lib.store.optim import Optimizer
from lib.store.shared_memory.segment import Segment
from lib.store.table.optim_kernels import IN_ORDER
from lib.store.table.records import Records
from lib.store.table.requests import Found, Requests
from lib.store.table.table import Table


class SharedTable(Table):
    """A `Table` in the segment `name`: created there, or found there with all that it held.

    Guaranteed beside what `Table` guarantees: a process that is killed in the midst of a call leaves the table as it was before
    that call, and the next process that opens it finds it so; a call that fails changes nothing. `repaired` says how many rows
    were laid back. The index is built anew, so it need not be right when a process dies.

    A call is alone in its table: a journal has one order.
    """

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer,
        *,
        name: str,
        seed: int,
        scale: float = 0.01,
        capacity: int = 1024,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ):
        super().__init__(
            dim, optimizer, seed=seed, scale=scale, capacity=1, max_rows=max_rows, max_bytes=max_bytes, locking="none"
        )
        described = {"optimizer": type(optimizer).__name__, **asdict(optimizer), "max_rows": self.max_rows}
        self.segment = Segment(name, config={"dim": self.dim, "seed": self.seed, "scale": self.scale, **described})
        try:
            self.repaired = self.segment.restore().get("words", 0)
            self.attached = bool(self.segment.arrays())
            self._records = _Journaled(
                self.segment,
                self._layout,
                optimizer,
                seed=self.seed,
                scale=self.scale,
                capacity=capacity,
                limit=self.max_rows,
            )
            self._gate = _Committing(self)
            self._requests = _JournaledRequests(self._records, optimizer, self._gate, "none")
            if self.attached:
                self.segment.own()  # whoever goes on with it is the one to remove it
            self._adopt() if self.attached else self._commit()
        except BaseException:
            self.segment.close()
            raise
        weakref.finalize(self, self.segment.close)

    def pull(self, ids: Any) -> np.ndarray:
        with self._gate:
            return super().pull(ids)

    def push(self, ids: Any, grads: Any, stamp: int) -> None:
        with self._gate:
            super().push(ids, grads, stamp)

    def update(self, ids: np.ndarray, grads: np.ndarray, stamp: int, **how: Any) -> int:
        with self._gate:
            return super().update(ids, grads, stamp, **how)

    def close(self, *, remove: bool | None = None) -> None:
        """Let go of the segment; its owner removes it."""
        self.segment.close(remove=remove)

    def _commit(self) -> None:
        if self.segment.armed:
            self.segment.counts[:4] = (
                self._records.count,
                self._requests.calls,
                self._requests.lost,
                self._records.evicted,
            )
            self.segment.commit()

    def _undo(self) -> None:
        if self.segment.armed:
            self.segment.restore()
            self._adopt()

    def _adopt(self) -> None:
        arrays = self.segment.arrays()
        count, self._requests.calls, self._requests.lost, self._records.evicted = map(int, self.segment.counts[:4])
        self._records.adopt(arrays["words"], arrays["index"], count)


class _Journaled(Records):
    """Records that a segment can lay back."""

    def __init__(self, segment: Segment, *args: Any, capacity: int, **options: Any):
        self._segment, self._found = segment, bool(segment.arrays())
        # What lies in the segment takes the place of the first arrays.
        super().__init__(*args, capacity=1 if self._found else capacity, allocate=self._shared, **options)
        self._found = False

    def arm(self) -> None:
        """Something is about to change."""
        self._segment.arm()

    def keep(self, slots: np.ndarray) -> None:
        """These records are about to change."""
        self._keep(slots, slice(None))

    def keep_touches(self, slots: np.ndarray) -> None:
        """The touches of these records are about to change."""
        self._keep(slots, slice(self.column + 3, self.column + 4))

    def resize(self, capacity: int) -> None:
        if not self._found:
            self._segment.arm()
        super().resize(capacity)

    def become(self, words: np.ndarray, entries: np.ndarray) -> None:
        self._segment.arm()
        for name, array in (("words", words), ("index", entries)):
            self._shared(name, array.shape, array.dtype)[:] = array
        arrays = self._segment.arrays()
        super().become(arrays["words"], arrays["index"])

    def renumber(self) -> int:
        self.keep_touches(np.arange(self.count))
        return super().renumber()

    def _keep(self, slots: np.ndarray, columns: slice) -> None:
        self._segment.arm()
        old = slots[slots < self._segment.counts[0]]
        if old.size:
            self._segment.keep("words", old, columns)

    def _shared(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype) if self._found else self._segment.allocate(name, shape, dtype)

    def _room(self, many: int, now: int, spared: np.ndarray) -> np.ndarray:
        self._segment.arm()
        room = super()._room(many, now, spared)
        self.keep(room)
        return room

    def _remove(self, slots: np.ndarray) -> None:
        self.keep(slots)
        super()._remove(slots)


class _JournaledRequests(Requests):
    """Batches that say which records they change before they do."""

    def now(self) -> int:
        self._records.arm()  # the number of the call is kept too
        return super().now()

    def look_up(self, ids: np.ndarray, values: np.ndarray, now: int) -> Found | None:
        self._keep_touches(ids, self.touch(now))
        return super().look_up(ids, values, now)

    def find(self, ids: np.ndarray, touch: int = 0, *values: np.ndarray) -> Found:
        self._keep_touches(ids, touch)
        return super().find(ids, touch, *values)

    def place(self, ids: np.ndarray, stamp: int) -> tuple[np.ndarray, np.ndarray]:
        slots, kept = super().place(ids, stamp)
        self._records.keep(slots)
        return slots, kept

    def step(
        self,
        slots: np.ndarray,
        grads: np.ndarray,
        stamp: int,
        sums: np.ndarray | None = None,
        places: np.ndarray = IN_ORDER,
        rate: float = 1.0,
    ) -> None:
        self._records.keep(slots[slots >= 0])
        super().step(slots, grads, stamp, sums, places, rate)

    def _keep_touches(self, ids: np.ndarray, touch: int) -> None:
        if touch:
            slots, _ = self._records.find(ids)
            self._records.keep_touches(slots[slots >= 0])


class _Committing:
    """The table's gate, for one call at a time; what is done inside is done wholly or not at all."""

    inside = 1

    def __init__(self, table: SharedTable):
        self._table, self._lock, self._depth = weakref.proxy(table), threading.RLock(), 0

    def shared(self) -> _Committing:
        return self

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, kind, *error) -> None:
        try:
            if self._depth == 1:
                self._table._undo() if kind else self._table._commit()
        finally:
            self._depth -= 1
            self._lock.release()
