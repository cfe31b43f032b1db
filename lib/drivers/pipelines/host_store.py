"""The rows of a pipeline in host memory, or on a disk: batches in flight read and write them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.drivers.pipelines.access_log import AccessLog
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import EvalPoint, PartLog, Snapshot
from lib.protocols.pipeline_rule import Admission, PipelineRule
from lib.store.checkpointed import Part
from lib.store.rows import Rows


class HostStore(Part):
    """The rows in host memory, and the rule's state of batches in flight."""

    in_checkpoint = "_state", "_tables", "_samples", "_evals", "record"

    def __init__(self, site: Site, plan: Plan, rule: PipelineRule):
        self._site, self._rule = site, rule
        self._state = rule.init()
        self._tables = plan.tables()
        self._widths = {name: table.dim + table.optimizer.columns(table.dim) for name, table in self._tables.items()}
        self._written = asyncio.Condition()
        self._evaluated = plan.evaluated
        self._samples = 0
        self._evals = plan.eval_schedule()
        self.record = PartLog(site.node, [] if plan.trace else None)
        self._log = AccessLog(self.record) if plan.accesses else None

    async def inherit(self, rows: dict[str, Rows]) -> None:
        """Begin with another protocol's rows; their timestamps are below those of this run, which begin with 0."""
        for name, table in self._tables.items():
            table.load(replace(rows[name], stamps=np.full(len(rows[name]), -1)))

    async def read(self, batch: int, ids: dict[str, np.ndarray]) -> tuple[Admission, dict[str, Rows], float]:
        """Admit a batch and return its admission, its rows with state and timestamps, and the time at which they leave."""
        async with self._written:
            while not self._rule.may_read(self._state):
                await self._written.wait()
            self._state, admission = self._rule.on_read(self._state, batch)
        start = self._site.now()
        rows = await self._site.compute(self._cost(ids), self._read, batch, ids)
        left = self._site.now()
        self.record.span("read", start, left, batch)
        return admission, rows, left

    async def write(self, batch: int, stamp: int, samples: int, rows: dict[str, Rows]) -> float:
        """Store a batch's new rows, never over newer ones where the rule validates batches; return the time of their arrival."""
        start = self._site.now()
        await self._site.compute(self._cost(rows), self._write, batch, rows)
        self.record.span("write", start, self._site.now(), batch)
        async with self._written:
            self._state = self._rule.on_written(self._state, batch, stamp)
            self._written.notify_all()
        self._samples += samples
        self.record.snapshots += map(self._snapshot, self._evals.pop_reached(self._samples))
        return start

    async def load(self, state: dict[str, Any]) -> None:
        await super().load(state)
        self._log = self._log and AccessLog(self.record)

    async def report(self, end: EvalPoint) -> PartLog:
        self.record.ledger["in_flight"] += len(self._state.outstanding)
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = {"rows": {name: table.export() for name, table in self._tables.items()}}
        if self._log:
            self._log.end(self.record.final["rows"])
        return self.record

    def _cost(self, rows: dict[str, np.ndarray | Rows]) -> Work:
        """The cost to read or write so many rows of each table."""
        numbers = 0
        for name, width in self._widths.items():
            numbers += width * len(rows[name])
        return Work(bytes=2 * 4 * numbers)

    def _read(self, batch: int, ids: dict[str, np.ndarray]) -> dict[str, Rows]:
        rows, log = {}, self._log
        for name, table in self._tables.items():
            rows[name] = log.read(table, name, batch, ids[name]) if log else table.read(ids[name])
        return rows

    def _write(self, batch: int, rows: dict[str, Rows]) -> None:
        newer, log = self._rule.validates, self._log
        for name, block in rows.items():
            table = self._tables[name]
            log.write(table, name, batch, block, newer) if log else table.write(block, newer=newer)

    def _snapshot(self, point: EvalPoint) -> Snapshot:
        ids = self._evaluated[point.day]
        rows = {name: (slice(None), table.peek(ids[name])) for name, table in self._tables.items()}
        return Snapshot(point, self._site.now(), self._samples, {}, rows)
