"""The driver of replica rules: every worker updates its own copy; copies mix in the loop or in the background."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Site, World
from lib.device_array import to_native
from lib.drivers.exchangers import EXCHANGERS
from lib.drivers.execution import run_attempt
from lib.drivers.membership import Rendezvous
from lib.drivers.model_state import ModelState
from lib.drivers.parameter_server import Servers, open_servers
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, Finished, ModelSnapshot, PartLog, pop_reached
from lib.drivers.replicas import Replica, open_sync_servers
from lib.drivers.server_worker import make_client, with_pulls
from lib.drivers.trainer import BatchSource, DataService, OverlappedMean, Trainer, open_data_service
from lib.drivers.workers import Workers
from lib.errors import BadOption
from lib.protocols.mixing import Background, Centre, Loop
from lib.store.checkpoint import Part
from lib.store.rows import Rows
from lib.tasks.flat_model import Batch, StepResult


@dataclass(slots=True)
class MixClock:
    """Counts the steps of threads that mix together: of all threads of a worker, or of one."""

    begun: int = 0
    done: int = 0
    mixed_at: int = 0
    """Steps done at the last mix."""
    since: float = 0.0
    """When that was, or when training began or went on."""


class StepLock:
    """Lets threads of a worker step at once, or one mix run alone: a mix waits for the steps, and later steps wait for it."""

    def __init__(self):
        self._closed = asyncio.Lock()
        self._left = asyncio.Event()
        self._inside = 0

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._closed:
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._closed:
            while self._inside:
                self._left.clear()
                await self._left.wait()
            yield


class ReplicaWorker(Part):
    """A worker with its own dense parameters and optimiser, and its own rows where no server keeps them."""

    in_checkpoint = ("_input", "replica", "exchanger", "_clocks", "new", "_evals", "record")

    def __init__(
        self,
        site: Site,
        plan: Plan,
        rank: int,
        servers: Servers | None,
        rendezvous: Handle,
        sync_servers: tuple[Handle, ...],
        data_service: DataService,
    ):
        self.site, self._plan, self._rank, self.rule = site, plan, rank, plan.protocol.dense
        self.record = PartLog(site.node, [] if plan.trace else None)
        self._trainer = Trainer(site, plan, rank, self.record, self.rule.worker_threads)
        self.replica = Replica(site, plan, self.record, self._trainer.model.size, rows=servers is None)
        self._servers = servers and make_client(site, plan, servers, rank, self.replica.size, self.record)
        self._input = BatchSource(site, plan, rank, data_service, self._trainer, self._servers and self._servers.batch)
        self._rendezvous = rendezvous.bind(site)
        exchange, when = self.rule.exchange, self.rule.when
        self.overlapped = exchange.overlapped and plan.on_nan == "stop"
        count = exchange.buckets if self.overlapped or not exchange.overlapped else 1
        self.buckets = self._trainer.model.buckets(count)
        self.exchanger = EXCHANGERS[type(exchange)](
            site, plan, rank, self.replica, self.record, self._rendezvous, sync_servers, self.buckets
        )
        self._background, self._together = isinstance(when, Background), exchange.together
        one = self._together or self._background
        self._clocks = [MixClock() for _ in range(1 if one else self.rule.worker_threads)]
        self._stepping = StepLock()
        """Threads in a step."""
        self._stepped = asyncio.Event()
        self._finished = False
        self.new = False
        """It has joined again and has made no step yet."""
        self._evals = [*plan.eval_points] if rank == 0 or self.rule.model == "average" else []
        self._evaluated = plan.evaluation_ids_by_day if self.replica.tables else {}
        self._place = None if self._background else "gradient" if exchange.copies else when.place
        """Where in a step it mixes."""
        self._overlap = 0 if self._background else when.overlap
        self._travelling: asyncio.Task | None = None
        """The mix that is not merged yet; it is before steps `_merges_at` are done."""
        self._merges_at = 0

    async def warm_start(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with what another protocol has trained."""
        self.replica.warm_start(dense, rows)

    async def run(self, until_batch: int) -> None:
        """Train on all batches before `until_batch`, and leave if that is the end of the data."""
        change = "leaves" if until_batch == self._plan.end_batch else "pauses"
        began, steps = self.site.now(), self.replica.steps
        self._finished = False
        self._stepped.clear()
        for clock in self._clocks:
            clock.since = began
        await self.exchanger.start(until_batch, self.new)
        self.new = self.new and self._place == "gradient"
        async with asyncio.TaskGroup() as tasks:
            if self._background:
                tasks.create_task(self._mix_in_background(), name=f"shadow {self._rank}")
            async with asyncio.TaskGroup() as threads:
                for thread in range(self.rule.worker_threads):
                    name = f"thread {thread} of {self._rank}"
                    threads.create_task(self._train_all(thread, until_batch, tasks), name=name)
            if self._travelling:
                await self._merge_travelling(self._clocks[0], self._clocks[0].done)
            lingers = self._background and self.rule.when.until == "all"
            if lingers:
                # First: at their barrier others would wait for it, and it for the end of the others' data.
                if self._servers:
                    await self._servers.report_change(change)
                await self._mix_until_all_end(began, self.replica.steps - steps)
            self._finished = True
            self.exchanger.stop(until_batch)
            await self._rendezvous.note_change(self._rank, change)
            self._stepped.set()
        if self._servers and not lingers:
            await self._servers.report_change(change)

    async def set_peers(self, others: dict[int, Handle], embedding: dict[int, Handle], patience: float | None) -> None:
        """Take note of the workers that live, and of the embedding workers."""
        self.exchanger.others = {rank: other.bind(self.site) for rank, other in others.items() if rank != self._rank}
        if embedding:
            self._servers.set_embedding_workers(embedding, patience)

    async def round_for_peer(self, peer_joins: bool) -> int:
        return self.exchanger.round_for_peer(peer_joins)

    async def serve_message(self, round: int, until_batch: int) -> np.ndarray | None:
        return await self.exchanger.serve_message(round, until_batch)

    async def answer_peer(self, message: np.ndarray) -> np.ndarray:
        """Take in another worker's message, whatever this worker is doing; the answer."""
        return await self.replica.answer_peer(message)

    async def state_for_rejoin(self) -> dict[str, Any]:
        """What a worker that is there again starts from."""
        return deepcopy(self.replica.dump())

    async def take_over(self, step: int | None, copy: dict[str, Any], last_taken: int) -> None:
        """Be a worker that was lost and is there again, with another's parameters, at its step where no server says which;
        the batches of its own that it missed are left out, and those up to `last_taken` that it had computed."""
        self._input.resume_after(copy["steps"] if step is None else step, last_taken)
        self.replica.take_over(copy)
        for clock in self._clocks:
            clock.begun = clock.done = clock.mixed_at = copy["steps"] // len(self._clocks)
        self.new = True

    async def report(self, end: EvalPoint) -> PartLog:
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = self.replica.final_model()
        return self.record

    async def _train_all(self, thread: int, until_batch: int, tasks: asyncio.TaskGroup) -> None:
        clock = self._clocks[thread % len(self._clocks)]
        batches, servers = self._input.batches(until_batch, tasks), [self._servers] if self._servers else []
        async for batch in with_pulls(batches, servers, tasks):
            await self._train(batch, clock, tasks)

    async def _train(self, batch: Batch, clock: MixClock, tasks: asyncio.TaskGroup) -> None:
        clock.begun += 1
        due = self._place and self.rule.is_due(clock.begun, self.site.now() - clock.since)
        place, label, rate = self._place if due else None, batch.index, self.replica.rate()
        asked = beside_it = overlap = None
        if due:  # from here on: else every thread that begins a step before the mix is over would mix as well
            clock.since = self.site.now()
        if place == "before":
            await self.mix(clock, label, hold_threads=self._together)
        elif place == "beside":
            values = self.replica.pull()  # the gradient is that of the parameters before the mix
            beside_it = asyncio.ensure_future(self.mix(clock, label, self.exchanger.request_next_group()))
        elif place == "gradient" or (place == "after" and self.rule.worker_threads == 1 and not self._overlap):
            asked = self.exchanger.request_next_group()  # the answer travels while the worker computes
        if place == "gradient":
            if self.new:
                # From its first push on a barrier at the rows' servers counts on this worker, and so must its group: one that
                # takes it in later would wait for others, whom that barrier holds until its next push.
                await asked
                self.new = False
            if self.overlapped and len(self.buckets) > 1:
                overlap = OverlappedMean(self.site, self.buckets, asked)
        async with self._stepping.shared():
            rows = await self._pull(batch)
            try:
                at = values if beside_it else self.replica.values
                result = await self._trainer.step(batch, at, rows, overlap)
            except BaseException:
                for under_way in filter(None, (beside_it, overlap)):
                    under_way.cancel()
                raise
            if beside_it:
                await beside_it
            if result is not None and place != "gradient":
                await self.replica.update(result.dense, label, rate)
            if result is not None and result.statistics is not None:
                self.replica.add_batch_statistics(result.statistics)
            await self._push(batch, result, rate, tasks)
            clock.done += 1
            self.replica.steps += 1
            self.replica.samples += batch.size
        if self._travelling and (place == "after" or clock.done >= self._merges_at):
            await self._merge_travelling(clock, label)
        if place == "after" and self._overlap:
            exchange = self.exchanger.exchange(self.replica.copy_with_counts())
            self._travelling = tasks.create_task(exchange, name=f"mix after batch {label}")
            self._merges_at = clock.done + self._overlap
        elif place == "after":
            await self.mix(clock, label, asked, hold_threads=self._together)
        elif place == "gradient":  # one that had to be left out counts as zero
            mine = to_native(result.dense) if result else np.zeros_like(self.replica.pull()[: self.replica.size])
            start, mean = await self.exchanger.mean_in_group(label, asked, mine, overlap)
            await self.replica.update(mean, label, rate)
            self.note_mix(clock, label, start)
        self._stepped.set()
        if result is not None:
            self.record.ledger["applied"] += 1
            self.record.staleness.append((self.site.now(), 0, label))
        else:
            self.record.ledger["dropped"] += 1
            self.record.unused.append((label, "dropped"))
        self.record.snapshots += map(self._snapshot, pop_reached(self._evals, self._estimated_samples))

    async def mix(
        self, clock: MixClock, label: int, asked: asyncio.Task | None = None, hold_threads: bool = False
    ) -> None:
        """Mix once and note it; `hold_threads`: the threads stand still."""
        async with self._stepping.exclusive() if hold_threads else nullcontext():
            start = await self.exchanger.mix(label, asked)
            if start is not None:
                self.note_mix(clock, label, start)

    async def _merge_travelling(self, clock: MixClock, label: int) -> None:
        """Wait for what came of the mix that travels, and merge it."""
        travelling, self._travelling = self._travelling, None
        before = self.site.now()
        start, mix = await travelling
        self.record.add_span("wait", before, self.site.now(), label)
        if mix is not None:
            async with self._stepping.exclusive():
                await self.replica.merge(mix)
            self.note_mix(clock, label, start)

    def note_mix(self, clock: MixClock, label: int, start: float) -> None:
        clock.since = self.site.now()
        self.record.add_span("mix", start, clock.since, label)
        self.record.steps_between_mixes.append((clock.since, clock.done - clock.mixed_at))
        clock.mixed_at = clock.done

    async def _mix_in_background(self) -> None:
        """Mix as often as the network lets it, with at least one local step in between, until the data ends."""
        clock = self._clocks[0]
        while True:
            await self._stepped.wait()
            self._stepped.clear()
            if self._finished:
                return
            await self.mix(clock, clock.done)

    async def _mix_until_all_end(self, began: float, steps: int) -> None:
        """The shadow goes on while others train, as often as this worker made a step."""
        ended = asyncio.ensure_future(self._rendezvous.wait_for_end(self._rank, self.site.generation))
        pace = (self.site.now() - began) / steps if steps else None
        try:
            while pace and not ended.done():
                rest = asyncio.ensure_future(self.site.sleep(pace))
                await asyncio.wait({ended, rest}, return_when=asyncio.FIRST_COMPLETED)
                rest.cancel()
                self._stepped.set()
            await ended
        finally:
            ended.cancel()

    async def _pull(self, batch: Batch) -> dict[str, np.ndarray]:
        if self._servers:
            return (await self._servers.take_pull(batch)).rows
        return {name: table.pull(batch.ids[name]) for name, table in self.replica.tables.items()}

    async def _push(self, batch: Batch, result: StepResult | None, lr_factor: float, tasks: asyncio.TaskGroup) -> None:
        if self._servers:
            tasks.create_task(self._servers.push(batch, result), name=f"push of batch {batch.index}")
            await asyncio.sleep(0)
        elif result is not None:
            for name, gradient in result.rows.items():
                stamp = self.replica.steps + 1
                self.replica.tables[name].push(batch.ids[name], gradient, stamp, distinct=True, rate=lr_factor)

    @property
    def _estimated_samples(self) -> int:
        """How far all have come if each has as this one."""
        return self.replica.samples * self._plan.workers

    def _snapshot(self, point: EvalPoint) -> ModelSnapshot:
        rows = {}
        for name, table in self.replica.tables.items():
            rows[name] = slice(None), np.asarray(table.peek(self._evaluated[point.day][name]))
        return ModelSnapshot(
            point, self.site.now(), self._estimated_samples, {0: np.asarray(self.replica.model())}, rows
        )


