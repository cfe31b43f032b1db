"""The driver of pipeline rules: readers, one device, writers, over a host store."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lib.cluster.base import Handle, Site, World
from lib.cluster.spec import Work
from lib.data.batch import Batch
from lib.data.feed import Split
from lib.drivers.crew import Crew
from lib.drivers.cut import carry_out
from lib.drivers.model_state import ModelState
from lib.drivers.plan import Plan
from lib.drivers.record import END, Access, Finished, Marks, Record, Snapshot
from lib.drivers.trainer import Trainer
from lib.models.flat import StepResult
from lib.protocols.pipeline_rule import Admission, PipelineRule
from lib.store.device.cache import Cache
from lib.store.rows import Rows


class HostStore:
    """The rows in host memory, with what the rule remembers about batches in flight."""

    def __init__(self, site: Site, plan: Plan, rule: PipelineRule):
        self._site, self._rule = site, rule
        self._state = rule.init()
        self._tables = plan.tables()
        self._room = asyncio.Condition()
        self._evaluated = plan.evaluation_ids()
        self._samples = 0
        self._marks = Marks(plan.marks)
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
        if self._marks.crossed(self._samples):
            self.record.snapshots.append(self._snapshot())
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
        self._marks.skip(self._samples)
        self.record.become(state["record"])

    async def report(self) -> Record:
        self.record.ledger["in_flight"] += len(self._state.outstanding)
        self.record.snapshots.append(self._snapshot())
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

    def _snapshot(self) -> Snapshot:
        rows = {name: (slice(None), table.peek(self._evaluated[name])) for name, table in self._tables.items()}
        return Snapshot(self._site.now(), self._samples, {}, rows)


@dataclass(slots=True)
class InFlight:
    """A batch on the device."""

    batch: Batch
    admission: Admission
    rows: dict[str, Rows]
    """As they were read, then as they are to be written."""
    stamp: int = -1


class Device:
    """Readers fetch batches, the device computes them one by one and stamps them, writers bring them back."""

    def __init__(self, site: Site, plan: Plan, rule: PipelineRule, store: Handle):
        self._site, self._plan, self._rule = site, plan, rule
        self._store = store.seen_from(site)
        self.record = Record(site.node, [] if plan.trace else None, accesses=[] if plan.accesses else None)
        self._trainer = Trainer(site, plan, 0, self.record)
        self._feed = Split(0, 1, plan.batches)
        self._dense = plan.dense_store(plan.start(site), site.device)
        self._optimizer = plan.workload.row_optimizer
        widths = {name: spec.dim + self._optimizer.columns(spec.dim) for name, spec in plan.workload.tables().items()}
        self._caches = {name: Cache(width, site.device) for name, width in widths.items()} if rule.validates else {}
        self._stamp = self._samples = 0
        self._marks = Marks(plan.marks)
        self._ready: asyncio.Queue[InFlight | None] = asyncio.Queue(rule.queue)
        self._done: asyncio.Queue[InFlight | None] = asyncio.Queue(rule.queue)

    async def inherit(self, dense: dict[str, np.ndarray]) -> None:
        """Begin with what another protocol has trained."""
        self._dense.load(dense)

    async def run(self, until: int) -> None:
        """Train on all batches before `until`; at the end every row is in the host store."""
        async with asyncio.TaskGroup() as stages:
            stages.create_task(self._read_all(until), name="readers")
            stages.create_task(self._compute_all(), name="device")
            for number in range(self._rule.writers):
                stages.create_task(self._writer(), name=f"writer {number}")
        for cache in self._caches.values():
            cache.evict(self._stamp)

    async def save(self) -> dict[str, Any]:
        counts = [self._stamp, self._samples]
        return {"feed": await self._feed.save(), "dense": self._dense.export(), "counts": counts, "record": self.record}

    async def load(self, state: dict[str, Any]) -> None:
        await self._feed.load(state["feed"])
        self._dense.load(state["dense"])
        self._stamp, self._samples = state["counts"]
        self._marks.skip(self._samples)
        self.record.become(state["record"])

    async def report(self) -> Record:
        self.record.snapshots.append(self._snapshot())
        self.record.final = {"dense": {0: self._dense.export()}}
        return self.record

    async def _read_all(self, until: int) -> None:
        async with asyncio.TaskGroup() as readers:
            for number in range(self._rule.readers):
                readers.create_task(self._reader(until), name=f"reader {number}")
        await self._ready.put(None)

    async def _reader(self, until: int) -> None:
        while (index := await self._feed.take(until)) is not None:
            batch = await self._trainer.batch(index)
            admission, rows, left = await self._store.read(index, batch.ids)
            self.record.span("transfer", left, self._site.now(), index)
            self.record.bytes["pull rows"] += sum(block.nbytes for block in rows.values())
            await self._ready.put(InFlight(batch, admission, rows))

    async def _compute_all(self) -> None:
        while (work := await self._ready.get()) is not None:
            if self._rule.validates:
                start = self._site.now()
                await self._site.compute(self._validation_cost(work), self._validate, work)
                self.record.span("validate", start, self._site.now(), work.batch.index)
            rows = {name: self._on_device(block) for name, block in work.rows.items()} if self._plan.gradients else {}
            values = {name: block[:, : self._dim(name)].clone() for name, block in rows.items()}
            result = await self._trainer.step(work.batch, self._dense.values, values)
            work.stamp, self._stamp = self._stamp, self._stamp + 1
            self._account(work, result)
            await self._site.compute(self._update_cost(work), self._update, work, rows, result)
            await self._done.put(work)
            self._samples += work.batch.size
            if self._marks.crossed(self._samples):
                self.record.snapshots.append(self._snapshot())
        for _ in range(self._rule.writers):
            await self._done.put(None)

    async def _writer(self) -> None:
        while (work := await self._done.get()) is not None:
            start = self._site.now()
            self.record.bytes["push rows"] += sum(block.nbytes for block in work.rows.values())
            came = await self._store.write(work.batch.index, work.stamp, work.batch.size, work.rows)
            self.record.span("push", start, came, work.batch.index)

    def _validate(self, work: InFlight) -> None:
        """What the cache has newer replaces what was read, and what nobody will need again leaves the cache."""
        for name, cache in self._caches.items() if self._plan.gradients else ():
            read = work.rows[name]
            cached = cache.stamps(read.ids)
            conflicts = np.flatnonzero(self._rule.stale(read.stamps, cached))
            if conflicts.size:
                fresh = cache.take(read.ids[conflicts]).cpu().numpy()
                values, state = read.values.copy(), read.state.copy()
                values[conflicts], state[conflicts] = fresh[:, : self._dim(name)], fresh[:, self._dim(name) :]
                stamps = read.stamps.copy()
                stamps[conflicts] = cached[conflicts]
                work.rows[name] = Rows(read.ids, values, state, stamps)
            self.record.extra["rows read"] += read.ids.size
            self.record.extra["rows validated away"] += conflicts.size
            self.record.extra["rows evicted"] += cache.evict(work.admission.safe)

    def _on_device(self, block: Rows) -> torch.Tensor:
        joined = torch.from_numpy(np.concatenate([block.values, block.state], axis=1))
        return (
            joined if self._site.device.type == "cpu" else joined.pin_memory().to(self._site.device, non_blocking=True)
        )

    def _dim(self, name: str) -> int:
        return self._plan.workload.tables()[name].dim

    def _validation_cost(self, work: InFlight) -> Work:
        """Every row is compared, and replaced at worst."""
        return Work(bytes=sum(block.nbytes for block in work.rows.values()))

    def _update_cost(self, work: InFlight) -> Work:
        return Work(bytes=3 * (self._dense.nbytes + sum(block.nbytes for block in work.rows.values())))

    def _update(self, work: InFlight, rows: dict[str, torch.Tensor], result: StepResult | None) -> None:
        """The optimiser's step on the device: dense parameters in place, rows with the new timestamp, also in the cache."""
        if not self._plan.gradients:
            self._dense.apply(result.dense)
            return
        if result is not None:
            self._dense.apply(result.dense)
        for name, block in rows.items():
            dim, ids = self._dim(name), work.rows[name].ids
            if result is not None:
                gradient = torch.as_tensor(result.rows[name]).to(block.device)
                self._optimizer.update(block[:, :dim], block[:, dim:], gradient)
            if name in self._caches:
                self._caches[name].put(ids, block, work.stamp)
                self.record.extra["largest cache"] = max(self.record.extra["largest cache"], len(self._caches[name]))
            values = block.cpu().numpy()
            stamps = np.full(ids.size, work.stamp)
            work.rows[name] = Rows(ids, values[:, :dim].copy(), values[:, dim:].copy(), stamps)

    def _account(self, work: InFlight, result: StepResult | None) -> None:
        self.record.order.append(work.batch.index)
        if self.record.accesses is not None:
            self.record.accesses += [
                Access("compute", work.batch.index, name, block.ids, block.stamps, work.stamp, work.admission.safe)
                for name, block in work.rows.items()
            ]
        self.record.ledger["dropped" if result is None else "applied"] += 1
        if result is not None:
            unseen = 0 if self._rule.validates else work.stamp - work.admission.seen
            self.record.staleness.append((self._site.now(), unseen))

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._site.now(), self._samples, {0: self._dense.pull()}, {})


async def drive(world: World, plan: Plan, model: ModelState | None = None) -> Finished:
    rule = plan.protocol.dense
    store = await world.host(HostStore, plan, rule, node="server0")
    if model:
        await store.inherit(model.rows)

    async def host(rank: int) -> Handle:
        device = await world.host(Device, plan, rule, store, node=f"worker{rank}")
        if model:
            await device.inherit(model.dense)
        return device

    return await carry_out(world, plan, Crew(world, plan, host, []), {"store": store}, {})
