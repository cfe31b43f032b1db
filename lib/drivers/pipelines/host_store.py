"""The rows of a pipeline in host memory, or on a disk: read and written by batches that are on their way."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import END, LAST, Access, Mark, Marks, Record, Snapshot
from lib.protocols.pipeline_rule import Admission, PipelineRule
from lib.store.checkpoint import Kept
from lib.store.rows import Rows


class HostStore(Kept):
    """The rows in host memory, with what the rule remembers about batches in flight."""

    def __init__(self, site: Site, plan: Plan, rule: PipelineRule):
        self._site, self._rule = site, rule
        self._state = rule.init()
        self._tables = plan.tables()
        self._room = asyncio.Condition()
        self._evaluated = plan.evaluated
        self._samples = 0
        self._marks = Marks(map(plan.mark, plan.marks))
        self.record = Record(site.node, [] if plan.trace else None, accesses=[] if plan.accesses else None)
        self._calls = itertools.count()

    async def inherit(self, rows: dict[str, Rows]) -> None:
        """Begin with what another protocol has trained: older than all that is written here, where timestamps begin with 0."""
        for name, table in self._tables.items():
            table.load(replace(rows[name], stamps=np.full(len(rows[name]), -1)))

    async def read(self, batch: int, ids: dict[str, np.ndarray]) -> tuple[Admission, dict[str, Rows], float]:
        """Rows with state and timestamps, once the batch is admitted, and when they leave; what is known of others is read
        just before."""
        async with self._room:
            await self._room.wait_for(lambda: self._rule.may_read(self._state))
            self._state, admission = self._rule.on_read(self._state, batch)
        start = self._site.now()
        rows = await self._site.compute(self._work(ids), self._read, batch, ids)
        left = self._site.now()
        self.record.span("read", start, left, batch)
        return admission, rows, left

    async def write(self, batch: int, stamp: int, samples: int, rows: dict[str, Rows]) -> float:
        """Store what the device made of a batch's rows, where batches are validated never over something newer; when it came."""
        start = self._site.now()
        await self._site.compute(
            self._work({name: block.ids for name, block in rows.items()}), self._write, batch, rows
        )
        self.record.span("write", start, self._site.now(), batch)
        async with self._room:
            self._state = self._rule.on_written(self._state, batch, stamp)
            self._room.notify_all()
        self._samples += samples
        self.record.snapshots += map(self._snapshot, self._marks.crossed(self._samples))
        return start

    async def save(self) -> dict[str, Any]:
        return {
            "rule": self._state,
            "tables": {name: table.dump() for name, table in self._tables.items()},
            "samples": self._samples,
            "record": self.record,
        }

    async def load(self, state: dict[str, Any]) -> None:
        self._state, self._samples = state["rule"], state["samples"]
        for name, table in self._tables.items():
            table.restore(state["tables"][name])
        self._marks.crossed(self._samples)
        self.record.become(state["record"])
        self._calls = itertools.count(2 * len(self.record.accesses or ()))

    async def report(self, end: Mark) -> Record:
        self.record.ledger["in_flight"] += len(self._state.outstanding)
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = {"rows": {name: table.export() for name, table in self._tables.items()}}
        for name, rows in self.record.final["rows"].items():
            self._note("read", END, name, rows, np.full(len(rows), LAST), LAST, LAST)
        return self.record

    def _work(self, ids: dict[str, np.ndarray]) -> Work:
        widths = (
            (table.dim + table.optimizer.columns(table.dim)) * ids[name].size for name, table in self._tables.items()
        )
        return Work(bytes=2 * 4 * sum(widths))

    def _read(self, batch: int, ids: dict[str, np.ndarray]) -> dict[str, Rows]:
        rows = {}
        for name, table in self._tables.items():
            order, began = self._order(ids[name].size), next(self._calls)
            rows[name] = table.read(ids[name], order=order)
            self._note("read", batch, name, rows[name], order, began, next(self._calls))
        return rows

    def _write(self, batch: int, rows: dict[str, Rows]) -> None:
        for name, block in rows.items():
            order, began, ended = self._order(len(block)), next(self._calls), -1
            try:
                self._tables[name].write(block, newer=self._rule.validates, order=order)
                ended = next(self._calls)
            finally:
                self._note("write", batch, name, block, order, began, ended)

    def _order(self, size: int) -> np.ndarray | None:
        """Where a table is to say in which order it came to the rows; calls are noted without a lock, so that they meet."""
        return None if self.record.accesses is None else np.full(size, -1)

    def _note(self, kind: str, batch: int, name: str, rows: Rows, order: Any, began: int, ended: int) -> None:
        if self.record.accesses is not None:
            seen = {"order": order, "values": rows.fingerprints, "began": began, "ended": ended}
            self.record.accesses.append(Access(kind, batch, name, rows.ids, rows.stamps, **seen))

    def _snapshot(self, mark: Mark) -> Snapshot:
        ids = self._evaluated[mark.day]
        rows = {name: (slice(None), table.peek(ids[name])) for name, table in self._tables.items()}
        return Snapshot(mark, self._site.now(), self._samples, {}, rows)