async def drive(world: World, plan: Plan, model: ModelState | None = None) -> Finished:
    sparse, rule = plan.protocol.sparse, plan.protocol.dense
    check_plan(plan)
    # A workload without tables has nothing to keep on a server.
    on_servers = sparse.family == "server" and plan.workload.tables()
    row_plan = plan.without_server_compression
    row_servers = await open_servers(world, row_plan, sparse, ("rows",), model) if on_servers else None
    rendezvous = await world.host(Rendezvous, plan, node="master")
    centre = await open_sync_servers(world, plan, model) if isinstance(rule.exchange, Centre) else ()
    data_service = await open_data_service(world, plan)
    servers = row_servers.parts_by_name() if row_servers else {}
    listeners = [*servers.values(), rendezvous, *([data_service.queue] if plan.watch else [])]
    args, inherited = (row_servers, rendezvous, centre, data_service), ()
    if model:
        inherited = model.dense, {} if row_servers else model.rows
    embedding = row_servers, data_service
    workers = Workers(world, plan, ReplicaWorker, args, listeners, model=inherited, embedding=embedding)
    others = {**servers, **{f"centre{server}": handle for server, handle in enumerate(centre)}}
    return await run_attempt(world, plan, workers, others, {"rendezvous": rendezvous, **data_service.parts_by_name()})


