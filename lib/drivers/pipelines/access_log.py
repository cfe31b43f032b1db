"""The log of which batch of a pipeline read, computed and wrote which rows in which version (`accesses=true`)."""

from __future__ import annotations

import itertools

import numpy as np

from lib.drivers.run.record import END, LAST, Access, PartLog
from lib.store.rows import Rows
from lib.store.table import Table


class AccessLog:
    """It writes to a record. It numbers calls of the store without a lock, so that the log shows which ones overlapped."""

    def __init__(self, record: PartLog):
        record.accesses = record.accesses or []
        self._record, self._calls = record, itertools.count(2 * len(record.accesses))

    def read(self, table: Table, name: str, batch: int, ids: np.ndarray) -> Rows:
        """Read rows and log it."""
        order, began = np.full(ids.size, -1), next(self._calls)
        rows = table.read(ids, order=order)
        self._add("read", batch, name, rows, order, began=began, ended=next(self._calls))
        return rows

    def write(self, table: Table, name: str, batch: int, rows: Rows, newer: bool) -> None:
        """Write rows and log it, also if the write is interrupted."""
        order, began, ended = np.full(len(rows), -1), next(self._calls), -1
        try:
            table.write(rows, newer=newer, order=order)
            ended = next(self._calls)
        finally:
            self._add("write", batch, name, rows, order, began=began, ended=ended)

    def compute(self, batch: int, name: str, before: Rows, after: Rows, place: int, **stamps: int) -> None:
        """Log what the device made of a batch's rows, as the `place`-th of its batches; `stamps` as in `Access`."""
        order = np.full(len(before), place)
        self._add("compute", batch, name, before, order, made=after.fingerprints, **stamps)

    def end(self, rows: dict[str, Rows]) -> None:
        """Log what the store holds at the end of the run."""
        for name, each in rows.items():
            self._add("read", END, name, each, np.full(len(each), LAST), began=LAST, ended=LAST)

    def _add(self, kind: str, batch: int, name: str, rows: Rows, order: np.ndarray, **rest) -> None:
        access = Access(kind, batch, name, rows.ids, rows.stamps, order=order, values=rows.fingerprints, **rest)
        self._record.accesses.append(access)
