"""Where all workers' batches come from: a queue that says which is whose, and readers (ShadowSync, Section 3.1)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from lib.cluster.base import Handle, Site, World
from lib.drivers.feed import WorkQueue
from lib.drivers.run.plan import Plan
from lib.store.checkpointed import Part
from lib.tasks.batch import Batch


class Reader(Part):
    """A node of the reader service: it makes the batches that workers ask it for, and remembers nothing of them."""

    def __init__(self, site: Site, plan: Plan):
        self._site, self._plan = site, plan

    async def batch(self, index: int) -> Batch:
        return await self._site.prepare(self._plan.size_of(index), self._plan.batch, index)


@dataclass(frozen=True, slots=True)
class DataService:
    """What workers are given to get their batches from."""

    queue: Handle | None
    """Which batch is whose, where they share one; None: each knows its own."""
    readers: tuple[Handle, ...]
    """Who makes them, in turn; (): each worker its own."""

    def named(self) -> dict[str, Handle]:
        """The parts by names that no others of the run has."""
        readers = {f"reader{number}": reader for number, reader in enumerate(self.readers)}
        return {"queue": self.queue, **readers} if self.queue else readers


async def open_data_service(world: World, plan: Plan) -> DataService:
    """The queue that the plan's workers share, if they share one, and readers on nodes "reader0", "reader1", ..."""
    queue = None
    if plan.watch:
        queue = await world.host(plan.watch.queue, plan.batches, plan.watch, node="master")
    elif plan.data == "queue":
        queue = await world.host(WorkQueue, plan.batches, plan.seconds, node="master")
    hosted = (world.host(Reader, plan, node=f"reader{number}") for number in range(plan.readers))
    return DataService(queue, tuple(await asyncio.gather(*hosted)))