def check_plan(plan: Plan) -> None:
    """Refuse what would train as something else."""
    sparse, rule = plan.protocol.sparse, plan.protocol.dense
    if plan.workload.tables():
        if sparse.family == "replica" and not rule.mixes_rows and rule.rows != "local":
            raise BadOption(
                f"{rule.name}: rows of {plan.workload.name!r} would stay in each worker's replica, where this rule never mixes "
                "them; let them follow a server rule (Pair(sparse=..., dense=...)), or say rows = 'local'"
            )
        if sparse.family == "replica" and rule.model == "centre":
            raise BadOption(f"{rule.name}: the model is the sync servers' copy, so rows must follow a server rule")
        if sparse.family == "server" and sparse.blocks and rule.worker_threads > 1:
            threads = f"{rule.worker_threads} threads of a worker"
            raise BadOption(f"{rule.name}: {threads} cannot wait for their turn with {sparse.name!r}")
        if sparse.family == "server" and sparse.blocks and rule.waits_for_others:
            raise BadOption(
                f"{rule.name}: workers that wait for each other's replicas, and for rows at the barrier of {sparse.name!r}, may "
                "wait for ever; let the rows follow a rule without a barrier (async, bsp, gba), or mix gradients or with a centre"
            )
    elif sparse.family == "server" and sparse.blocks and not rule.blocks:
        raise BadOption(
            f"{rule.name}: workers would wait for each other where {sparse.name!r} keeps the rows, and {plan.workload.name!r} "
            "has none; give the dense parameters a rule that waits, or train a model with tables"
        )
    for step in range(1, 9) if isinstance(rule.when, Loop) else ():
        if rule.is_due(step, math.inf) != rule.is_due(step, math.inf):
            raise BadOption(
                f"{rule.name}: is_due(step={step}, seconds=inf) gave two answers to one question; what a rule remembers belongs "
                "into its memory (init, merge), and due follows from step and seconds alone"
            )
    steps = -(-plan.end_batch // plan.workers)
    never = plan.workers > 1 and not plan.may_end_early and isinstance(rule.when, Loop) and not rule.when.seconds
    if never and not any(rule.is_due(step, math.inf) for step in range(1, steps + 1)):
        raise BadOption(
            f"{rule.name}: its replicas would never mix: none of the {steps} steps of each of {plan.workers} workers is due; "
            "mix more often, or train on more samples"
        )
