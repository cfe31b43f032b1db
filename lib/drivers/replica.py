"""The driver of replica rules: every worker updates its own copy; copies mix in the loop or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Meeting, Site, World
from lib.cluster.spec import Work
from lib.data.batch import Batch
from lib.drivers.crew import Crew
from lib.drivers.cut import carry_out
from lib.drivers.meeting import Rendezvous, SyncServer
from lib.drivers.model_state import ModelState
from lib.drivers.overlap import Overlap
from lib.drivers.parameter_server import Servers, open_servers
from lib.drivers.plan import Plan
from lib.drivers.record import Finished, Marks, Record, Snapshot
from lib.drivers.server_client import ServerClient
from lib.drivers.trainer import Input, Trainer, open_queue
from lib.errors import MemberLost
from lib.models.flat import StepResult
from lib.store.rows import Rows


class ReplicaWorker:
    """A worker with its own dense parameters and optimiser, and its own rows where no server keeps them."""

    def __init__(
        self,
        site: Site,
        plan: Plan,
        rank: int,
        servers: Servers | None,
        rendezvous: Handle,
        centre: Handle | None,
        queue: Handle | None,
    ):
        self._site, self._plan, self._rank, self._rule = site, plan, rank, plan.protocol.dense
        self.record = Record(site.node, [] if plan.trace else None)
        self._trainer = Trainer(site, plan, rank, self.record)
        self._input = Input(site, plan, rank, queue, self._trainer)
        start = plan.start(site)
        self._dense = plan.dense_store(start, site.device)
        self._memory = self._rule.init(start)
        self._tables = {} if servers else plan.tables()
        self._servers = ServerClient(site, servers, rank, start.size, self.record) if servers else None
        self._rendezvous = rendezvous.seen_from(site)
        self._centre = centre and centre.seen_from(site)
        self._replica = asyncio.Lock()  # a merge and a local step must not both start from the same values
        self._stepped = asyncio.Event()
        self._finished = False
        self._steps = self._mixed_at = self._round = self._samples = 0
        self._marks = Marks(mark / plan.workers for mark in plan.marks if rank == 0)
        self._evaluated = plan.evaluation_ids() if self._tables else {}
        self._buckets = self._trainer.buckets(self._rule.buckets if plan.on_nan == "stop" else 1)

    async def inherit(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with what another protocol has trained."""
        self._dense.load(dense)
        self._memory = self._rule.init(dense["values"])
        for name, table in self._tables.items():
            table.load(rows[name])

    async def run(self, until: int) -> None:
        """Train on all batches before `until`, and leave if that is the end of the data."""
        ends = until == self._plan.batches
        self._finished = False
        self._stepped.clear()
        async with asyncio.TaskGroup() as beside:
            shadow = beside.create_task(self._shadow(), name=f"shadow {self._rank}") if self._rule.background else None
            async for batch in self._input.batches(until, beside):
                await self._train(batch, beside)
            self._finished = True
            await self._rendezvous.leave(self._rank, False, not ends)
            if shadow:
                self._stepped.set()
        if self._servers and ends:
            await self._servers.leave()

    async def copy(self) -> dict[str, Any]:
        """What a worker that is there again starts from."""
        async with self._replica:
            return {
                "dense": self._dense.export(),
                "tables": deepcopy({name: table.dump() for name, table in self._tables.items()}),
                "memory": self._memory,
                "steps": self._steps,
            }

    async def take_over(self, step: int | None, copy: dict[str, Any] | None) -> None:
        """Be a worker that was lost and is there again, with another's parameters, at its step where no server says which;
        the batches of its own that it missed are left out."""
        await self._input.skip(step if step is not None else copy["steps"] if copy else 0)
        if copy:
            self._dense.load(copy["dense"])
            for name, table in self._tables.items():
                table.restore(copy["tables"][name])
            self._memory, self._steps = copy["memory"], copy["steps"]

    async def save(self) -> dict[str, Any]:
        return {
            "feed": await self._input.save(),
            "dense": self._dense.export(),
            "tables": {name: table.dump() for name, table in self._tables.items()},
            "memory": self._memory,
            "counts": [self._steps, self._mixed_at, self._round, self._samples],
            "record": self.record,
        }

    async def load(self, state: dict[str, Any]) -> None:
        await self._input.load(state["feed"])
        self._dense.load(state["dense"])
        for name, table in self._tables.items():
            table.restore(state["tables"][name])
        self._memory = state["memory"]
        self._steps, self._mixed_at, self._round, self._samples = state["counts"]
        self._marks.skip(self._samples)
        self.record.become(state["record"])

    async def report(self) -> Record:
        self.record.snapshots.append(self._snapshot())
        rows = {name: table.export() for name, table in self._tables.items()}
        self.record.final = {"replica": self._dense.export(), "replica rows": rows}
        return self.record

    async def _train(self, batch: Batch, beside: asyncio.TaskGroup) -> None:
        mixes = not self._rule.background and (self._steps + 1) % self._rule.every == 0
        meeting = self._announce() if mixes and self._rule.scheduled and not self._rule.centre else None
        rows = await self._pull(batch)
        early = Overlap(self._site, self._buckets, meeting) if meeting and len(self._buckets) > 1 else None
        try:
            result = await self._trainer.step(batch, self._dense.values, rows, early)
        except BaseException:
            if early:
                early.stop()
            raise
        if result is not None and self._rule.mixes == "parameters":
            await self._update(batch, result.dense)
        await self._push(batch, result, beside)
        self._steps += 1
        self._samples += batch.size
        if mixes:
            await self._mix(batch, result, meeting, early)
        self._stepped.set()
        if result is not None:
            self.record.ledger["applied"] += 1
            self.record.staleness.append((self._site.now(), 0))
        else:
            self.record.ledger["dropped"] += 1
        if self._marks.crossed(self._samples):
            self.record.snapshots.append(self._snapshot())

    def _announce(self) -> asyncio.Task:
        """Ask for the group: where it is scheduled when the step begins, so that the answer comes while the worker computes."""
        self._round += 1
        return asyncio.ensure_future(self._rendezvous.meet(self._rank, self._round - 1))

    async def _together(self, met: Meeting | None, mix: Callable[[Meeting], Awaitable[Any]]) -> Any:
        """`mix` with that group, or with those who are left of it when a member dies; None where there is no group."""
        while met is not None:
            self._round = met.round + 1
            try:
                return await mix(met)
            except MemberLost:
                self.record.extra["mixes repeated"] += 1
                met = await self._rendezvous.meet(self._rank, met.round)
        return None

    async def _mix(
        self, batch: Batch, result: StepResult | None, meeting: asyncio.Task | None, early: Overlap | None
    ) -> None:
        start = self._site.now()
        if self._rule.centre:
            await self._merge(await self._centre.exchange(self._mine()))
        else:
            met = await (meeting or self._announce())
            start = self._waited(start, batch.index)
            if self._rule.mixes == "gradients":
                mine = result.dense.cpu().numpy() if result else np.zeros(len(self._dense), np.float32)
                first = met

                def average(met: Meeting) -> Awaitable[np.ndarray]:
                    return early.mean() if early and met is first else self._site.mean(met, mine)

                mean = await self._together(met, average)
                await self._update(batch, mine if mean is None else mean)
            else:
                await self._together(met, self._mix_all)
        self._mixed(start, batch.index)

    async def _mix_all(self, met: Meeting) -> None:
        await self._merge(await self._site.mean(met, self._mine()))
        for table in self._tables.values():
            await self._mix_rows(met, table)

    async def _shadow(self) -> None:
        """Mix as often as the network lets it, with at least one local step in between, until the data ends.

        Rounds are counted anew after a pause: workers leave before it after unlike numbers of them.
        """
        self._round = 0
        while True:
            await self._stepped.wait()
            self._stepped.clear()
            if self._finished:
                return
            start = self._site.now()
            if self._rule.centre:
                theirs = await self._centre.exchange(self._mine())
            else:
                met = await self._announce()
                theirs = await self._together(met, lambda met: self._site.mean(met, self._mine()))
                if theirs is None:
                    continue
            await self._merge(theirs)
            self._mixed(start, self._steps)

    async def _mix_rows(self, met: Meeting, table) -> None:
        """Average all rows that any member holds; a row that a member never met has its first value there."""
        ids = np.unique(np.concatenate(await self._site.gather(met, table.export().ids)))
        mine = table.peek(ids)
        self.record.bytes["mix rows"] += mine.nbytes
        table.assign(ids, (await self._site.mean(met, mine.ravel())).reshape(mine.shape))

    async def _merge(self, theirs: np.ndarray) -> None:
        async with self._replica:
            work = Work(bytes=3 * theirs.nbytes)
            await self._site.compute(None if self._rule.background else work, self._take_in, theirs)

    def _take_in(self, theirs: np.ndarray) -> None:
        self._memory, merged = self._rule.merge(self._memory, self._dense.pull(), theirs)
        self._dense.assign(merged)

    async def _update(self, batch: Batch, gradient) -> None:
        async with self._replica:
            start = self._site.now()
            await self._site.compute(Work(bytes=3 * self._dense.nbytes), self._dense.apply, gradient)
            self.record.span("apply", start, self._site.now(), batch.index)

    async def _pull(self, batch: Batch) -> dict[str, np.ndarray]:
        if self._servers:
            return (await self._servers.pull(batch))[1]
        return {name: table.pull(batch.ids[name]) for name, table in self._tables.items()}

    async def _push(self, batch: Batch, result: StepResult | None, beside: asyncio.TaskGroup) -> None:
        if self._servers:
            beside.create_task(self._servers.push(batch, result), name=f"push of batch {batch.index}")
            await asyncio.sleep(0)
        elif result is not None:
            for name, gradient in result.rows.items():
                self._tables[name].push(batch.ids[name], gradient, self._steps + 1)

    def _mine(self) -> np.ndarray:
        mine = self._dense.pull()
        self.record.bytes["mix dense"] += mine.nbytes
        return mine

    def _waited(self, start: float, batch: int) -> float:
        now = self._site.now()
        self.record.span("wait", start, now, batch)
        return now

    def _mixed(self, start: float, batch: int) -> None:
        now = self._site.now()
        self.record.span("mix", start, now, batch)
        self.record.gaps.append((now, self._steps - self._mixed_at))
        self._mixed_at = self._steps

    def _snapshot(self) -> Snapshot:
        rows = {name: (slice(None), table.peek(self._evaluated[name])) for name, table in self._tables.items()}
        return Snapshot(self._site.now(), self._samples * self._plan.workers, {0: self._dense.pull()}, rows)


async def drive(world: World, plan: Plan, model: ModelState | None = None) -> Finished:
    sparse, dense = plan.protocol.sparse, plan.protocol.dense
    # A workload without tables has nothing to keep on a server.
    on_servers = sparse.family == "server" and plan.workload.tables()
    apart = await open_servers(world, plan, sparse, ("rows",), model) if on_servers else None
    rendezvous = await world.host(Rendezvous, plan, dense, node="master")
    centre = await world.host(SyncServer, plan, dense, node="sync0") if dense.centre else None
    if model and centre:
        await centre.inherit(model.dense["values"])
    queue = await open_queue(world, plan)

    async def host(rank: int) -> Handle:
        worker = await world.host(ReplicaWorker, plan, rank, apart, rendezvous, centre, queue, node=f"worker{rank}")
        if model:
            await worker.inherit(model.dense, {} if apart else model.rows)
        return worker

    servers = apart.named() if apart else {}
    crew = Crew(world, plan, host, [*servers.values(), rendezvous, *([queue] if plan.watch else [])])
    others = {**servers, **({"centre": centre} if centre else {})}
    return await carry_out(world, plan, crew, others, {"rendezvous": rendezvous, **({"queue": queue} if queue else {})})
