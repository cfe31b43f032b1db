"""When a worker pulls: as its step begins, or some batches before, so that transfers are hidden behind the computation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from lib.drivers.servers.server_client import ServerClient
from lib.tasks.batch import Batch

Pull = Callable[[], Awaitable[Any]]
"""What a worker calls for the parameters of its step; it may have been asked for before."""
Due = tuple[Batch, tuple[Pull, ...]]
"""A batch, and a pull from each set of servers."""


def pulled(
    batches: AsyncIterator[Batch], servers: Sequence[ServerClient], tasks: asyncio.TaskGroup
) -> AsyncIterator[Due]:
    """A worker's batches, each with its pulls, of which those of a rule that reads ahead are under way.

    Guaranteed: of a worker's batches at most `1 + ahead` have been asked for at these servers and not been pushed, where the
    worker sends its pushes before it asks for its next batch; nothing is under way when the batches have come to their end.
    """
    due, furthest = _alone(batches), sorted(servers, key=lambda client: -client.ahead)
    for each, after in zip_longest(furthest, furthest[1:]):
        # Whoever comes after it in the chain is itself as far ahead of the worker as it reads.
        further = each.ahead - after.ahead if after else each.ahead
        due = _ahead(due, each, further, tasks) if each.ahead else _in_step(due, each)
    return due


async def _alone(batches: AsyncIterator[Batch]) -> AsyncIterator[Due]:
    async for batch in batches:
        yield batch, ()


async def _in_step(due: AsyncIterator[Due], servers: ServerClient) -> AsyncIterator[Due]:
    async for batch, pulls in due:
        yield batch, (*pulls, partial(servers.pull, batch))


async def _ahead(
    due: AsyncIterator[Due], servers: ServerClient, further: int, tasks: asyncio.TaskGroup
) -> AsyncIterator[Due]:
    """`further`: batches that are pulled before they are asked for here."""
    free, ready = asyncio.Semaphore(1 + further), asyncio.Queue()

    async def fill() -> None:
        while True:
            await free.acquire()
            if (each := await anext(due, None)) is None:
                break
            batch, pulls = each
            pull = tasks.create_task(servers.pull(batch), name=f"pull for batch {batch.index}")
            ready.put_nowait((batch, (*pulls, lambda pull=pull: pull)))
        ready.put_nowait(None)

    tasks.create_task(fill(), name="pulling ahead")
    while (each := await ready.get()) is not None:
        yield each
        free.release()
