"""The driver of server rules: pull, compute, push."""

from lib.cluster.base import World
from lib.drivers.execution import run_attempt
from lib.drivers.model_state import ModelState
from lib.drivers.parameter_server import open_servers
from lib.drivers.plan import Plan
from lib.drivers.record import Finished
from lib.drivers.server_worker import ServerWorker
from lib.drivers.trainer import open_data_service
from lib.drivers.workers import Workers


async def drive(world: World, plan: Plan, model: ModelState | None = None) -> Finished:
    """Host the servers, the batches' sources and the workers, and carry the plan out."""
    sparse, dense = plan.protocol.sparse, plan.protocol.dense
    if sparse is dense and not plan.embedding_workers:
        servers = (await open_servers(world, plan, dense, ("dense", "rows"), model),)
    else:
        first = await open_servers(world, plan, dense, ("dense",), model)
        servers = (first, await open_servers(world, plan.without_server_compression, sparse, ("rows",), model))
    data_service = await open_data_service(world, plan)
    named = {name: handle for each in servers for name, handle in each.parts_by_name().items()}
    listeners = [*named.values(), *([data_service.queue] if plan.watch else [])]
    embedding = servers[-1], data_service
    workers = Workers(world, plan, ServerWorker, (servers, data_service), listeners, embedding=embedding)
    return await run_attempt(world, plan, workers, named, data_service.parts_by_name())
