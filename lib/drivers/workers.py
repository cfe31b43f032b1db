"""The workers of a run, and the embedding workers between them and the rows' servers.

The others go on without a worker that died, and let it join again with what the servers or another worker's copy hold. The death
of the last replica takes the run back, and so does any replica's where the rule rolls back.

A dead embedding worker's buffer is abandoned, without any attempt to recover it (Persia, Section 4.2.4), and counted. The next
process on its node begins with an empty one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.checkpoints import Checkpoint
from lib.drivers.embedding_worker import EmbeddingWorker
from lib.drivers.plan import Plan
from lib.drivers.record import OUTCOMES, EvalPoint, PartLog
from lib.errors import NodeLost, first_in_group


class Roster:
    """The nodes of one role, each of which may be lost during a run and be up again.

    The others go on without a node that a run can do without. Any other death takes the whole run back to its last checkpoint
    (see `lib.drivers.execution`), and so does an unplanned one: what that process had done is unknown.

    Guaranteed: a part that dies is hosted again once its node is up, unless all work of its role is done.
    """

    def __init__(self, world: World, plan: Plan, role: str, count: int, kind: type, args: tuple, model: tuple = ()):
        """On each node is a `kind(site, plan, rank, *args)`, which may inherit a `model`."""
        self._world, self._plan, self._attempt = world, plan, plan.attempt
        self._kind, self._args, self._model = kind, args, model
        self.names = [f"{role}{rank}" for rank in range(count)]
        """Their nodes."""
        self.handles: dict[int, Handle] = {}
        """The parts that are up, by rank."""
        self.waiting: dict[int, asyncio.Task] = {}
        """Tasks that wait for a dead part's node."""

    def is_done(self) -> bool:
        """Whether all work of the role is done."""
        raise NotImplementedError

    def is_vital(self, rank: int) -> bool:
        """Whether the others cannot go on without this part."""
        return False

    def close_dead_ledger(self, log: PartLog) -> None:
        """Close a dead part's ledger."""

    async def on_loss(self, rank: int, change: str, after: float) -> None:
        """A part is lost, and is taken for dead after so many seconds."""

    async def on_return(self, rank: int, part: Handle) -> None:
        """A part is hosted again, and has not begun to work."""

    async def announce_peers(self) -> None:
        """Let the parts of the run know which others are up."""

    async def start(self, checkpoint: Checkpoint | None = None) -> None:
        """Host a part on each node that is up; or on those that were up at this checkpoint, with their states."""
        ranks = [rank for rank, name in enumerate(self.names) if checkpoint is None or name in checkpoint.parts]
        found = dict(zip(ranks, await asyncio.gather(*map(self._host, ranks), return_exceptions=True), strict=True))
        self.handles = {rank: handle for rank, handle in found.items() if isinstance(handle, Handle)}
        for rank in sorted(found.keys() - self.handles.keys()):
            if not isinstance(found[rank], NodeLost) or self._takes_run_back(rank):
                raise found[rank]
            await self.on_loss(rank, "is missing", 0.0)
            self._keep_logs_of_dead([checkpoint.state(self.names[rank])["record"]] if checkpoint else [])
        if checkpoint:
            up = self.handles.items()
            await asyncio.gather(*(checkpoint.restore(self.names[rank], handle) for rank, handle in up))

    async def drain(self) -> None:
        """Wait until nothing is under way, and every death is dealt with."""
        await self._world.drain_orphaned_calls()
        while dead := [rank for rank in sorted(self.handles) if self._world.is_dead(self.names[rank])]:
            await asyncio.gather(*map(self._handle_death, dead))
            await self._world.drain_orphaned_calls()

    async def write_checkpoint(self, place: Callable[[str], Path]) -> dict[str, Any]:
        """Let every part write its state to its place; each part's ledger by its name."""
        return await self._collect_answers(lambda name, part: part.write_checkpoint(place(name)))

    async def report(self, end: EvalPoint) -> list[PartLog]:
        """The logs of all parts that are up; those of dead parts are with the attempt."""
        return [*(await self._collect_answers(lambda _, part: part.report(end))).values()]

    async def call_all(self, method: str, *args: Any) -> None:
        """Call a method of all parts that are up; one that has just died need not answer."""
        calls = (getattr(part, method)(*args) for part in self.handles.values())
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if error is not None and not isinstance(error, NodeLost):
                raise error

    async def await_work_despite_deaths(self, rank: int, work: Callable[[int], Awaitable[None]]) -> None:
        """Await a part's work, hosting the part again after each death, until all work of the role is done."""
        while not self.is_done():
            try:
                if rank in self.handles:
                    return await work(rank)
                if not await self._host_again(rank):
                    return
            except Exception as error:
                lost = first_in_group(error)
                if not isinstance(lost, NodeLost) or lost.node != self.names[rank]:
                    raise
                await self._handle_death(rank)

    def stop_waiting(self) -> None:
        """Once all work is done, wait for no dead node."""
        if self.is_done():
            for task in self.waiting.values():
                task.cancel()

    async def _host(self, rank: int) -> Handle:
        part = await self._world.host(self._kind, self._plan, rank, *self._args, node=self.names[rank])
        if self._model:
            await part.warm_start(*self._model)
        return part

    async def _collect_answers(self, ask: Callable[[str, Handle], Awaitable[Any]]) -> dict[str, Any]:
        """By name; a part that has died since its work was done has no answer."""
        answers = {}

        async def answer(rank: int) -> None:
            try:
                answers[rank] = await ask(self.names[rank], self.handles[rank])
            except NodeLost:
                await self._handle_death(rank)

        await asyncio.gather(*map(answer, sorted(self.handles)))
        return {self.names[rank]: answers[rank] for rank in sorted(answers)}

    async def _host_again(self, rank: int) -> bool:
        """Wait for a dead part's node and host the part again; False if the node is never up again."""
        self.waiting[rank] = asyncio.current_task()
        try:
            if not await self._world.wait_until_up(self.names[rank]):
                return False
        finally:
            del self.waiting[rank]
        part = await self._host(rank)
        await self.on_return(rank, part)
        self.handles = dict(sorted({**self.handles, rank: part}.items()))  # in the order of a run that resumes
        await self.announce_peers()
        return True

    async def _handle_death(self, rank: int) -> None:
        if self._takes_run_back(rank):
            raise NodeLost(self.names[rank])
        self.handles.pop(rank, None)
        await self.on_loss(rank, "dies", self._world.cluster.patience)
        self._keep_logs_of_dead(self._world.take_records_of_dead(self.names[rank]))
        self.stop_waiting()

    def _keep_logs_of_dead(self, logs: list[PartLog]) -> None:
        """Keep a dead part's logs, with their ledgers settled."""
        for log in logs:
            self.close_dead_ledger(log)
        self._attempt.lost.extend(logs)

    def _takes_run_back(self, rank: int) -> bool:
        """Whether the others cannot go on without it, or its death was not planned, so that what it had done is unknown."""
        return self.is_vital(rank) or not self._world.is_dead(self.names[rank])


