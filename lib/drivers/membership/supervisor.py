"""The nodes of one role, each of which may be lost on the way and be there again.

What can leave leaves: the others go on without it. Whatever else dies takes the whole run back, see `lib.drivers.run.retries`; so
does a process that dies of itself, for nobody knows what it had done.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.membership.members import Members
from lib.drivers.run.attempt import Attempt
from lib.drivers.run.record import Record
from lib.errors import NodeLost, first_cause


class Supervisor(ABC):
    """Guaranteed: who dies is put up again when its node is there, as long as anybody waits for it."""

    def __init__(self, world: World, attempt: Attempt, role: str, count: int, host: Callable[[int], Awaitable[Handle]]):
        """`host` puts one on its node."""
        self._world, self._attempt, self._role, self._host = world, attempt, role, host
        self.members = Members.of(count)
        self._over = False
        """Whether nobody needs them any more."""
        self._here: dict[int, Handle] = {}
        self._waiting: dict[int, asyncio.Task] = {}
        """Who waits for a dead one's node."""

    @property
    def names(self) -> list[str]:
        """Their nodes."""
        return [f"{self._role}{rank}" for rank in range(len(self.members.standing))]

    async def muster(self, states: dict[str, Any] | None = None) -> None:
        """Put one on each node that is there; or on those that were there when these states were saved, as they were."""
        names = self.names
        ranks = [rank for rank, name in enumerate(names) if states is None or name in states]
        for rank in set(range(len(names))) - set(ranks):
            self.members = self.members.after(rank, "dies")
        hosted = await asyncio.gather(*(self._host(rank) for rank in ranks), return_exceptions=True)
        found = dict(zip(ranks, hosted, strict=True))
        self._here = {rank: handle for rank, handle in found.items() if isinstance(handle, Handle)}
        for rank in ranks:
            if rank not in self._here:
                if not isinstance(found[rank], NodeLost) or self._takes_all_back(rank):
                    raise found[rank]
                await self._do_without(rank, 0.0)
                self._attempt.lost.extend(self._settled([states[names[rank]]["record"]] if states else []))
        if states:
            await asyncio.gather(*(each.load(states[names[rank]]) for rank, each in self._here.items()))

    async def save(self) -> dict[str, Any]:
        """The states of those that are there, by name."""
        states = await asyncio.gather(*(self._save(rank) for rank in sorted(self._here)))
        return {name: state for each in states for name, state in each.items()}

    async def report(self) -> list[Record]:
        """What those that are there have written down; the others' notes are with the attempt."""
        reports = await asyncio.gather(*(self._report(rank) for rank in sorted(self._here)))
        return [record for report in reports for record in report]

    async def rest(self) -> None:
        """Between two runs: nothing is under way, and those who died at its end have been told of."""
        await self._world.quiet()
        while dead := [rank for rank in sorted(self._here) if self._world.lost(self.names[rank])]:
            await asyncio.gather(*map(self._lose, dead))
            await self._world.quiet()

    async def _save(self, rank: int) -> dict[str, Any]:
        """One's state by its name; nothing of one that is no more."""
        try:
            return {self.names[rank]: await self._here[rank].save()}
        except NodeLost:  # it died in the pause
            await self._lose(rank)
            return {}

    async def _report(self, rank: int) -> list[Record]:
        try:
            return [await self._here[rank].report()]
        except NodeLost:  # it died when its work was done
            if self._takes_all_back(rank):
                raise
            del self._here[rank]
            return self._settled(self._world.records_left(self.names[rank]))

    async def _keep(self, rank: int, work: Callable[[int], Awaitable[None]]) -> None:
        """Let it do its work, in as many lives as that takes."""
        while not self._over:
            try:
                if rank not in self._here and not await self._return(rank):
                    return
                return await work(rank)
            except Exception as error:
                lost = first_cause(error)
                if not isinstance(lost, NodeLost) or lost.node != self.names[rank]:
                    raise
            await self._lose(rank)

    async def _lose(self, rank: int) -> None:
        if self._takes_all_back(rank):
            raise NodeLost(self.names[rank])
        self._here.pop(rank, None)
        await self._do_without(rank, self._world.cluster.patience)
        self._attempt.lost.extend(self._settled(self._world.records_left(self.names[rank])))

    async def _do_without(self, rank: int, after: float) -> None:
        """It is dead, which those hear so many seconds later whom it could keep waiting."""
        self.members = self.members.after(rank, "dies")

    async def _back(self, rank: int) -> bool:
        """Wait until its node is there; False if it never will be."""
        self._waiting[rank] = asyncio.current_task()
        try:
            return await self._world.back(self.names[rank])
        finally:
            del self._waiting[rank]

    def _expect_nobody(self) -> None:
        """Nobody waits any more for those who are away."""
        for waiting in self._waiting.values():
            waiting.cancel()

    def _takes_all_back(self, rank: int) -> bool:
        """Whether the others cannot go on without it, or nobody knows what it had done: its death was not planned."""
        return not self._world.lost(self.names[rank])

    @abstractmethod
    async def _return(self, rank: int) -> bool:
        """Wait for a lost one's node and put it up again, as long as anybody waits for it; False if it is not."""

    @abstractmethod
    def _settled(self, records: list[Record]) -> list[Record]:
        """The books of one that is no more."""
