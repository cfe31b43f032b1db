"""When a worker pulls: as its step begins, or some batches before, so that transfers are hidden behind the computation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from lib import streams
from lib.data.batch import Batch
from lib.drivers.servers.server_client import ServerClient

Pull = Callable[[], Awaitable[Any]]
"""What a worker calls for the parameters of its step; it may have been asked for before."""
Due = tuple[Batch, tuple[Pull, ...]]
"""A batch, and a pull from each set of servers."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Which of the batches that are buffered comes next: one at random of so many. It depends on which they are alone, so that a
    resumed run draws as the one that was never stopped."""

    seed: int
    rank: int
    size: int

    def of(self, buffered: Sequence[Due]) -> int:
        if len(buffered) == 1:
            return 0
        indices = (batch.index for batch, _ in buffered)
        return int(streams.stream(self.seed, "buffer", self.rank, *indices).integers(len(buffered)))


IN_ORDER = Draw(0, 0, 1)
"""A buffer of one."""


def pulled(
    batches: AsyncIterator[Batch], servers: Sequence[ServerClient], tasks: asyncio.TaskGroup, draw: Draw = IN_ORDER
) -> AsyncIterator[Due]:
    """A worker's batches, in their order or as they are drawn, each with its pulls, of which those of a rule that reads ahead are
    under way.

    Guaranteed: of a worker's batches at most `1 + ahead` have been asked for at these servers and not been pushed, where the
    worker sends its pushes before it asks for its next batch; nothing is under way when the batches have come to their end.
    """
    due, furthest = _alone(batches), sorted(servers, key=lambda client: -client.ahead)
    for each, after in zip_longest(furthest, furthest[1:]):
        # Whoever comes after it in the chain is itself as far ahead of the worker as it reads.
        further = each.ahead - after.ahead if after else each.ahead
        due = _ahead(due, each, further, tasks, draw) if each.ahead else _in_step(due, each)
    return due


async def _alone(batches: AsyncIterator[Batch]) -> AsyncIterator[Due]:
    async for batch in batches:
        yield batch, ()


async def _in_step(due: AsyncIterator[Due], servers: ServerClient) -> AsyncIterator[Due]:
    async for batch, pulls in due:
        yield batch, (*pulls, partial(servers.pull, batch))


async def _ahead(
    due: AsyncIterator[Due], servers: ServerClient, further: int, tasks: asyncio.TaskGroup, draw: Draw
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
    buffered, more = [], True
    while True:
        while more and len(buffered) < draw.size:
            each = await ready.get()
            more = each is not None
            buffered += [each] if more else []
        if not buffered:
            return
        yield buffered.pop(draw.of(buffered))
        free.release()