class EmbeddingWorkers(Roster):
    """They serve while workers train."""

    def __init__(self, world: World, plan: Plan, args: tuple, announce_peers: Callable[[], Awaitable[None]]):
        super().__init__(world, plan, "embedding", plan.embedding_workers, EmbeddingWorker, args)
        self.announce_peers, self._serving = announce_peers, False

    def is_done(self) -> bool:
        return not self._serving

    def close_dead_ledger(self, log: PartLog) -> None:
        ledger = log.ledger
        abandoned = ledger["samples held"] - ledger["samples returned"] - ledger["samples forgotten"]
        log.extra["batches abandoned"] += abandoned

    @asynccontextmanager
    async def keep_hosted(self) -> AsyncIterator[None]:
        """Meanwhile an embedding worker that dies is hosted again when its node is up."""
        self._serving = True

        async def watch(rank: int, name: str) -> None:
            # The call fails when the embedding worker dies.
            await self.await_work_despite_deaths(rank, lambda rank: self.handles[rank].wait_for_stop())
            if self._serving and not self.handles and not self.waiting:  # no embedding worker is up or will be
                raise NodeLost(name)

        async with asyncio.TaskGroup() as watches:
            for rank, name in enumerate(self.names):
                watches.create_task(watch(rank, name), name=f"{name}'s watch")
            yield
            self._serving = False
            await self.call_all("stop")
            self.stop_waiting()


