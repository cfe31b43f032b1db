"""The driver of pipeline rules: readers, one device, writers, over a host store."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lib.cluster.base import Handle, Site, World
from lib.cluster.spec import Work
from lib.drivers.feed import Split
from lib.drivers.membership.workers import Workers
from lib.drivers.pipelines.host_store import HostStore
from lib.drivers.run.execution import carry_out
from lib.drivers.run.model_state import ModelState
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Access, Finished, Mark, Marks, Record, Snapshot
from lib.drivers.run.trainer import Trainer
from lib.protocols.pipeline_rule import Admission, PipelineRule
from lib.store.checkpoint import Kept
from lib.store.device.cache import Cache
from lib.store.device.road import Arrival, Road, uploaded
from lib.store.rows import Rows
from lib.tasks.batch import Batch
from lib.tasks.flat_model import Launched, StepResult


@dataclass(slots=True)
class InFlight:
    """A batch between its reader and its writer."""

    batch: Batch
    admission: Admission
    rows: dict[str, Rows]
    """As they were read."""
    there: Arrival
    """The batch on the device, and of each table its rows' [values | state]."""
    versions: dict[str, np.ndarray]
    """The timestamps of the rows that it computes from."""
    found: dict[str, np.ndarray] = field(default_factory=dict)
    """Where the caches know its rows."""
    stamp: int = -1
    """Its own."""
    place: int = -1
    """How many batches were computed before."""
    end: float = math.nan
    """When it was computed."""
    blocks: dict[str, torch.Tensor] = field(default_factory=dict)
    """These rows: as they were read, then as they are to be written."""
    back: Arrival = field(default=Arrival({}))
    """What the host gets of it."""


