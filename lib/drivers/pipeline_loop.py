"""The driver of pipeline rules: readers, one device, writers, over a host store."""

import asyncio
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from lib.cluster.base import Handle, Site, World
from lib.cluster.spec import Work
from lib.device_array import upload_array
from lib.drivers.execution import run_attempt
from lib.drivers.model_state import ModelState
from lib.drivers.plan import Plan
from lib.drivers.record import END, LAST, Access, EvalPoint, Finished, ModelSnapshot, PartLog, pop_reached
from lib.drivers.trainer import OwnBatches, Trainer
from lib.drivers.workers import Workers
from lib.protocols.pipeline_rule import PipelineRule, ReadView
from lib.store.checkpoint import Part
from lib.store.device import Arrival, Cache, Transfers
from lib.store.rows import Rows
from lib.store.table import Table
from lib.tasks.flat_model import Batch, StepResult


@dataclass(slots=True)
class InFlight:
    """A batch between its reader and its writer."""

    batch: Batch
    view: ReadView
    rows: dict[str, Rows]
    """As they were read."""
    nbytes: int
    """Bytes of these rows."""
    upload: Arrival
    """The batch on the device, and each table's rows there, [values | state]."""
    versions: dict[str, np.ndarray]
    """The timestamps of the rows that it computes from."""
    stamp: int = -1
    """Its own timestamp."""
    place: int = -1
    """The number of batches computed before it."""
    end: float = math.nan
    """The time at which it was computed."""
    blocks: dict[str, torch.Tensor] = field(default_factory=dict)
    """Its rows on the device: as they were read, then as they are to be written."""
    download: Arrival = field(default=Arrival({}))
    """What the host gets of it."""


