"""The workers of a run, and the embedding workers between them and the rows' servers.

The others go on without a worker that died, and let it join again with what the servers or another worker's copy hold. The death
of the last replica takes the run back, and so does any replica's where the rule rolls back.

A dead embedding worker's buffer is abandoned, without any attempt to recover it (Persia, Section 4.2.4), and counted. The next
process on its node begins with an empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.checkpoints import Attempt, Checkpoint
from lib.drivers.members import Members
from lib.drivers.plan import Plan
from lib.drivers.record import OUTCOMES, EvalPoint, PartLog
from lib.errors import NodeLost, first_cause


class Workers:
    """Guaranteed: every part that a lost worker could keep waiting is notified, once, `patience` seconds after its death."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        host: Callable[[int], Awaitable[Handle]],
        listeners: Sequence[Handle],
        host_embedding: Callable[[int], Awaitable[Handle]] | None = None,
    ):
        """`listeners`: the parts that have a `tell(rank, change)`, which may answer with the next step of a worker that joins
        again; `host_embedding` puts an embedding worker on its node."""
        self._world, self._attempt, self._dense = world, plan.attempt, plan.protocol.dense
        self._listeners = listeners
        self._patience = world.cluster.patience if world.cluster.fails else None
        """Seconds of silence after which an embedding worker is taken for dead; None: no death is planned."""
        self._serving = False
        self.roster = Roster(
            world,
            plan.attempt,
            "worker",
            plan.workers,
            host,
            is_done=lambda: bool(self.roster.handles) and not self.roster.members.awaited,
            is_vital=self._is_vital,
            settle=self._settle,
            on_loss=self._on_loss,
            on_return=self._on_return,
            on_change=self._introduce,
        )
        self.embedding = Roster(
            world,
            plan.attempt,
            "embedding",
            plan.embedding_workers,
            host_embedding,
            is_done=lambda: not self._serving,
            settle=_settle_buffer,
            on_change=self._introduce,
        )

    async def start(self, checkpoint: Checkpoint | None = None) -> None:
        await self.embedding.start(checkpoint)
        await self.roster.start(checkpoint)
        await self._introduce()

    async def run(self, until: int) -> None:
        """Let all workers train on the batches before `until`."""
        roster = self.roster
        roster.members = roster.members.after_pause()

        async def train(rank: int) -> None:
            await roster.handles[rank].run(until)
            roster.members = roster.members.after(rank, "pauses")
            roster.stop_waiting()

        if self._world.cluster.fails:
            async with self._served(), asyncio.TaskGroup() as watches:
                for rank, name in enumerate(roster.names):
                    watches.create_task(roster.watch(rank, train), name=f"{name}'s watch")
        else:
            await asyncio.gather(*(worker.run(until) for worker in roster.handles.values()))
        if not roster.handles:
            raise NodeLost("the last worker")

    async def drain(self) -> None:
        """Between two stretches of training: wait until nothing is under way."""
        await self.roster.drain()
        if self.embedding.names:
            await self.embedding.drain()

    async def write_checkpoint(self, place: Callable[[str], Path]) -> dict[str, Any]:
        """All workers know the embedding workers that are up, as they will when a run resumes with these states."""
        await self._introduce()
        return {**await self.roster.write_checkpoint(place), **await self.embedding.write_checkpoint(place)}

    async def report(self, end: EvalPoint) -> list[PartLog]:
        reports = await asyncio.gather(self.roster.report(end), self.embedding.report(end))
        return [*chain.from_iterable(reports), *self._attempt.lost]

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        """Meanwhile an embedding worker that dies is hosted again when its node is up."""
        roster, self._serving = self.embedding, True

        async def serve(rank: int) -> None:
            await roster.handles[rank].serve()  # it fails when the embedding worker dies

        async def watch(rank: int, name: str) -> None:
            await roster.watch(rank, serve)
            if self._serving and not roster.handles and not roster.waiting:  # no embedding worker is up or will be
                raise NodeLost(name)

        async with asyncio.TaskGroup() as watches:
            for rank, name in enumerate(roster.names):
                watches.create_task(watch(rank, name), name=f"{name}'s watch")
            yield
            self._serving = False
            await roster.call_all("rest")
            roster.stop_waiting()

    def _is_vital(self, rank: int) -> bool:
        """Whether no other worker could go on, has a copy of the replica, or may go on by the rule."""
        shared = self._dense.family == "server" and len(self.roster.names) > 1
        alone = not shared and not self.roster.handles.keys() - {rank}
        return alone or (self._dense.family == "replica" and self._dense.rolls_back)

    async def _on_loss(self, rank: int, change: str, after: float) -> None:
        self._attempt.left_out = True
        await asyncio.sleep(after)
        await self._notify(rank, change)

    async def _on_return(self, rank: int, worker: Handle) -> None:
        copy = await self._copy()
        if copy is None and self._dense.family == "replica":
            raise NodeLost(self.roster.names[rank])  # the others are dead too, which was not noticed yet
        steps = await self._notify(rank, "comes back")
        step = max((step for step in steps if step is not None), default=None)
        taken = [log.taken for log in self._attempt.lost if log.node == self.roster.names[rank]]
        await worker.take_over(step, copy, max(chain.from_iterable(taken), default=-1))

    async def _notify(self, rank: int, change: str) -> list[int | None]:
        """The listeners' answers; embedding workers forget a dead worker's batches."""
        calls = [part.tell(rank, change) for part in self._listeners]
        calls += [self.embedding.call_all("forget", rank)] if change == "dies" else []
        return await asyncio.gather(*calls)

    async def _introduce(self) -> None:
        """Let all workers know which embedding workers are up."""
        if not self.embedding.names:
            return
        up = tuple(self.embedding.handles.get(rank) for rank in range(len(self.embedding.names)))
        calls = (worker.find(up, self._patience) for worker in self.roster.handles.values())
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if error is not None and not isinstance(error, NodeLost):  # a dead worker need not know
                raise error

    async def _copy(self) -> dict[str, Any] | None:
        """The state of the first of the other workers."""
        for rank in sorted(self.roster.handles):
            with suppress(NodeLost, KeyError):  # it has just died, or was found dead meanwhile
                return await self.roster.handles[rank].copy()
        return None

    def _settle(self, log: PartLog) -> None:
        """A replica settles its own gradients: lost with it are those computed and not used, and those that it alone held."""
        if self._dense.family == "replica":
            ledger = log.ledger
            if not self._dense.exchange.copies:
                ledger["applied"] = ledger["heard"]
            ledger["lost"] += ledger["issued"] - sum(ledger[each] for each in OUTCOMES)