class Workers(Roster):
    """Guaranteed: every part that a lost worker could keep waiting is notified, once, `patience` seconds after its death."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        kind: type,
        args: tuple,
        listeners: Sequence[Handle] = (),
        model: tuple = (),
        embedding: tuple = (),
    ):
        """`listeners`: the parts that have a `note_change(rank, change)`, which may answer with the next step of a worker that
        joins again; `embedding`: what embedding workers are given."""
        super().__init__(world, plan, "worker", plan.workers, kind, args, model)
        self._dense, self._listeners = plan.protocol.dense, listeners
        self._embedding = EmbeddingWorkers(world, plan, embedding, self.announce_peers)
        self._calls_others = self._dense.family == "replica" and self._dense.exchange.meets_workers
        self._patience = world.cluster.patience if world.cluster.may_fail else None
        """Seconds of silence after which an embedding worker is taken for dead; None: no death is planned."""
        self._training: set[int] = set()
        """Workers that have not paused."""

    def is_done(self) -> bool:
        return bool(self.handles) and not self._training

    def is_vital(self, rank: int) -> bool:
        """Whether no other worker could go on, has a copy of the replica, or may go on by the rule."""
        shared = self._dense.family == "server" and len(self.names) > 1
        alone = not shared and not self.handles.keys() - {rank}
        return alone or (self._dense.family == "replica" and self._dense.rolls_back)

    def close_dead_ledger(self, log: PartLog) -> None:
        """A replica settles its own gradients: lost with it are those computed and not used, and those that it alone held."""
        if self._dense.family == "replica":
            ledger = log.ledger
            if not self._dense.exchange.copies:
                ledger["applied"] = ledger["heard"]
            ledger["lost"] += ledger["issued"] - sum(ledger[each] for each in OUTCOMES)

    async def start(self, checkpoint: Checkpoint | None = None) -> None:
        await self._embedding.start(checkpoint)
        await super().start(checkpoint)
        await self.announce_peers()

    async def run(self, until_batch: int) -> None:
        """Let all workers train on the batches before `until_batch`."""
        self._training = set(self.handles)

        async def train(rank: int) -> None:
            await self.handles[rank].run(until_batch)
            self._training.discard(rank)
            self.stop_waiting()

        if self._world.cluster.may_fail:
            async with self._embedding.keep_hosted(), asyncio.TaskGroup() as watches:
                for rank, name in enumerate(self.names):
                    watches.create_task(self.await_work_despite_deaths(rank, train), name=f"{name}'s watch")
        else:
            await asyncio.gather(*(worker.run(until_batch) for worker in self.handles.values()))
        if not self.handles:
            raise NodeLost("the last worker")

    async def drain(self) -> None:
        """Between two stretches of training: wait until nothing is under way."""
        await super().drain()
        if self._embedding.names:
            await self._embedding.drain()

    async def write_checkpoint(self, place: Callable[[str], Path]) -> dict[str, Any]:
        """All workers know the parts that are up, as they will when a run resumes with these states."""
        await self.announce_peers()
        return {**await super().write_checkpoint(place), **await self._embedding.write_checkpoint(place)}

    async def report(self, end: EvalPoint) -> list[PartLog]:
        reports = await asyncio.gather(super().report(end), self._embedding.report(end))
        return [*chain.from_iterable(reports), *self._attempt.lost]

    async def on_loss(self, rank: int, change: str, after: float) -> None:
        self._attempt.left_out = True
        self._training.discard(rank)
        await asyncio.sleep(after)
        await self._notify_listeners(rank, change)
        if self._calls_others:
            await self.announce_peers()

    async def on_return(self, rank: int, part: Handle) -> None:
        copy = await self._survivor_state()
        if copy is None and self._dense.family == "replica":
            raise NodeLost(self.names[rank])  # the others are dead too, which was not noticed yet
        steps = await self._notify_listeners(rank, "comes back")
        step = max((step for step in steps if step is not None), default=None)
        taken = [log.taken for log in self._attempt.lost if log.node == self.names[rank]]
        await part.take_over(step, copy, max(chain.from_iterable(taken), default=-1))
        self._training.add(rank)

    async def announce_peers(self) -> None:
        """Let all workers know which embedding workers are up, and which other workers, where they call each other."""
        if self._calls_others or self._embedding.names:
            others = {**self.handles} if self._calls_others else {}
            await self.call_all("set_peers", others, {**self._embedding.handles}, self._patience)

    async def _notify_listeners(self, rank: int, change: str) -> list[int | None]:
        """The listeners' answers; embedding workers forget a dead worker's batches."""
        calls = [part.note_change(rank, change) for part in self._listeners]
        calls += [self._embedding.call_all("forget_worker", rank)] if change == "dies" else []
        return await asyncio.gather(*calls)

    async def _survivor_state(self) -> dict[str, Any] | None:
        """The state of the first of the other workers."""
        for rank in sorted(self.handles):
            with suppress(NodeLost, KeyError):  # it has just died, or was found dead meanwhile
                return await self.handles[rank].state_for_rejoin()
        return None
