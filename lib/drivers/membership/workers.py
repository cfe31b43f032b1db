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
from lib.drivers.membership.roster import Roster
from lib.drivers.run.checkpoints import Checkpoint
from lib.drivers.run.ledger import OUTCOMES
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import EvalPoint, PartLog
from lib.errors import NodeLost


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