def _settle_buffer(log: PartLog) -> None:
    ledger = log.ledger
    abandoned = ledger["samples held"] - ledger["samples returned"] - ledger["samples forgotten"]
    log.extra["batches abandoned"] += abandoned


async def _nothing(*args: Any) -> None:
    """The default of a callback."""


class Roster:
    """The nodes of one role, each of which may be lost during a run and be up again.

    The others go on without a node that a run can do without. Any other death takes the whole run back to its last checkpoint
    (see `lib.drivers.execution`), and so does an unplanned one: what that process had done is unknown.

    Guaranteed: a part that dies is hosted again once its node is up, unless all work of its role is done."""

    def __init__(
        self,
        world: World,
        attempt: Attempt,
        role: str,
        count: int,
        host: Callable[[int], Awaitable[Handle]] | None,
        *,
        is_done: Callable[[], bool],
        is_vital: Callable[[int], bool] = lambda rank: False,
        settle: Callable[[PartLog], None] = lambda log: None,
        on_loss: Callable[[int, str, float], Awaitable[None]] = _nothing,
        on_return: Callable[[int, Handle], Awaitable[None]] = _nothing,
        on_change: Callable[[], Awaitable[None]] = _nothing,
    ):
        """`host(rank)` puts a part on its node. `is_done()`: all work of the role is done. `is_vital(rank)`: the others cannot go
        on without it. `settle(log)` closes a dead part's ledger.

        `on_loss(rank, change, after)` is awaited when a part is lost, `on_return(rank, handle)` before a part that was hosted
        again works, and `on_change()` then."""
        self._world, self._attempt, self._host = world, attempt, host
        self._is_done, self._is_vital, self._settle = is_done, is_vital, settle
        self._on_loss, self._on_return, self._on_change = on_loss, on_return, on_change
        self.names = [f"{role}{rank}" for rank in range(count)]
        """Their nodes."""
        self.members = Members.of(count)
        self.handles: dict[int, Handle] = {}
        """The parts that are up, by rank."""
        self.waiting: dict[int, asyncio.Task] = {}
        """Tasks that wait for a dead part's node."""

    async def start(self, checkpoint: Checkpoint | None = None) -> None:
        """Host a part on each node that is up; or on those that were up at this checkpoint, with their states."""
        ranks = [rank for rank, name in enumerate(self.names) if checkpoint is None or name in checkpoint.parts]
        for rank in set(range(len(self.names))) - set(ranks):
            self.members = self.members.after(rank, "is missing")
        hosted = await asyncio.gather(*map(self._host, ranks), return_exceptions=True)
        found = dict(zip(ranks, hosted, strict=True))
        self.handles = {rank: handle for rank, handle in found.items() if isinstance(handle, Handle)}
        for rank in sorted(found.keys() - self.handles.keys()):
            if not isinstance(found[rank], NodeLost) or self._takes_all_back(rank):
                raise found[rank]
            await self._do_without(rank, "is missing", 0.0)
            self._bury([checkpoint.state(self.names[rank])["record"]] if checkpoint else [])
        if checkpoint:
            up = self.handles.items()
            await asyncio.gather(*(checkpoint.restore(self.names[rank], handle) for rank, handle in up))

    async def drain(self) -> None:
        """Wait until nothing is under way, and every death is dealt with."""
        await self._world.drain()
        while dead := [rank for rank in sorted(self.handles) if self._world.is_dead(self.names[rank])]:
            await asyncio.gather(*map(self._lose, dead))
            await self._world.drain()

    async def write_checkpoint(self, place: Callable[[str], Path]) -> dict[str, Any]:
        """Let every part write its state to its place; each part's ledger by its name."""
        return await self._answers(lambda name, part: part.write_checkpoint(place(name)))

    async def report(self, *args: Any) -> list[PartLog]:
        """The logs of all parts that are up; those of dead parts are with the attempt."""
        return [*(await self._answers(lambda _, part: part.report(*args))).values()]

    async def call_all(self, method: str, *args: Any) -> None:
        """Call a method of all parts that are up; one that has just died need not answer."""

        async def call(part: Handle) -> None:
            with suppress(NodeLost):
                await getattr(part, method)(*args)

        await asyncio.gather(*map(call, self.handles.values()))

    async def watch(self, rank: int, work: Callable[[int], Awaitable[None]]) -> None:
        """Await a part's work, hosting the part again after each death, until all work of the role is done."""
        while not self._is_done():
            try:
                if rank in self.handles:
                    return await work(rank)
                if not await self._return(rank):
                    return
            except Exception as error:
                lost = first_cause(error)
                if not isinstance(lost, NodeLost) or lost.node != self.names[rank]:
                    raise
            else:
                continue
            await self._lose(rank)

    def stop_waiting(self) -> None:
        """Once all work is done, wait for no dead node."""
        if self._is_done():
            for task in self.waiting.values():
                task.cancel()

    async def _answers(self, ask: Callable[[str, Handle], Awaitable[Any]]) -> dict[str, Any]:
        """By name; a part that has died since its work was done has no answer."""

        async def answer(rank: int) -> dict[str, Any]:
            try:
                return {(name := self.names[rank]): await ask(name, self.handles[rank])}
            except NodeLost:
                await self._lose(rank)
                return {}

        answers = await asyncio.gather(*map(answer, sorted(self.handles)))
        return {name: answer for each in answers for name, answer in each.items()}

    async def _return(self, rank: int) -> bool:
        """Wait for a dead part's node and host the part again; False if the node is never up again."""
        self.waiting[rank] = asyncio.current_task()
        try:
            if not await self._world.wait_until_up(self.names[rank]):
                return False
        finally:
            del self.waiting[rank]
        handle = await self._host(rank)
        await self._on_return(rank, handle)
        self.members = self.members.after(rank, "comes back").after(rank, "comes in")
        self.handles = dict(sorted({**self.handles, rank: handle}.items()))  # in the order of a run that resumes
        await self._on_change()
        return True

    async def _lose(self, rank: int) -> None:
        if self._takes_all_back(rank):
            raise NodeLost(self.names[rank])
        self.handles.pop(rank, None)
        await self._do_without(rank, "dies", self._world.cluster.patience)
        self._bury(self._world.take_records(self.names[rank]))
        self.stop_waiting()

    async def _do_without(self, rank: int, change: str, after: float) -> None:
        self.members = self.members.after(rank, change)
        await self._on_loss(rank, change, after)

    def _bury(self, logs: list[PartLog]) -> None:
        """Keep a dead part's logs, with their ledgers settled."""
        for log in logs:
            self._settle(log)
        self._attempt.lost.extend(logs)

    def _takes_all_back(self, rank: int) -> bool:
        """Whether the others cannot go on without it, or its death was not planned, so that what it had done is unknown."""
        return self._is_vital(rank) or not self._world.is_dead(self.names[rank])
