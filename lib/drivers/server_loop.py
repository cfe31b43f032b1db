"""The driver of server rules: pull, compute, push."""

import asyncio

from lib.cluster.base import Handle, Site, World
from lib.drivers.embedding_worker import make_client
from lib.drivers.execution import carry_out
from lib.drivers.model_state import ModelState
from lib.drivers.parameter_server import Servers, open_servers
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, Finished, PartLog
from lib.drivers.server_client import with_pulls
from lib.drivers.trainer import DataService, Input, Trainer, open_data_service
from lib.drivers.workers import Workers
from lib.store.checkpoint import Part


class ServerWorker(Part):
    """A worker without parameters of its own."""

    in_checkpoint = ("_input", "record")

    def __init__(self, site: Site, plan: Plan, rank: int, servers: tuple[Servers, ...], data_service: DataService):
        self.record = PartLog(site.node, [] if plan.trace else None)
        self._trainer = Trainer(site, plan, rank, self.record)
        self._clients = [make_client(site, plan, each, rank, self._trainer.size, self.record) for each in servers]
        self._plan = plan
        self._input = Input(site, plan, rank, data_service, self._trainer, self._clients[-1].batch)

    async def run(self, until: int) -> None:
        """Train on all batches before `until`, then leave, or pause if it is not the end."""
        async with asyncio.TaskGroup() as sending:
            batches = self._input.batches(until, sending)
            async for batch, pulls in with_pulls(batches, self._clients, sending):
                replies = [await pulls[0]()] if len(pulls) == 1 else await asyncio.gather(*(pull() for pull in pulls))
                dense, rows = None, {}
                for reply in replies:
                    dense = reply.dense if reply.dense is not None else dense
                    rows |= reply.rows
                result = await self._trainer.step(batch, dense, rows)
                for client in self._clients:
                    # The worker goes on at once; the rule decides whether its next pull waits for this push.
                    sending.create_task(client.push(batch, result), name=f"push of batch {batch.index}")
                await asyncio.sleep(0)  # the pushes leave before the next pull
        for client in self._clients:
            await client.tell("pauses" if until < self._plan.end else "leaves")

    async def find(self, others: dict[int, Handle], embedding: dict[int, Handle], patience: float | None) -> None:
        """Take note of the embedding workers that live."""
        self._clients[-1].find(embedding, patience)

    async def copy(self) -> None:
        """What a worker that comes back needs of this one: nothing, since the servers have all."""

    async def take_over(self, step: int, copy: None, beyond: int) -> None:
        """Take the place of a lost worker, at a step that comes after the batch `beyond`; its share of what the others trained
        on meanwhile is left out."""
        self._input.skip(step, beyond)

    async def report(self, end: EvalPoint) -> PartLog:
        return self.record


async def drive(world: World, plan: Plan, model: ModelState | None = None) -> Finished:
    """Host the servers, the batches' sources and the workers, and carry the plan out."""
    sparse, dense = plan.protocol.sparse, plan.protocol.dense
    if sparse is dense and not plan.embedding_workers:
        servers = (await open_servers(world, plan, dense, ("dense", "rows"), model),)
    else:
        first = await open_servers(world, plan, dense, ("dense",), model)
        servers = (first, await open_servers(world, plan.behind, sparse, ("rows",), model))
    data_service = await open_data_service(world, plan)
    named = {name: handle for each in servers for name, handle in each.named().items()}
    listeners = [*named.values(), *([data_service.queue] if plan.watch else [])]
    embedding = servers[-1], data_service
    workers = Workers(world, plan, ServerWorker, (servers, data_service), listeners, embedding=embedding)
    return await carry_out(world, plan, workers, named, data_service.named())
