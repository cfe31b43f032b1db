"""The workers of a run, some of which may be lost on the way and be there again.

What can leave leaves: the others go on without a worker that died, and take it in when it is there again, with what the servers
or another worker's copy tell it. Whatever else dies, a server above all, takes the whole run back: see `lib.drivers.attempts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.ledger import OUTCOMES
from lib.drivers.plan import Plan
from lib.drivers.record import Record
from lib.errors import NodeLost, first_cause


class Crew:
    """Guaranteed: everybody whom a lost worker could keep waiting is told, once, `patience` seconds after its death."""

    def __init__(self, world: World, plan: Plan, host: Callable[[int], Awaitable[Handle]], tell: Sequence[Handle]):
        """`tell`: the parts that have a `leave(rank, lost)`, and a `join(rank)` which may answer with the worker's step."""
        self._world, self._plan, self._host, self._tell = world, plan, host, tell
        self._patience = world.cluster.patience
        self._here: dict[int, Handle] = {}
        self._away: set[int] = set()
        """Lost workers that may be there again."""
        self._done: set[int] = set()
        self._expecting: dict[int, asyncio.Task] = {}

    async def muster(self) -> None:
        """Put a worker on each node that is there."""
        ranks = range(self._plan.workers)
        hosted = await asyncio.gather(*(self._host(rank) for rank in ranks), return_exceptions=True)
        for rank, handle in zip(ranks, hosted, strict=True):
            if isinstance(handle, NodeLost):
                self._away.add(rank)
                await asyncio.gather(*(part.leave(rank, True) for part in self._tell))
            elif isinstance(handle, BaseException):
                raise handle
            else:
                self._here[rank] = handle

    async def run(self, until: int) -> None:
        """Let all workers train on the batches before `until`."""
        if not self._world.cluster.fails:
            await asyncio.gather(*(worker.run(until) for worker in self._here.values()))
            return
        self._done.clear()
        async with asyncio.TaskGroup() as keepers:
            for rank in [*self._here, *self._away]:
                keepers.create_task(self._keep(rank, until), name=f"worker {rank}'s keeper")
        if not self._here:
            raise NodeLost("the last worker")

    async def save(self) -> dict[str, Any]:
        """The states of the workers that are there, by name."""
        states = await asyncio.gather(*(self._save(rank) for rank in list(self._here)))
        return {name: state for each in states for name, state in each.items()}

    async def load(self, states: dict[str, Any]) -> None:
        """Be as when they were saved; who was lost then has to join anew."""
        for rank in [rank for rank in self._here if f"worker{rank}" not in states]:
            del self._here[rank]
            self._away.add(rank)
        await asyncio.gather(*(worker.load(states[f"worker{rank}"]) for rank, worker in self._here.items()))

    async def report(self) -> list[Record]:
        reports = await asyncio.gather(*(self._report(rank) for rank in self._here))
        return [record for report in reports for record in report] + self._plan.attempt.lost

    async def _save(self, rank: int) -> dict[str, Any]:
        """One worker's state by its name; nothing of one that is no more."""
        try:
            return {f"worker{rank}": await self._here[rank].save()}
        except NodeLost:  # it died in the pause
            await self._lose(rank)
            return {}

    async def _report(self, rank: int) -> list[Record]:
        try:
            return [await self._here[rank].report()]
        except NodeLost:  # it died when its work was done
            return self._world.records_left(f"worker{rank}")

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
                if not isinstance(lost, NodeLost) or lost.node != f"worker{rank}" or self._plan.workers == 1:
                    raise
            await self._lose(rank)

    async def _lose(self, rank: int) -> None:
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
        levels = await asyncio.gather(*(part.join(rank) for part in self._tell))
        await worker.take_over(max((level for level in levels if level is not None), default=None), copy)
        self._away.discard(rank)
        self._here[rank] = worker
        return True

    def _expect_nobody(self) -> None:
        """Where all that are there have done their work, nobody waits for the others."""
        if self._here and self._here.keys() <= self._done:
            for waiting in self._expecting.values():
                waiting.cancel()

    def _settle_lost(self, records: list[Record]) -> None:
        """A replica settles its own gradients: what it had computed and not used is lost with it."""
        for record in records:
            if self._plan.protocol.dense.family == "replica":
                record.ledger["lost"] += record.ledger["issued"] - sum(record.ledger[each] for each in OUTCOMES)
        self._plan.attempt.lost.extend(records)

    async def _copy(self) -> dict[str, Any] | None:
        """What the first of the others has."""
        for rank in sorted(self._here):
            try:
                return await self._here[rank].copy()
            except NodeLost:
                continue
        return None