class Pipeline(Part):
    """Readers fetch batches, the device computes them one by one and stamps them, writers bring them back.

    Guaranteed: from a batch's arrival until it is on its way back the host never waits for the device. Ids and timestamps, which
    are on the host too, decide alone which rows are replaced and which leave the cache. A step that is not finite changes nothing
    on the device, and the host learns of it with its rows.
    """

    in_checkpoint = ("_feed", "_dense", "_stamp", "_samples", "_evals", "record")

    def __init__(self, site: Site, plan: Plan, rank: int, rule: PipelineRule, store: Handle):
        self._site, self._plan, self._rule = site, plan, rule
        self._store = store.bind(site)
        self.record = PartLog(site.node, [] if plan.trace else None)
        self._log = AccessLog(self.record) if plan.accesses else None
        self._trainer = Trainer(site, plan, rank, self.record)
        self._feed = OwnBatches(0, plan.batches, 1, 1)
        self._dense = plan.dense_store(plan.initial_parameters(site), site.device)
        self._optimizer = plan.workload.row_optimizer
        self._dims = plan.dims
        self._caches: dict[str, Cache] = {}
        for name, dim in self._dims.items() if rule.validates else ():
            self._caches[name] = Cache(dim + self._optimizer.columns(dim), site.device)
        self._transfers = Transfers(site.device)
        self._stamp = self._samples = 0
        self._evals = [*plan.eval_points]
        self._ready: asyncio.Queue[InFlight | None] = asyncio.Queue(rule.queue)
        self._done: asyncio.Queue[InFlight | None] = asyncio.Queue(rule.queue)

    async def warm_start(self, dense: dict[str, np.ndarray]) -> None:
        """Begin with another protocol's dense parameters."""
        self._dense.load(dense)

    async def run(self, until_batch: int) -> None:
        """Train on all batches before `until_batch`; at the end every row is in the host store."""
        async with asyncio.TaskGroup() as stages:
            stages.create_task(self._run_readers(until_batch), name="readers")
            stages.create_task(self._compute_batches(), name="device")
            for number in range(self._rule.writers):
                stages.create_task(self._write_batches(), name=f"writer {number}")
        for cache in self._caches.values():
            cache.release_updates(self._stamp - 1)

    async def report(self, end: EvalPoint) -> PartLog:
        self.record.snapshots.append(self._dense_snapshot(end))
        self.record.final = {"dense": {0: self._dense.export()}}
        return self.record

    async def _run_readers(self, until_batch: int) -> None:
        async with asyncio.TaskGroup() as readers:
            for number in range(self._rule.readers):
                readers.create_task(self._prepare_batches(until_batch), name=f"reader {number}")
        await self._ready.put(None)

    async def _prepare_batches(self, until_batch: int) -> None:
        while (index := await self._feed.take(until_batch)) is not None:
            batch = await self._plan.make_batch(self._site, index)
            view, rows, left = await self._store.read(index, batch.ids)
            upload = await self._site.launch(None, self._upload, batch, rows)
            self.record.add_span("transfer", left, self._site.now(), index)
            nbytes, versions = 0, {}
            for name, block in rows.items():
                nbytes += block.nbytes
                versions[name] = block.stamps
            self.record.bytes["pull rows"] += nbytes
            await self._ready.put(InFlight(batch, view, rows, nbytes, upload, versions))

    async def _compute_batches(self) -> None:
        while (work := await self._ready.get()) is not None:
            start, index = self._site.now(), work.batch.index
            # At worst validation replaces every row; an update reads, computes and writes each.
            validation = Work(bytes=work.nbytes) if self._rule.validates else None
            batch, values = await self._site.launch(validation, self._validate, work)
            if self._rule.validates:
                self.record.add_span("validate", start, self._site.now(), index)
            result = await self._trainer.launch(batch, self._dense.values, values)
            self._assign_timestamp(work)
            cost = Work(bytes=3 * (self._dense.nbytes + work.nbytes))
            await self._site.launch(cost, self._update, work, result)
            self.record.add_span("update", work.end, self._site.now(), index)
            await self._done.put(work)
            self._samples += work.batch.size
            self.record.snapshots += map(self._dense_snapshot, pop_reached(self._evals, self._samples))
        for _ in range(self._rule.writers):
            await self._done.put(None)

    async def _write_batches(self) -> None:
        while (work := await self._done.get()) is not None:
            rows, loss, scores, sound = await self._site.launch(None, self._download_updated_rows, work)
            if self._trainer.accept_result(work.batch, work.end, loss, scores, sound):
                self.record.ledger["applied"] += 1
                unseen = 0 if self._rule.validates else work.stamp - work.view.seen
                self.record.staleness.append((work.end, unseen, work.batch.index))
            else:
                self.record.ledger["dropped"] += 1
                self.record.unused.append((work.batch.index, "dropped"))
            start = self._site.now()
            self.record.bytes["push rows"] += work.nbytes
            arrival = await self._store.write(work.batch.index, work.stamp, work.batch.size, rows)
            self.record.add_span("push", start, arrival, work.batch.index)

    def _assign_timestamp(self, work: InFlight) -> None:
        """Give a computed batch its timestamp and its place in the order."""
        work.end, work.place = self._site.now(), len(self.record.taken) - 1
        work.stamp, self._stamp = self._stamp, self._stamp + 1

    def _upload(self, batch: Batch, rows: dict[str, Rows]) -> Arrival:
        if not self._plan.gradients:
            return Arrival((batch, {}))
        blocks = {name: each.block for name, each in rows.items()}
        device = self._site.device
        return self._transfers.upload(
            lambda: (batch.to(device), {name: upload_array(block, device) for name, block in blocks.items()})
        )

    def _validate(self, work: InFlight) -> tuple[Batch, dict[str, torch.Tensor]]:
        """The batch and its rows' values on the device. Rows that no batch will need leave the cache, and its newer rows replace
        those that were read."""
        batch, work.blocks = work.upload.on_device()
        for name, cache in self._caches.items() if self._plan.gradients else ():
            read = work.rows[name]
            self.record.extra["rows evicted"] += cache.release_updates(work.view.safe)
            places, cached = cache.places_and_stamps(read.ids)
            conflicts = np.flatnonzero(self._rule.stale_reads(read.stamps, cached))
            if conflicts.size:
                at = upload_array(conflicts, self._site.device)
                work.blocks[name].index_copy_(0, at, cache.take(places[conflicts]))
                work.versions[name] = read.stamps.copy()
                work.versions[name][conflicts] = cached[conflicts]
            self.record.extra["rows read"] += read.ids.size
            self.record.extra["rows validated away"] += conflicts.size
        return batch, {name: block[:, : self._dims[name]].contiguous() for name, block in work.blocks.items()}

    def _update(self, work: InFlight, result: StepResult) -> None:
        """Make the optimiser's step on the device, where the gradients are finite: dense parameters in place, rows with the new
        timestamp, also in the cache."""
        if not self._plan.gradients:
            return self._dense.apply(result.dense)
        sound, rate = result.finite(), self._plan.lr_factor_after(self._samples)
        sent = {"/loss": result.loss, "/sound": sound}
        if work.batch.labels is not None:
            sent["/scores"] = result.scores
        self._dense.apply(result.dense, rate, sound=sound)
        for name, before in work.blocks.items():
            dim, after = self._dims[name], before.clone()
            self._optimizer.scale_lr(rate).update(after[:, :dim], after[:, dim:], result.rows[name])
            cache = self._caches.get(name)
            into = None if cache is None else cache.reserve_view(work.rows[name].ids, work.stamp)
            work.blocks[name] = torch.where(sound, after, before, out=into)
            if self._log:
                sent[f"/{name} before"] = before
            if cache is not None:
                self.record.extra["largest cache"] = max(self.record.extra["largest cache"], len(cache))
        work.download = self._transfers.download({**work.blocks, **sent})

    def _download_updated_rows(self, work: InFlight) -> tuple[dict[str, Rows], float, Any, bool]:
        """A batch's rows as they are to be written, its loss and scores, and whether its gradients were finite."""
        if not self._plan.gradients:
            return work.rows, math.nan, None, True
        arrived, rows = work.download.on_host(), {}
        for name, read in work.rows.items():
            dim = self._dims[name]
            rows[name] = Rows.of(read.ids, arrived[name].numpy(), dim, np.full(len(read), work.stamp))
            if self._log:
                before = Rows.of(read.ids, arrived[f"/{name} before"].numpy(), dim, work.versions[name])
                stamps = {"stamp": work.stamp, "safe": work.view.safe}
                self._log.compute(work.batch.index, name, before, rows[name], work.place, **stamps)
        scores = arrived["/scores"].numpy() if "/scores" in arrived else None
        return rows, float(arrived["/loss"]), scores, bool(arrived["/sound"])

    def _dense_snapshot(self, point: EvalPoint) -> ModelSnapshot:
        return ModelSnapshot(point, self._site.now(), self._samples, {0: np.asarray(self._dense.pull())}, {})


