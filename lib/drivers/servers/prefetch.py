"""When a worker pulls: as its step begins, or some batches before, so that computation hides the transfers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import zip_longest

from lib.drivers.servers.messages import PullReply
from lib.drivers.servers.server_client import ServerClient
from lib.tasks.batch import Batch

Pull = Callable[[], Awaitable[PullReply]]
"""Gives the parameters of a step; the request may have been sent before."""


async def with_pulls(
    batches: AsyncIterator[Batch], clients: Sequence[ServerClient], tasks: asyncio.TaskGroup
) -> AsyncIterator[tuple[Batch, list[Pull]]]:
    """Yield a worker's batches, each with a pull from each client; those of rules that pull ahead are under way.

    Guaranteed: at most `1 + pull_ahead` of a worker's batches are pulled from these servers and not pushed, if the worker sends
    its pushes before it asks for its next batch; nothing is under way after the last batch.
    """
    ahead = sorted((client for client in clients if client.pull_ahead), key=lambda client: -client.pull_ahead)
    on_demand = [client for client in clients if not client.pull_ahead]
    started: dict[int, list[Pull]] = {}
    for client, after in zip_longest(ahead, ahead[1:]):
        # The next in the chain is itself as many batches ahead of the worker as it pulls.
        further = client.pull_ahead - (after.pull_ahead if after else 0)
        batches = _pull_ahead(batches, client, further, tasks, started)
    async for batch in batches:
        yield batch, [*started.pop(batch.index, ()), *(partial(client.pull, batch) for client in on_demand)]


async def _pull_ahead(
    batches: AsyncIterator[Batch],
    client: ServerClient,
    further: int,
    tasks: asyncio.TaskGroup,
    started: dict[int, list[Pull]],
) -> AsyncIterator[Batch]:
    """Yield the batches, of which up to `further` more are already pulled."""
    free, ready = asyncio.Semaphore(1 + further), asyncio.Queue()

    async def fill() -> None:
        while True:
            await free.acquire()
            if (batch := await anext(batches, None)) is None:
                break
            pull = tasks.create_task(client.pull(batch), name=f"pull for batch {batch.index}")
            started.setdefault(batch.index, []).append(lambda pull=pull: pull)
            ready.put_nowait(batch)
        ready.put_nowait(None)

    tasks.create_task(fill(), name="pulling ahead")
    while (batch := await ready.get()) is not None:
        yield batch
        free.release()
