"""A table that lives in shared memory, so that a server's process may die and the next one goes on (Persia, Section 4.2.4)."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lib.store.optim import Optimizer
from lib.store.shared_memory.segment import Segment
from lib.store.table import lookup
from lib.store.table.gate import Gate
from lib.store.table.records import NO_ROWS, Records
from lib.store.table.table import Locking, Table


class SharedTable(Table):
    """A `Table` in the segment `name`: created there, or found there with all that it held. With `root`, a folder on a
    disk, it may be larger than the memory.

    Guaranteed beside what `Table` guarantees: a process that is killed in the midst of a call leaves the rows as they were before
    that call, and the next process that opens it finds them so; a call that fails changes nothing. `repaired` says how many rows
    were laid back. That a call looked a row up is not undone. The index is the process's own, made anew by the next one.

    A call that changes rows is alone in its table, since a journal has one order; those that look rows up or read them share it.
    Without `journal` calls meet as in any `Table`, and spare its copies of all rows that they change; but a call that fails may
    have changed some, and nobody can open what a process left that was killed.
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
        locking: Locking = "striped",
        journal: bool = True,
        root: Path | None = None,
    ):
        limits = {"max_rows": max_rows, "max_bytes": max_bytes}
        locking = "striped" if journal else locking
        super().__init__(dim, optimizer, seed=seed, scale=scale, capacity=1, locking=locking, **limits)
        described = {"optimizer": type(optimizer).__name__, **asdict(optimizer), "max_rows": self.max_rows}
        described |= {"dim": self.dim, "seed": self.seed, "scale": self.scale}
        self.segment = Segment(name, self._layout.width, described, root, journal)
        weakref.finalize(self, self.segment.close)
        self.attached, self.repaired = self.segment.attached, self.segment.repaired
        self._records = self._made(partial(_Mapped, self.segment), capacity)
        if journal:
            self._gate = _Transaction(self._records)

    def close(self, *, remove: bool = True) -> None:
        """Let go of the segment, and remove it unless another process is to go on with it."""
        self.segment.close(remove=remove, counts=self._records.counts)


class _Mapped(Records):
    """Records in a segment, which can lay them back if it has a journal."""

    def __init__(self, segment: Segment, *args: Any, capacity: int, **options: Any):
        self._segment = segment
        super().__init__(*args, capacity=max(capacity, len(segment.words)), **options)
        self.adopt()

    def adopt(self) -> None:
        """Go on with what the segment has."""
        self.count, self.lost, self.evicted = map(int, self._segment.counts)
        self._victims.forget()
        self.resize(self.capacity)
        if self.layout.limited:
            self.calls = int(self.words[: self.count, self.column + 3].max(initial=0))

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.count, self.lost, self.evicted

    def changing(self, slots: np.ndarray) -> None:
        if self._segment.journaled:
            self._segment.keep(slots)

    def fault_in(self, ids: np.ndarray) -> None:
        """Have the rows' pages in memory before the call waits for anybody, or is waited for.

        Nothing keeps the rows where they are meanwhile. The index is taken first: all that it ever led to is mapped, since files
        only grow.
        """
        if self._segment.on_disk:
            entries, slots = self.index, np.empty(ids.size, np.int64)
            words = self.words
            lookup.fetch(ids, entries, words, self.column, 0, slots, NO_ROWS)
            lookup.touch(words, slots)

    def become(self, words: np.ndarray, entries: np.ndarray) -> None:
        self.changing(np.arange(self.count))
        mine = self._grown(len(words))
        mine[:] = words
        super().become(mine, entries)

    def commit(self) -> None:
        self._segment.commit(self.counts)

    def undo(self) -> None:
        self._segment.undo()
        self.adopt()

    def _grown(self, capacity: int) -> np.ndarray:
        self._segment.grow(capacity)
        return self._segment.words[:capacity]


class _Transaction(Gate):
    """A gate for one at a time of those who change anything: what each does is done wholly or not at all."""

    def __init__(self, records: _Mapped):
        super().__init__()
        self._records = records

    def updating(self) -> AbstractContextManager[None]:
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        try:
            self._records.undo() if kind else self._records.commit()
        finally:
            super().__exit__(kind, *error)
