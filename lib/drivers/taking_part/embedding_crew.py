"""The embedding workers of a run, each of which may die and be there again.

Nobody waits for a dead one but those who have no other: its buffer is abandoned, without any attempt to recover it
(Persia, Section 4.2.4), and counted. The next process on its node begins with an empty one. One that dies of itself takes the run
back to its cut, as anything does whose death was not planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Mark, Record
from lib.drivers.run.supply import Supply
from lib.drivers.servers.embedding_worker import EmbeddingWorker
from lib.drivers.servers.parameter_server import Servers
from lib.errors import NodeLost, first_cause


class EmbeddingCrew:
    """Who of them is there."""

    def __init__(self, world: World, plan: Plan, servers: Servers, supply: Supply):
        self._world, self._plan, self._servers, self._supply = world, plan, servers, supply
        self.there: list[Handle | None] = [None] * plan.embedding_workers
        self.patience = world.cluster.patience if world.cluster.fails else None
        self._over = False
        self._awaited: set[int] = set()

    def named(self) -> dict[str, Place]:
        """The parts by names that no others of the run has."""
        return {node(number): Place(self, number) for number in range(len(self.there))}

    async def open(self) -> None:
        await asyncio.gather(*map(self._host, range(len(self.there))))

    async def leave(self, rank: int, lost: bool) -> None:
        """A worker is lost."""
        await asyncio.gather(*(self._tell(handle, "leave", rank) for handle in self.there))

    async def join(self, rank: int) -> None:
        """A worker that is there again asks for its batches anew."""

    @asynccontextmanager
    async def kept(self, tell: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Meanwhile who dies is put up again when its node is there, and `tell` called."""
        self._over = False
        async with asyncio.TaskGroup() as group:
            keepers = [
                group.create_task(self._keep(number, tell), name=f"{node(number)}'s keeper")
                for number in range(len(self.there))
            ]
            yield
            self._over = True
            waiting = [keeper for keeper, handle in zip(keepers, self.there, strict=True) if handle is None]
            await asyncio.gather(*(self._tell(handle, "rest") for handle in self.there))
            for keeper in waiting:
                keeper.cancel()

    def bury(self) -> None:
        """Take note of those who have died since anybody looked."""
        for number, handle in enumerate(self.there):
            if handle is not None and self._world.lost(node(number)):
                self.lose(number)

    def lose(self, number: int) -> None:
        """It is dead, and what it held abandoned."""
        self.there[number] = None
        for record in self._world.records_left(node(number)):
            book = record.ledger
            left = book["samples held"] - book["samples returned"] - book["samples forgotten"]
            record.extra["batches abandoned"] += left
            self.keep(record)

    def keep(self, record: Record) -> None:
        """The notes of one that is no more."""
        self._plan.attempt.lost.append(record)

    async def _host(self, number: int) -> None:
        """Put one on its node, unless that is dead."""
        args = self._plan, number, self._servers, self._supply
        try:
            self.there[number] = await self._world.host(EmbeddingWorker, *args, node=node(number))
        except NodeLost:
            if not self._world.lost(node(number)):
                raise

    async def _keep(self, number: int, tell: Callable[[], Awaitable[None]]) -> None:
        while not self._over:
            if self.there[number] is None:
                if not await self._back(number):
                    return
                await self._host(number)
                await tell()
                continue
            try:
                return await self.there[number].serve()
            except Exception as error:
                lost = first_cause(error)
                if not isinstance(lost, NodeLost) or not self._world.lost(node(number)):
                    raise
            self.lose(number)

    async def _back(self, number: int) -> bool:
        """Wait for its node; an error where it never comes, and no other is there or will be."""
        self._awaited.add(number)
        try:
            if await self._world.back(node(number)):
                return True
        finally:
            self._awaited.discard(number)
        if not self._awaited and not any(self.there):
            raise NodeLost(node(number))
        return False

    async def _tell(self, handle: Handle | None, method: str, *args: Any) -> None:
        """Tell one that is there; who is dead needs not know."""
        if handle is not None:
            with suppress(NodeLost):
                await getattr(handle, method)(*args)


@dataclass(frozen=True)
class Place:
    """Whoever stands at an embedding worker's place, as cuts and reports ask for it."""

    _crew: EmbeddingCrew
    _number: int

    async def save(self) -> dict[str, Any]:
        handle = self._crew.there[self._number]
        return {} if handle is None else await handle.save()

    async def load(self, state: dict[str, Any]) -> None:
        handle = self._crew.there[self._number]
        if not state:  # it was dead, and is there again when its keeper says so
            self._crew.there[self._number] = None
        elif handle is None:
            self._crew.keep(state["record"])
        else:
            await handle.load(state)

    async def report(self, end: Mark) -> Record:
        """Its notes; none of one that is no more, which are with those of the lost."""
        self._crew.bury()
        handle = self._crew.there[self._number]
        return Record(node(self._number), None) if handle is None else await handle.report(end)


def node(number: int) -> str:
    return f"embedding{number}"


async def open_embedding(world: World, plan: Plan, servers: Servers, supply: Supply) -> EmbeddingCrew | None:
    """Embedding workers before these servers, on nodes "embedding0", "embedding1", ..., if the plan has any."""
    if not plan.embedding_workers:
        return None
    crew = EmbeddingCrew(world, plan, servers, supply)
    await crew.open()
    return crew
