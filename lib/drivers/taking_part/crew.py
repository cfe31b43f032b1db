"""The workers of a run, some of which may be lost on the way and be there again.

What can leave leaves: the others go on without a worker that died, and take it in when it is there again, with what the servers
or another worker's copy tell it. Whatever else dies takes the whole run back, see `lib.drivers.run.retries`: a server, the last
of the replicas, any of them where the rule rolls back. So does a worker's process that dies of itself, for nobody knows what it
had done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.run.ledger import OUTCOMES
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Mark, Record
from lib.drivers.taking_part.embedding_crew import EmbeddingCrew
from lib.errors import NodeLost, first_cause


class Crew:
    """Guaranteed: everybody whom a lost worker could keep waiting is told, once, `patience` seconds after its death."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        host: Callable[[int], Awaitable[Handle]],
        tell: Sequence[Handle],
        embedding: EmbeddingCrew | None = None,
    ):
        """`tell`: the parts that have a `leave(rank, lost)`, and a `join(rank)` which may answer with the worker's step;
        `embedding`: those between the workers and the rows' servers."""
        self._world, self._plan, self._host, self._embedding = world, plan, host, embedding
        self._tell = [*tell, embedding] if embedding else tell
        self._patience = world.cluster.patience
        self._here: dict[int, Handle] = {}
        self._away: set[int] = set()
        """Lost workers that may be there again."""
        self._done: set[int] = set()
        self._expecting: dict[int, asyncio.Task] = {}

    async def muster(self, states: dict[str, Any] | None = None) -> None:
        """Put a worker on each node that is there; or on those that were there when these states were saved, as they were."""
        everybody = range(self._plan.workers)
        ranks = [rank for rank in everybody if states is None or f"worker{rank}" in states]
        self._away.update(set(everybody) - set(ranks))
        hosted = await asyncio.gather(*(self._host(rank) for rank in ranks), return_exceptions=True)
        self._here = {rank: handle for rank, handle in zip(ranks, hosted, strict=True) if isinstance(handle, Handle)}
        for rank, error in zip(ranks, hosted, strict=True):
            if isinstance(error, Handle):
                continue
            if not isinstance(error, NodeLost) or self._takes_all_back(rank):
                raise error
            self._away.add(rank)
            self._settle_lost([states[f"worker{rank}"]["record"]] if states else [])
            await asyncio.gather(*(part.leave(rank, False) for part in self._tell))
        await self._introduce()
        if states:
            await asyncio.gather(*(worker.load(states[f"worker{rank}"]) for rank, worker in self._here.items()))

    async def run(self, until: int) -> None:
        """Let all workers train on the batches before `until`."""
        self._done.clear()
        if self._world.cluster.fails:
            beside = self._embedding.kept(self._introduce) if self._embedding else nullcontext()
            async with beside, asyncio.TaskGroup() as keepers:
                for rank in sorted(self._here.keys() | self._away):
                    keepers.create_task(self._keep(rank, until), name=f"worker {rank}'s keeper")
        else:
            await asyncio.gather(*(worker.run(until) for worker in self._here.values()))
        if not self._here:
            raise NodeLost("the last worker")

    async def rest(self) -> None:
        """Between two runs: nothing is under way, and those who died at its end have been told of."""
        await self._world.quiet()
        while dead := [rank for rank in sorted(self._here) if self._world.lost(f"worker{rank}")]:
            await asyncio.gather(*map(self._lose, dead))
            await self._world.quiet()
        if self._embedding:
            self._embedding.bury()

    async def save(self) -> dict[str, Any]:
        """The states of the workers that are there, by name. All know who else is, as they will when they go on from these."""
        await self._introduce()
        states = await asyncio.gather(*(self._save(rank) for rank in sorted(self._here)))
        return {name: state for each in states for name, state in each.items()}

    async def report(self, end: Mark) -> list[Record]:
        """What all that took part wrote down, at the end of the leg."""
        reports = await asyncio.gather(*(self._report(rank, end) for rank in sorted(self._here)))
        return [record for report in reports for record in report] + self._plan.attempt.lost

    async def _save(self, rank: int) -> dict[str, Any]:
        """One worker's state by its name; nothing of one that is no more."""
        try:
            return {f"worker{rank}": await self._here[rank].save()}
        except NodeLost:  # it died in the pause
            await self._lose(rank)
            return {}

    async def _report(self, rank: int, end: Mark) -> list[Record]:
        try:
            return [await self._here[rank].report(end)]
        except NodeLost:  # it died when its work was done
            if self._takes_all_back(rank):
                raise
            del self._here[rank]
            return self._settled(self._world.records_left(f"worker{rank}"))

    async def _keep(self, rank: int, until: int) -> None:
        while True:
            try:
                if rank in self._away and not await self._return(rank):
                    return
                await self._here[rank].run(until)
                self._done.add(rank)
                return self._expect_nobody()
            except Exception as error:
                lost = first_cause(error)
                if not isinstance(lost, NodeLost) or lost.node != f"worker{rank}":
                    raise
            await self._lose(rank)

    def _irreplaceable(self, rank: int) -> bool:
        """Whether nobody else could go on, has a copy of the replica, or may go on by the rule."""
        dense = self._plan.protocol.dense
        if dense.family == "replica" and dense.rolls_back:
            return True
        shared = dense.family == "server" and self._plan.workers > 1
        return not shared and not self._here.keys() - {rank}

    def _takes_all_back(self, rank: int) -> bool:
        """Whether the others cannot go on without it, or nobody knows what it had done: its death was not planned."""
        return self._irreplaceable(rank) or not self._world.lost(f"worker{rank}")

    async def _lose(self, rank: int) -> None:
        if self._takes_all_back(rank):
            raise NodeLost(f"worker{rank}")
        self._here.pop(rank, None)
        self._away.add(rank)
        await asyncio.sleep(self._patience)
        await asyncio.gather(*(part.leave(rank, True) for part in self._tell))
        self._settle_lost(self._world.records_left(f"worker{rank}"))
        self._expect_nobody()

    async def _return(self, rank: int) -> bool:
        """Wait for a lost worker to be there again, as long as the others have work; False if it is not."""
        self._expecting[rank] = asyncio.ensure_future(self._world.back(f"worker{rank}"))
        self._expect_nobody()
        try:
            if not await self._expecting[rank]:
                return False
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise
            return False
        finally:
            self._expecting.pop(rank).cancel()
        worker = await self._host(rank)
        copy = await self._copy()
        if copy is None and self._plan.protocol.dense.family == "replica":
            raise NodeLost(f"worker{rank}")  # the others are dead too, which nobody has noticed yet
        levels = await asyncio.gather(*(part.join(rank) for part in self._tell))
        level = max((level for level in levels if level is not None), default=None)
        before = [record.taken for record in self._plan.attempt.lost if record.node == f"worker{rank}"]
        await worker.take_over(level, copy, max(chain.from_iterable(before), default=-1))
        self._away.discard(rank)
        self._here[rank] = worker
        await self._introduce()
        return True

    async def _introduce(self) -> None:
        """Let all who are there know which embedding workers are."""
        if self._embedding:
            found = tuple(self._embedding.there), self._embedding.patience
            told = (worker.find(*found) for worker in self._here.values())
            for error in await asyncio.gather(*told, return_exceptions=True):
                if error is not None and not isinstance(error, NodeLost):  # who is dead needs not know
                    raise error

    def _expect_nobody(self) -> None:
        """Where all that are there have done their work, nobody waits for the others."""
        if self._here and self._here.keys() <= self._done:
            for waiting in self._expecting.values():
                waiting.cancel()

    def _settle_lost(self, records: list[Record]) -> None:
        self._plan.attempt.left_out = True
        self._plan.attempt.lost.extend(self._settled(records))

    def _settled(self, records: list[Record]) -> list[Record]:
        """A replica settles its own gradients: lost with it is what it had computed and not used, and what it alone held."""
        dense = self._plan.protocol.dense
        for ledger in (record.ledger for record in records) if dense.family == "replica" else ():
            if not dense.exchange.copies:
                ledger["applied"] = ledger["heard"]
            ledger["lost"] += ledger["issued"] - sum(ledger[each] for each in OUTCOMES)
        return records

    async def _copy(self) -> dict[str, Any] | None:
        """What the first of the others has."""
        for rank in sorted(self._here):
            with suppress(NodeLost, KeyError):  # it has just died, or was found dead meanwhile
                return await self._here[rank].copy()
        return None
