"""A worker's client of the embedding workers, which stand before the rows' servers: the worker never sees an id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Site, nbytes
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import PartLog
from lib.drivers.servers.embedding_worker import DispatchedBatch, rank_of
from lib.drivers.servers.messages import Gradient, PullReply
from lib.drivers.servers.parameter_server import Servers
from lib.errors import NodeLost
from lib.tasks.batch import Batch
from lib.tasks.flat_model import StepResult


class EmbeddingClient:
    """It makes a worker's batches and, in place of a `ServerClient`, pulls and pushes their rows.

    Guaranteed: a worker's pushes come to the servers before they see its later pulls, though these go another way.
    If an embedding worker dies, a batch whose rows have not come is held anew by another one, or by its next generation; rows'
    gradients that it was to take are abandoned, and the servers hear so.
    """

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, record: PartLog):
        self._site, self._rank, self._record, self._store = site, rank, record, plan.store
        self._blocks, self.pull_ahead = plan.protocol.sparse.blocks, plan.protocol.sparse.pull_ahead
        self._servers = [handle.bind(site) for handle in servers.handles]
        self._embedding: list[Handle | None] = [None] * plan.embedding_workers
        """The embedding workers; None for a dead one."""
        self._patience: float | None = None
        self._changed = asyncio.Event()
        self._samples: dict[int, int] = {}
        """Batch -> its sample ID."""
        self._tokens: dict[int, int] = {}
        """Batch -> the token of its step, once it has its rows."""
        self._sending: set[asyncio.Future] = set()
        """Pushes under way."""

    async def find(self, embedding: Sequence[Handle | None], patience: float | None) -> None:
        """Take note of the embedding workers that live; `patience` are the seconds of silence after which one counts as dead,
        None if no death is planned, so that any death takes the run back."""
        self._embedding = [handle and handle.bind(self._site) for handle in embedding]
        self._patience = patience
        self._changed.set()

    async def batch(self, index: int) -> Batch:
        """The batch, whose ids an embedding worker holds; in their place stand the positions of the rows that will come."""
        held: DispatchedBatch | None = None
        while held is None:
            held = await self._ask(await self._holder(index), "hold", self._rank, index)
        self._samples[index] = held.sample
        self._record.bytes["dispatched"] += nbytes(held)
        return replace(held.batch, ids={table: np.arange(count) for table, count in held.rows.items()})

    async def pull(self, batch: Batch) -> PullReply:
        if self._sending:  # they take other ways, and might come later
            await asyncio.wait(self._sending)
        start = self._site.now()
        while True:
            sample = self._samples[batch.index]
            reply: PullReply | None = await self._ask(rank_of(sample), "pull", sample)
            if reply is not None:
                break
            await self.batch(batch.index)  # its holder died
        self._tokens[batch.index] = reply.token
        self._record.span("wait", start, start + reply.waited, batch.index)
        self._record.span("pull", start + reply.waited, self._site.now(), batch.index)
        self._record.bytes["embeddings"] += nbytes(reply)
        return replace(reply, rows={table: self._store.rows.decode(block) for table, block in reply.rows.items()})

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        """Send the gradients; return when the servers have taken them, or know that they will not come."""
        start, done = self._site.now(), asyncio.get_running_loop().create_future()
        self._sending.add(done)
        try:
            sample, token = self._samples.pop(batch.index), self._tokens.pop(batch.index)
            sent = result and {table: self._store.gradients.encode(block) for table, block in result.rows.items()}
            self._record.bytes["embedding gradients"] += nbytes([sent])
            if not await self._ask(rank_of(sample), "push", sample, sent):
                abandoned = Gradient(self._rank, token, batch.index, batch.size, void="abandoned")
                await asyncio.gather(*(server.push(abandoned) for server in self._servers))
        finally:
            self._sending.remove(done)
            done.set_result(None)
        self._record.span("push", start, self._site.now(), batch.index)

    async def tell(self, change: str) -> None:
        """Tell the servers that the worker leaves, or pauses, where that matters to the rule."""
        if self._blocks or change != "pauses":
            await asyncio.gather(*(server.tell(self._rank, change) for server in self._servers))

    async def _holder(self, index: int) -> int:
        """The rank of the embedding worker that is to hold a batch: each in turn, without the dead ones. Where the rule blocks,
        one holds all batches of a worker, so that they come to its gate in their order."""
        first, count = self._rank if self._blocks else index, len(self._embedding)
        while True:
            for rank in ((first + step) % count for step in range(count)):
                if self._embedding[rank] is not None:
                    return rank
            self._changed.clear()
            await self._changed.wait()

    async def _ask(self, rank: int, method: str, *args: Any) -> Any:
        """An embedding worker's answer; None if it is dead, after so long a silence."""
        if (handle := self._embedding[rank]) is None:
            return None
        try:
            return await getattr(handle, method)(*args)
        except NodeLost as lost:
            if lost.node != f"embedding{rank}" or self._patience is None:
                raise
        await self._site.sleep(self._patience)
        if self._embedding[rank] is handle:
            self._embedding[rank] = None
        return None
