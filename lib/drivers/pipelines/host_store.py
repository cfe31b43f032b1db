"""The rows of a pipeline in host memory, or on a disk: read and written by batches that are on their way."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import END, Access, Mark, Marks, Record, Snapshot
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
        self._noting = threading.Lock() if plan.accesses else nullcontext()

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

    async def report(self, end: Mark) -> Record:
        self.record.ledger["in_flight"] += len(self._state.outstanding)
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = {"rows": {name: table.export() for name, table in self._tables.items()}}
        self._note("read", END, self.record.final["rows"])
        return self.record

    def _work(self, ids: dict[str, np.ndarray]) -> Work:
        widths = (
            (table.dim + table.optimizer.columns(table.dim)) * ids[name].size for name, table in self._tables.items()
        )
        return Work(bytes=2 * 4 * sum(widths))

    def _read(self, batch: int, ids: dict[str, np.ndarray]) -> dict[str, Rows]:
        with self._noting:
            rows = {name: table.read(ids[name]) for name, table in self._tables.items()}
            self._note("read", batch, rows)
        return rows

    def _write(self, batch: int, rows: dict[str, Rows]) -> None:
        with self._noting:
            for name, block in rows.items():
                self._tables[name].write(block, newer=self._rule.validates)
            self._note("write", batch, rows)

    def _note(self, kind: str, batch: int, rows: dict[str, Rows]) -> None:
        if self.record.accesses is not None:
            self.record.accesses += [Access(kind, batch, name, block.ids, block.stamps) for name, block in rows.items()]

    def _snapshot(self, mark: Mark) -> Snapshot:
        ids = self._evaluated[mark.day]
        rows = {name: (slice(None), table.peek(ids[name])) for name, table in self._tables.items()}
        return Snapshot(mark, self._site.now(), self._samples, {}, rows)
