"""A worker's view of the embedding workers, behind which are the servers of the rows: it never sees an id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Site, nbytes
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Record
from lib.drivers.servers.embedding_worker import Dispatched
from lib.drivers.servers.sample_ids import holder
from lib.drivers.servers.servers import Servers
from lib.drivers.servers.shard import Gradient
from lib.drivers.servers.steps import Pulled
from lib.errors import NodeLost
from lib.protocols.server_rule import Push
from lib.tasks.batch import Batch
from lib.tasks.flat_model import StepResult


class EmbeddingClient:
    """It makes a worker's batches and, in a `ServerClient`'s place, pulls and pushes their rows.

    Guaranteed: what a worker has pushed has come to the servers before they see what it pulls later, though it goes another way.
    Where an embedding worker dies, a batch whose rows have not come is held anew by another one, or by its next
    generation; the rows' gradients that it was to take are given up, and the servers told so.
    """

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, record: Record):
        self._site, self._rank, self._record, self._store = site, rank, record, plan.store
        rule = plan.protocol.sparse
        self._blocks, self.ahead = rule.blocks, rule.ahead
        self._servers = [handle.bind(site) for handle in servers.handles]
        self._there: list[Handle | None] = [None] * plan.embedding_workers
        self._patience: float | None = None
        self._found = asyncio.Event()
        self._samples: dict[int, int] = {}
        """Batch -> the ID under which its ids are held,"""
        self._tokens: dict[int, int] = {}
        """and the token of its step, once it has its rows."""
        self._sending: set[asyncio.Future] = set()
        """Pushes under way."""

    async def find(self, there: Sequence[Handle | None], patience: float | None) -> None:
        """Who of the embedding workers is there, and for how long one is to be silent until it is taken for dead; None: no
        death is planned, and one takes the run back."""
        self._there = [handle and handle.bind(self._site) for handle in there]
        self._patience = patience
        self._found.set()

    async def batch(self, index: int) -> Batch:
        """The batch, whose ids are held somewhere: an id is here the place of its row among those that will come."""
        while True:
            held: Dispatched | None = await self._ask(await self._whose(index), "hold", self._rank, index)
            if held is not None:
                break
        self._samples[index] = held.sample
        self._record.bytes["dispatched"] += nbytes(held)
        return replace(held.batch, ids={table: np.arange(count) for table, count in held.rows.items()})

    async def pull(self, batch: Batch) -> tuple[None, dict[str, np.ndarray]]:
        if self._sending:  # they take other ways, and might come later
            await asyncio.wait(self._sending)
        start = self._site.now()
        found = await self._rows(batch.index)
        self._tokens[batch.index] = found.token
        self._record.span("wait", start, start + found.waited, batch.index)
        self._record.span("pull", start + found.waited, self._site.now(), batch.index)
        self._record.bytes["embeddings"] += nbytes(found)
        return None, {table: self._store.rows.decode(block) for table, block in found.rows.items()}

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        """Send the gradients; awaiting it is waiting for the servers to have taken them, or to know that they will not come."""
        start, done = self._site.now(), asyncio.get_running_loop().create_future()
        self._sending.add(done)
        try:
            sample, token = self._samples.pop(batch.index), self._tokens.pop(batch.index)
            sent = result and {table: self._store.gradients.encode(block) for table, block in result.rows.items()}
            self._record.bytes["embedding gradients"] += nbytes([sent])
            if not await self._ask(holder(sample), "push", sample, sent):
                push = Push(self._rank, token, batch.index)
                given_up = Gradient(push, batch.size, None, {}, void="abandoned")
                await asyncio.gather(*(server.push(given_up) for server in self._servers))
        finally:
            self._sending.remove(done)
            done.set_result(None)
        self._record.span("push", start, self._site.now(), batch.index)

    async def tell(self, change: str) -> None:
        """What becomes of the worker: it leaves, or only pauses."""
        if self._blocks or change != "pauses":  # else nobody would wait for it
            await asyncio.gather(*(server.tell(self._rank, change) for server in self._servers))

    async def _rows(self, index: int) -> Pulled:
        while True:
            sample = self._samples[index]
            found: Pulled | None = await self._ask(holder(sample), "pull", sample)
            if found is not None:
                return found
            await self.batch(index)  # where it was held, it is no more

    async def _whose(self, index: int) -> int:
        """Who holds a batch: each in turn, or the next of those that are there; where the rule blocks, one for all of a worker's
        batches, so that these come to its gate in their order."""
        first, many = self._rank if self._blocks else index, len(self._there)
        while True:
            for number in ((first + step) % many for step in range(many)):
                if self._there[number] is not None:
                    return number
            self._found.clear()
            await self._found.wait()

    async def _ask(self, number: int, method: str, *args: Any) -> Any:
        """An embedding worker's answer; None where it is dead, once it has been silent for so long."""
        if (handle := self._there[number]) is None:
            return None
        try:
            return await getattr(handle, method)(*args)
        except NodeLost as lost:
            if lost.node != f"embedding{number}" or self._patience is None:
                raise
        await self._site.sleep(self._patience)
        if self._there[number] is handle:
            self._there[number] = None
        return None