async def drive(world: World, plan: Plan, model: ModelState | None = None) -> Finished:
    """Host the store and the device, and carry the plan out."""
    rule = plan.protocol.dense
    store = await world.host(HostStore, plan, rule, node="server0")
    if model:
        await store.warm_start(model.rows)
    workers = Workers(world, plan, Pipeline, (rule, store), model=(model.dense,) if model else ())
    return await run_attempt(world, plan, workers, {"store": store}, {})


class HostStore(Part):
    """The rows in host memory, or on a disk, and the rule's state of batches in flight."""

    in_checkpoint = "_state", "_tables", "_samples", "_evals", "record"

    def __init__(self, site: Site, plan: Plan, rule: PipelineRule):
        self._site, self._rule = site, rule
        self._state = rule.init()
        self._tables = plan.tables()
        self._widths = {name: table.dim + table.optimizer.columns(table.dim) for name, table in self._tables.items()}
        self._written = asyncio.Condition()
        self._evaluated = plan.evaluation_ids_by_day
        self._samples = 0
        self._evals = [*plan.eval_points]
        self.record = PartLog(site.node, [] if plan.trace else None)
        self._log = AccessLog(self.record) if plan.accesses else None

    async def warm_start(self, rows: dict[str, Rows]) -> None:
        """Begin with another protocol's rows; their timestamps are below those of this run, which begin with 0."""
        for name, table in self._tables.items():
            table.load(replace(rows[name], stamps=np.full(len(rows[name]), -1)))

    async def read(self, batch: int, ids: dict[str, np.ndarray]) -> tuple[ReadView, dict[str, Rows], float]:
        """Admit a batch and return what it sees, its rows with state and timestamps, and the time at which they leave."""
        async with self._written:
            while not self._rule.may_read(self._state):
                await self._written.wait()
            self._state, view = self._rule.on_read(self._state, batch)
        start = self._site.now()
        rows = await self._site.compute(self._cost(ids), self._read, batch, ids)
        left = self._site.now()
        self.record.add_span("read", start, left, batch)
        return view, rows, left

    async def write(self, batch: int, stamp: int, samples: int, rows: dict[str, Rows]) -> float:
        """Store a batch's new rows, never over newer ones where the rule validates batches; return the time of their arrival."""
        start = self._site.now()
        await self._site.compute(self._cost(rows), self._write_and_log, batch, rows)
        self.record.add_span("write", start, self._site.now(), batch)
        async with self._written:
            self._state = self._rule.on_written(self._state, batch, stamp)
            self._written.notify_all()
        self._samples += samples
        self.record.snapshots += map(self._snapshot, pop_reached(self._evals, self._samples))
        return start

    async def load(self, state: dict[str, Any]) -> None:
        await super().load(state)
        self._log = self._log and AccessLog(self.record)

    async def report(self, end: EvalPoint) -> PartLog:
        self.record.ledger["in_flight"] += len(self._state.outstanding)
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = {"rows": {name: table.export() for name, table in self._tables.items()}}
        if self._log:
            self._log.log_end_of_run(self.record.final["rows"])
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

    def _write_and_log(self, batch: int, rows: dict[str, Rows]) -> None:
        newer, log = self._rule.validates, self._log
        for name, block in rows.items():
            table = self._tables[name]
            log.write(table, name, batch, block, newer) if log else table.write(block, newer=newer)

    def _snapshot(self, point: EvalPoint) -> ModelSnapshot:
        ids = self._evaluated[point.day]
        rows = {name: (slice(None), table.peek(ids[name])) for name, table in self._tables.items()}
        return ModelSnapshot(point, self._site.now(), self._samples, {}, rows)


