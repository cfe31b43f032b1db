"""The workers of a run.

The others go on without a worker that died, and take it in when it is there again, with what the servers or another worker's copy
tell it. The last of the replicas takes the run back, and any of them where the rule rolls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.membership.embedding_workers import EmbeddingWorkers
from lib.drivers.membership.supervisor import Supervisor
from lib.drivers.run.checkpoints import Checkpoint
from lib.drivers.run.ledger import OUTCOMES
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import EvalPoint, PartLog
from lib.errors import NodeLost


class Workers(Supervisor):
    """Guaranteed: everybody whom a lost worker could keep waiting is told, once, `patience` seconds after its death."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        host: Callable[[int], Awaitable[Handle]],
        tell: Sequence[Handle],
        embedding: EmbeddingWorkers | None = None,
    ):
        """`tell`: the parts that have a `tell(rank, change)`, which may answer with the step of a worker that comes back;
        `embedding`: those between the workers and the rows' servers."""
        super().__init__(world, plan.attempt, "worker", plan.workers, host)
        self._dense, self._embedding = plan.protocol.dense, embedding
        self._tell = [*tell, embedding] if embedding else tell

    async def muster(self, cut: Checkpoint | None = None) -> None:
        if self._embedding:
            await self._embedding.muster(cut)
        await super().muster(cut)
        await self._introduce()

    async def run(self, until: int) -> None:
        """Let all workers train on the batches before `until`."""
        self.members = self.members.after_cut()
        if self._world.cluster.fails:

            async def work(rank: int) -> None:
                await self._here[rank].run(until)
                self.members = self.members.after(rank, "pauses")
                self._expect_nobody()

            beside = self._embedding.kept(self._introduce) if self._embedding else nullcontext()
            async with beside, asyncio.TaskGroup() as keepers:
                for rank, name in enumerate(self.names):
                    keepers.create_task(self._keep(rank, work), name=f"{name}'s keeper")
        else:
            await asyncio.gather(*(worker.run(until) for worker in self._here.values()))
        if not self._here:
            raise NodeLost("the last worker")

    async def rest(self) -> None:
        await super().rest()
        if self._embedding:
            await self._embedding.rest()

    async def write(self, place: Callable[[str], Path]) -> dict[str, Any]:
        """All know who else is there, as they will when they go on from these states."""
        await self._introduce()
        return {**await super().write(place), **(await self._embedding.write(place) if self._embedding else {})}

    async def report(self, end: EvalPoint) -> list[PartLog]:
        beside = [self._embedding.report(end)] if self._embedding else []
        reports = await asyncio.gather(super().report(end), *beside)
        return [*chain.from_iterable(reports), *self._attempt.lost]

    def _takes_all_back(self, rank: int) -> bool:
        """Also where nobody else could go on, has a copy of the replica, or may go on by the rule."""
        replica = self._dense.family == "replica"
        shared = self._dense.family == "server" and len(self.names) > 1
        alone = not shared and not self._here.keys() - {rank}
        return alone or (replica and self._dense.rolls_back) or super()._takes_all_back(rank)

    async def _do_without(self, rank: int, change: str, after: float = 0.0) -> None:
        await super()._do_without(rank, change, after)
        self._attempt.left_out = True
        await asyncio.sleep(after)
        await self._told(rank, change)

    async def _prepare(self, rank: int, worker: Handle) -> None:
        copy = await self._copy()
        if copy is None and self._dense.family == "replica":
            raise NodeLost(self.names[rank])  # the others are dead too, which nobody has noticed yet
        levels = await self._told(rank, "comes back")
        level = max((level for level in levels if level is not None), default=None)
        before = [record.taken for record in self._attempt.lost if record.node == self.names[rank]]
        await worker.take_over(level, copy, max(chain.from_iterable(before), default=-1))

    async def _told(self, rank: int, change: str) -> list[int | None]:
        """What those answer who are to know of it."""
        return await asyncio.gather(*(part.tell(rank, change) for part in self._tell))

    async def _introduce(self) -> None:
        """Let all who are there know which embedding workers are."""
        if self._embedding:
            told = (worker.find(self._embedding.there, self._embedding.patience) for worker in self._here.values())
            for error in await asyncio.gather(*told, return_exceptions=True):
                if error is not None and not isinstance(error, NodeLost):  # who is dead needs not know
                    raise error

    def _all_done(self) -> bool:
        return bool(self._here) and not self.members.awaited

    def _write_off(self, records: list[PartLog]) -> None:
        """A replica settles its own gradients: lost with it is what it had computed and not used, and what it alone held."""
        for ledger in (record.ledger for record in records) if self._dense.family == "replica" else ():
            if not self._dense.exchange.copies:
                ledger["applied"] = ledger["heard"]
            ledger["lost"] += ledger["issued"] - sum(ledger[each] for each in OUTCOMES)
        super()._write_off(records)

    async def _copy(self) -> dict[str, Any] | None:
        """What the first of the others has."""
        for rank in sorted(self._here):
            with suppress(NodeLost, KeyError):  # it has just died, or was found dead meanwhile
                return await self._here[rank].copy()
        return None
