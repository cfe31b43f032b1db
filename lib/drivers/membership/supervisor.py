"""The nodes of one role, each of which may be lost on the way and be there again.

What can leave leaves: the others go on without it. Whatever else dies takes the whole run back, see
`lib.drivers.execution`; so does a process that dies of itself, for nobody knows what it had done.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.membership.members import Members
from lib.drivers.run.checkpoints import Attempt, Checkpoint
from lib.drivers.run.record import EvalPoint, PartLog
from lib.errors import NodeLost, first_cause


class Supervisor(ABC):
    """Guaranteed: who dies is put up again when its node is there, as long as anybody waits for it."""

    def __init__(self, world: World, attempt: Attempt, role: str, count: int, host: Callable[[int], Awaitable[Handle]]):
        """`host` puts one on its node."""
        self._world, self._attempt, self._host = world, attempt, host
        self.names = [f"{role}{rank}" for rank in range(count)]
        """Their nodes."""
        self.members = Members.of(count)
        self._here: dict[int, Handle] = {}
        self._waiting: dict[int, asyncio.Task] = {}
        """Who waits for a dead one's node."""

    async def muster(self, cut: Checkpoint | None = None) -> None:
        """Put one on each node that is up; or on those that were up at this checkpoint, with their states."""
        ranks = [rank for rank, name in enumerate(self.names) if cut is None or name in cut.parts]
        for rank in set(range(len(self.names))) - set(ranks):
            self.members = self.members.after(rank, "is missing")
        hosted = await asyncio.gather(*(self._host(rank) for rank in ranks), return_exceptions=True)
        found = dict(zip(ranks, hosted, strict=True))
        self._here = {rank: handle for rank, handle in found.items() if isinstance(handle, Handle)}
        for rank in sorted(found.keys() - self._here.keys()):
            if not isinstance(found[rank], NodeLost) or self._takes_all_back(rank):
                raise found[rank]
            await self._do_without(rank, "is missing")
            self._write_off([cut.state(self.names[rank])["record"]] if cut else [])
        here = {self.names[rank]: handle for rank, handle in self._here.items()}
        if cut:
            await asyncio.gather(*(cut.restore(name, handle) for name, handle in here.items()))

    async def rest(self) -> None:
        """Between two runs: nothing is under way, and those who died at its end have been told of."""
        await self._world.drain()
        while dead := [rank for rank in sorted(self._here) if self._world.is_dead(self.names[rank])]:
            await asyncio.gather(*map(self._lose, dead))
            await self._world.drain()

    async def write(self, place: Callable[[str], Path]) -> dict[str, Any]:
        """Let those that are there write their states, each to its place; by name, what they answer."""
        return await self._answers(lambda name, each: each.write(place(name)))

    async def report(self, end: EvalPoint) -> list[PartLog]:
        """What those that are there have written down; the others' notes are with the attempt."""
        return [*(await self._answers(lambda _, each: each.report(end))).values()]

    async def _answers(self, ask: Callable[[str, Handle], Awaitable[Any]]) -> dict[str, Any]:
        """By name; nothing of one that has died since its work was done."""

        async def asked(rank: int) -> dict[str, Any]:
            try:
                return {(name := self.names[rank]): await ask(name, self._here[rank])}
            except NodeLost:
                await self._lose(rank)
                return {}

        answers = await asyncio.gather(*map(asked, sorted(self._here)))
        return {name: answer for each in answers for name, answer in each.items()}

    async def _keep(self, rank: int, work: Callable[[int], Awaitable[None]]) -> None:
        """Let it do its work, in as many lives as that takes, as long as anybody waits for it."""
        while not self._all_done():
            try:
                if rank in self._here:
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

    async def _return(self, rank: int) -> bool:
        """Wait for a lost one's node and put it up again; False where that never comes."""
        self._waiting[rank] = asyncio.current_task()
        try:
            if not await self._world.wait_until_up(self.names[rank]):
                return False
        finally:
            del self._waiting[rank]
        handle = await self._host(rank)
        await self._prepare(rank, handle)
        self.members = self.members.after(rank, "comes back").after(rank, "comes in")
        self._here = dict(sorted({**self._here, rank: handle}.items()))  # as who goes on from a cut finds them
        await self._introduce()
        return True

    async def _lose(self, rank: int) -> None:
        if self._takes_all_back(rank):
            raise NodeLost(self.names[rank])
        self._here.pop(rank, None)
        await self._do_without(rank, "dies", self._world.cluster.patience)
        self._write_off(self._world.take_records(self.names[rank]))
        self._expect_nobody()

    async def _do_without(self, rank: int, change: str, after: float = 0.0) -> None:
        """It is dead, which those hear so many seconds later whom it could keep waiting."""
        self.members = self.members.after(rank, change)

    def _write_off(self, records: list[PartLog]) -> None:
        """Keep the notes of one that is no more, with its books settled."""
        self._attempt.lost.extend(records)

    def _takes_all_back(self, rank: int) -> bool:
        """Whether the others cannot go on without it, or nobody knows what it had done: its death was not planned."""
        return not self._world.is_dead(self.names[rank])

    def _expect_nobody(self) -> None:
        """Where all work is done, nobody waits for those who are away."""
        if self._all_done():
            for waiting in self._waiting.values():
                waiting.cancel()

    @abstractmethod
    def _all_done(self) -> bool: ...

    @abstractmethod
    async def _prepare(self, rank: int, handle: Handle) -> None:
        """Make it ready for its work that is there again."""

    @abstractmethod
    async def _introduce(self) -> None:
        """Let all know who is there now."""
