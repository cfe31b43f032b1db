"""The embedding workers of a run.

Nobody waits for a dead one but those who have no other: its buffer is abandoned, without any attempt to recover it
(Persia, Section 4.2.4), and counted. The next process on its node begins with an empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from lib.cluster.base import Handle, World
from lib.drivers.membership.supervisor import Supervisor
from lib.drivers.run.data_service import DataService
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import PartLog
from lib.drivers.servers.embedding_worker import EmbeddingWorker
from lib.drivers.servers.servers import Servers
from lib.errors import NodeLost


class EmbeddingWorkers(Supervisor):
    """Before these servers, on nodes "embedding0", "embedding1", ..."""

    def __init__(self, world: World, plan: Plan, servers: Servers, data_service: DataService):
        def host(number: int) -> Awaitable[Handle]:
            return world.host(EmbeddingWorker, plan, number, servers, data_service, node=self.names[number])

        super().__init__(world, plan.attempt, "embedding", plan.embedding_workers, host)
        self._over = False
        self.patience = world.cluster.patience if world.cluster.fails else None
        """How long one is to be silent until it is taken for dead; None: no death is planned."""

    @property
    def there(self) -> tuple[Handle | None, ...]:
        return tuple(self._here.get(number) for number in range(len(self.names)))

    async def tell(self, rank: int, change: str) -> None:
        """A worker that is lost asks for nothing any more, and one that is there again asks for its batches anew."""
        if change == "dies":
            await self._all("forget", rank)

    @asynccontextmanager
    async def kept(self, introduce: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Meanwhile who dies is put up again when its node is there, and `introduce` called."""
        self._over, self._make_known = False, introduce
        async with asyncio.TaskGroup() as keepers:
            for number, name in enumerate(self.names):
                keepers.create_task(self._keep(number, self._serve), name=f"{name}'s keeper")
            yield
            self._over = True
            await self._all("rest")
            self._expect_nobody()

    async def _serve(self, number: int) -> None:
        """Whoever waits for this hears of its death."""
        await self._here[number].serve()

    async def _keep(self, number: int, work: Callable[[int], Awaitable[None]]) -> None:
        await super()._keep(number, work)
        if not (self._over or self._here or self._waiting):  # its node never comes, and no other is there or will be
            raise NodeLost(self.names[number])

    def _all_done(self) -> bool:
        return self._over

    async def _prepare(self, number: int, handle: Handle) -> None:
        """It begins with nothing."""

    async def _introduce(self) -> None:
        await self._make_known()

    def _write_off(self, records: list[PartLog]) -> None:
        for record in records:
            book = record.ledger
            left = book["samples held"] - book["samples returned"] - book["samples forgotten"]
            record.extra["batches abandoned"] += left
        super()._write_off(records)

    async def _all(self, method: str, *args: int) -> None:
        """Call it of all that are there; who is dead needs not hear it."""

        async def told(handle: Handle) -> None:
            with suppress(NodeLost):
                await getattr(handle, method)(*args)

        await asyncio.gather(*map(told, filter(None, self.there)))