class Pipeline(Kept):
    """Readers fetch batches, the device computes them one by one and stamps them, writers bring them back.

    Guaranteed: from a batch's arrival until it is on its way back the host never waits for the device. What is decided meanwhile,
    which rows give way and which leave the cache, follows from ids and timestamps, and these are on the host too. A step that is
    not finite changes nothing there, and the host hears of it with its rows.
    """

    def __init__(self, site: Site, plan: Plan, rule: PipelineRule, store: Handle):
        self._site, self._plan, self._rule = site, plan, rule
        self._store = store.bind(site)
        self.record = Record(site.node, [] if plan.trace else None, accesses=[] if plan.accesses else None)
        self._trainer = Trainer(site, plan, 0, self.record)
        self._feed = Split(0, 1, plan.batches)
        self._dense = plan.dense_store(plan.start(site), site.device)
        self._optimizer = plan.workload.row_optimizer
        widths = {name: spec.dim + self._optimizer.columns(spec.dim) for name, spec in plan.workload.tables().items()}
        self._caches = {name: Cache(width, site.device) for name, width in widths.items()} if rule.validates else {}
        self._road = Road(site.device)
        self._stamp = self._samples = 0
        self._marks = Marks(map(plan.mark, plan.marks))
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
            cache.evict(self._stamp - 1)

    async def save(self) -> dict[str, Any]:
        counts = [self._stamp, self._samples]
        return {"feed": await self._feed.save(), "dense": self._dense.export(), "counts": counts, "record": self.record}

    async def load(self, state: dict[str, Any]) -> None:
        await self._feed.load(state["feed"])
        self._dense.load(state["dense"])
        self._stamp, self._samples = state["counts"]
        self._marks.crossed(self._samples)
        self.record.become(state["record"])

    async def report(self, end: Mark) -> Record:
        self.record.snapshots.append(self._snapshot(end))
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
            there = await self._site.launch(None, self._send, batch, rows)
            self.record.span("transfer", left, self._site.now(), index)
            self.record.bytes["pull rows"] += sum(block.nbytes for block in rows.values())
            versions = {name: block.stamps for name, block in rows.items()}
            await self._ready.put(InFlight(batch, admission, rows, there, versions))

    async def _compute_all(self) -> None:
        while (work := await self._ready.get()) is not None:
            start = self._site.now()
            seen, values = await self._site.launch(self._validation_cost(work), self._validated, work)
            if self._rule.validates:
                self.record.span("validate", start, self._site.now(), work.batch.index)
            result = await self._trainer.launch(seen, self._dense.values, values)
            work.end = self._site.now()
            work.stamp, self._stamp = self._stamp, self._stamp + 1
            self._account(work)
            await self._site.launch(self._update_cost(work), self._update, work, result)
            self.record.span("update", work.end, self._site.now(), work.batch.index)
            await self._done.put(work)
            self._samples += work.batch.size
            self.record.snapshots += map(self._snapshot, self._marks.crossed(self._samples))
        for _ in range(self._rule.writers):
            await self._done.put(None)

    async def _writer(self) -> None:
        while (work := await self._done.get()) is not None:
            rows, *told = await self._site.launch(None, self._landed, work)
            self._note(work, *told)
            start = self._site.now()
            self.record.bytes["push rows"] += sum(block.nbytes for block in rows.values())
            came = await self._store.write(work.batch.index, work.stamp, work.batch.size, rows)
            self.record.span("push", start, came, work.batch.index)

    def _send(self, batch: Batch, rows: dict[str, Rows]) -> Arrival:
        if not self._plan.gradients:
            return Arrival((batch, {}))
        joined = {name: block.block for name, block in rows.items()}
        device = self._site.device
        return self._road.up(
            lambda: (batch.to(device), {name: uploaded(block, device) for name, block in joined.items()})
        )

    def _validated(self, work: InFlight) -> tuple[Batch, dict[str, torch.Tensor]]:
        """The batch and its rows' values: what nobody will need again leaves the cache, and what that has newer replaces what was
        read."""
        seen, work.blocks = work.there.on_device()
        for name, cache in self._caches.items() if self._plan.gradients else ():
            read = work.rows[name]
            self.record.extra["rows evicted"] += cache.evict(work.admission.safe)
            found = work.found[name] = cache.find(read.ids)
            cached = cache.stamps(found)
            conflicts = np.flatnonzero(self._rule.stale(read.stamps, cached))
            if conflicts.size:
                at = uploaded(conflicts, self._site.device)
                work.blocks[name].index_copy_(0, at, cache.take(found[conflicts]))
                work.versions[name] = read.stamps.copy()
                work.versions[name][conflicts] = cached[conflicts]
            self.record.extra["rows read"] += read.ids.size
            self.record.extra["rows validated away"] += conflicts.size
        return seen, {name: block[:, : self._dim(name)].contiguous() for name, block in work.blocks.items()}

    def _dim(self, name: str) -> int:
        return self._plan.workload.tables()[name].dim

    def _validation_cost(self, work: InFlight) -> Work | None:
        """Every row is compared, and replaced at worst."""
        return Work(bytes=sum(block.nbytes for block in work.rows.values())) if self._rule.validates else None

    def _update_cost(self, work: InFlight) -> Work:
        return Work(bytes=3 * (self._dense.nbytes + sum(block.nbytes for block in work.rows.values())))

    def _update(self, work: InFlight, result: Launched | StepResult) -> None:
        """The optimiser's step on the device, where the gradients are finite: dense parameters in place, rows with the new
        timestamp, also in the cache."""
        if not self._plan.gradients:
            return self._dense.apply(result.dense)
        sound = result.finite()
        told = {"loss": result.loss, "scores": result.scores, "sound": sound}
        rate = self._plan.rate_after(self._samples)
        self._dense.apply(result.dense, rate, where=sound)
        for name, before in work.blocks.items():
            dim, after = self._dim(name), before.clone()
            self._optimizer.at(rate).update(after[:, :dim], after[:, dim:], result.rows[name])
            cache = self._caches.get(name)
            into = None if cache is None else cache.room(work.rows[name].ids, work.found.pop(name), work.stamp)
            work.blocks[name] = torch.where(sound, after, before, out=into)
            told |= {f"{name} before": before} if self.record.accesses is not None else {}
            if cache is not None:
                self.record.extra["largest cache"] = max(self.record.extra["largest cache"], len(cache))
        work.back = self._road.down({**work.blocks, **{f"/{name}": tensor for name, tensor in told.items()}})

    def _landed(self, work: InFlight) -> tuple[dict[str, Rows], float, Any, bool]:
        """A batch's rows as they are to be written, its loss and scores, and whether its gradients were finite."""
        if not self._plan.gradients:
            return work.rows, math.nan, None, True
        back = {name: tensor.numpy() for name, tensor in work.back.on_host().items()}
        rows = {}
        for name, read in work.rows.items():
            rows[name] = Rows.of(read.ids, back[name], self._dim(name), np.full(len(read), work.stamp))
            if self.record.accesses is not None:
                before = Rows.of(read.ids, back[f"/{name} before"], self._dim(name), work.versions[name])
                self.record.accesses.append(self._access(work, name, before, rows[name]))
        return rows, float(back["/loss"]), back["/scores"], bool(back["/sound"])

    def _account(self, work: InFlight) -> None:
        work.place = len(self.record.order)
        self.record.order.append(work.batch.index)

    def _access(self, work: InFlight, name: str, before: Rows, after: Rows) -> Access:
        seen = {"order": np.full(len(before), work.place), "values": before.fingerprints, "made": after.fingerprints}
        stamps = {"stamp": work.stamp, "safe": work.admission.safe}
        return Access("compute", work.batch.index, name, before.ids, before.stamps, **stamps, **seen)

    def _note(self, work: InFlight, loss: float, scores: Any, sound: bool) -> None:
        if not self._trainer.note(work.batch, work.end, loss, scores, sound):
            self.record.ledger["dropped"] += 1
            return
        self.record.ledger["applied"] += 1
        unseen = 0 if self._rule.validates else work.stamp - work.admission.seen
        self.record.staleness.append((work.end, unseen))

    def _snapshot(self, mark: Mark) -> Snapshot:
        return Snapshot(mark, self._site.now(), self._samples, {0: self._dense.pull()}, {})


async def drive(world: World, plan: Plan, model: ModelState | None = None) -> Finished:
    rule = plan.protocol.dense
    store = await world.host(HostStore, plan, rule, node="server0")
    if model:
        await store.inherit(model.rows)

    async def host(rank: int) -> Handle:
        device = await world.host(Pipeline, plan, rule, store, node=f"worker{rank}")
        if model:
            await device.inherit(model.dense)
        return device

    return await carry_out(world, plan, Workers(world, plan, host, []), {"store": store}, {})