class AccessLog:
    """The log of which batch read, computed and wrote which rows in which version (`accesses=true`).

    It writes to a record. It numbers calls of the store without a lock, so that the log shows which ones overlapped."""

    def __init__(self, record: PartLog):
        record.accesses = record.accesses or []
        self._record, self._calls = record, itertools.count(2 * len(record.accesses))

    def read(self, table: Table, name: str, batch: int, ids: np.ndarray) -> Rows:
        """Read rows and log it."""
        order, began = np.full(ids.size, -1), next(self._calls)
        rows = table.read(ids, order_out=order)
        self._add("read", batch, name, rows, order, began=began, ended=next(self._calls))
        return rows

    def write(self, table: Table, name: str, batch: int, rows: Rows, newer: bool) -> None:
        """Write rows and log it, also if the write is interrupted."""
        order, began, ended = np.full(len(rows), -1), next(self._calls), -1
        try:
            table.write(rows, newer=newer, order_out=order)
            ended = next(self._calls)
        finally:
            self._add("write", batch, name, rows, order, began=began, ended=ended)

    def compute(self, batch: int, name: str, before: Rows, after: Rows, place: int, **stamps: int) -> None:
        """Log what the device made of a batch's rows, as the `place`-th of its batches; `stamps` as in `Access`."""
        order = np.full(len(before), place)
        self._add("compute", batch, name, before, order, made=after.fingerprints, **stamps)

    def log_end_of_run(self, rows: dict[str, Rows]) -> None:
        """Log what the store holds at the end of the run."""
        for name, each in rows.items():
            self._add("read", END, name, each, np.full(len(each), LAST), began=LAST, ended=LAST)

    def _add(self, kind: str, batch: int, name: str, rows: Rows, order: np.ndarray, **rest) -> None:
        access = Access(kind, batch, name, rows.ids, rows.stamps, order=order, values=rows.fingerprints, **rest)
        self._record.accesses.append(access)
