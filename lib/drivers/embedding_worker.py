"""Embedding workers (Persia, Sections 4.1 and 4.2.1): nodes between the rows' servers and the NN workers.

An embedding worker makes a batch, keeps its ids under a sample ID, and sends on all the rest. The NN worker that trains on it
asks for its rows by that ID and returns their gradients by it: only the embedding worker asks servers for rows, sums those of
multi-hot fields, and spreads a sum's gradient over its rows. It holds batches in memory alone: a death loses them.

A sample here is a whole batch, since a batch is what is pulled and pushed in one go. A sample ID has eight bytes. The first says
which embedding worker holds the sample (Persia, Section 4.1). The next two say in which generation of its node, so that a later
generation does not answer for lost batches. Five count.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lib.cluster.base import Handle, Site, nbytes
from lib.cluster.spec import Work
from lib.drivers.parameter_server import Servers
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, PartLog
from lib.drivers.server_client import CachedClient, ServerClient
from lib.drivers.shard import Gradient, PullReply
from lib.drivers.trainer import DataService
from lib.errors import NodeLost
from lib.store.checkpoint import Part
from lib.store.spec import Bags
from lib.tasks.flat_model import Batch, StepResult

MOST_EMBEDDING_WORKERS = 256
"""A byte of the sample ID says which one."""


def first_sample(rank: int, generation: int) -> int:
    """The first sample ID of an embedding worker in that generation; each one after it is one more."""
    return rank << 56 | (generation & 0xFFFF) << 40


def rank_of(sample: int) -> int:
    """The rank of the embedding worker that gave a sample ID."""
    return sample >> 56


@dataclass(frozen=True, slots=True)
class DispatchedBatch:
    """A batch whose ids an embedding worker holds, as the worker gets it that trains on it."""

    sample: int
    """The ID under which it is held."""
    batch: Batch
    """Without its ids; and without the places of those whose rows come as sums."""
    rows: dict[str, int]
    """Table -> the number of rows to come, where they are not summed."""


class EmbeddingWorker(Part):
    """It answers for the batches that it holds, in any order, and for none of an earlier generation of its node."""

    in_checkpoint = ("record",)

    def __init__(self, site: Site, plan: Plan, rank: int, servers: Servers, data_service: DataService):
        self._site, self._plan, self._servers = site, plan, servers
        self._store, self._dims = plan.store, {name: spec.dim for name, spec in plan.workload.tables().items()}
        self._bags = {table: bag for table, bag in plan.bags_summed_before.items() if table not in plan.bags_of_servers}
        """Table -> the bags that are summed here."""
        self._next = first_sample(rank, site.generation)
        self._held: dict[int, tuple[int, Batch, dict[str, Bags]]] = {}
        """Sample ID -> the worker that trains on the batch, its ids with their positions, and its sums that are made here,
        until its gradients are back."""
        self._clients: dict[int, ServerClient] = {}
        """Worker -> its client of the servers, whose rule follows the workers that train."""
        self._end = asyncio.Event()
        self.record = PartLog(site.node, [] if plan.trace else None)
        self._make = data_service.source(site, plan, self.record)

    async def hold(self, worker: int, index: int) -> DispatchedBatch:
        """Make a batch for a worker, or let a reader make it, and keep its ids."""
        if worker not in self._clients:
            self._clients[worker] = ServerClient(self._site, self._plan.behind, self._servers, worker, 0, self.record)
        client = self._clients[worker]
        batch = await self._make(index)
        sample, self._next = self._next, self._next + 1
        if self._clients.get(worker) is client:  # else the worker died meanwhile
            bags = {t: Bags.of(batch.ids[t], batch.where[t], bag, slice(None)) for t, bag in self._bags.items()}
            self._held[sample] = worker, replace(batch, features={}, labels=None, ballast=None), bags
            self.record.ledger["samples held"] += 1
        summed = self._plan.bags_summed_before
        where = {table: places[:, :0] if table in summed else places for table, places in batch.where.items()}
        rows = {table: ids.size for table, ids in batch.ids.items() if table not in summed}
        return DispatchedBatch(sample, replace(batch, ids={}, where=where), rows)

    async def pull(self, sample: int) -> PullReply | None:
        """The rows of a held batch, or their sums, as they travel; None if no batch has that ID."""
        if sample not in self._held:
            return None
        worker, batch, bags = self._held[sample]
        reply = await self._clients[worker].pull(batch)
        if reply is None:
            return None
        rows = await self._site.compute(self._pooling_cost(bags), self._pool, batch, bags, reply.rows)
        return replace(reply, rows=rows)

    async def push(self, sample: int, gradients: Mapping[str, Any] | None) -> bool:
        """Bring the gradients of a held batch's rows to the servers, or that there are none, and forget the batch; return when
        the servers have taken them. False if no batch has that ID."""
        if sample not in self._held:
            return False
        worker, batch, bags = self._held[sample]
        client, result = self._clients[worker], None
        if gradients is not None:
            rows = await self._site.compute(self._pooling_cost(bags), self._spread, bags, gradients)
            result = StepResult(loss=math.nan, dense=torch.empty(0), rows=rows, scores=None)
        await client.push(batch, result)
        if self._held.pop(sample, None):
            self.record.ledger["samples returned"] += 1
        return True

    async def forget(self, worker: int) -> None:
        """Drop what is held for a lost worker."""
        self._clients.pop(worker, None)
        forgotten = [sample for sample, (owner, *_) in self._held.items() if owner == worker]
        for sample in forgotten:
            del self._held[sample]
        self.record.ledger["samples forgotten"] += len(forgotten)

    async def serve(self) -> None:
        """Wait until `rest`; a caller that waits for this learns of the node's death."""
        self._end.clear()
        await self._end.wait()

    async def rest(self) -> None:
        self._end.set()

    async def report(self, end: EvalPoint) -> PartLog:
        return self.record

    def _pooling_cost(self, bags: dict[str, Bags]) -> Work | None:
        """The cost of summing, or of spreading: each entry's row is read and each sum written, or the other way round."""
        numbers = sum(self._dims[table] * (each.entries.size + each.bags.size) for table, each in bags.items())
        return Work(bytes=4 * numbers) if bags else None

    def _pool(self, batch: Batch, bags: dict[str, Bags], rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The rows as they travel, summed where they are in bags."""
        sums = {table: each.sums(rows[table], batch.where[table].ravel()) for table, each in bags.items()}
        return {table: self._store.rows.encode(block) for table, block in {**rows, **sums}.items()}

    def _spread(self, bags: dict[str, Bags], gradients: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The rows' gradients, those of sums spread over the rows that were summed."""
        rows = {table: self._store.gradients.decode(sent) for table, sent in gradients.items()}
        return rows | {table: each.spread(rows[table])[1] for table, each in bags.items()}


class EmbeddingClient(ServerClient):
    """It makes a worker's batches and, in place of the servers, pulls and pushes their rows at embedding workers.

    Guaranteed: a worker's pushes come to the servers before they see its later pulls, though these go another way.
    If an embedding worker dies, a batch whose rows have not come is held anew by another one, or by its next generation; rows'
    gradients that it was to take are abandoned, and the servers hear so.
    """

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: PartLog):
        super().__init__(site, plan, servers, rank, size, record)
        self._count, self._patience = plan.embedding_workers, None
        self._embedding: dict[int, Handle] = {}
        """The embedding workers that are up."""
        self._changed = asyncio.Event()
        self._samples: dict[int, int] = {}
        """Batch -> its sample ID."""
        self._tokens: dict[int, int] = {}
        """Batch -> the token of its step, once it has its rows."""
        self._sending: set[asyncio.Future] = set()
        """Pushes under way."""

    def find(self, embedding: Mapping[int, Handle], patience: float | None) -> None:
        """Take note of the embedding workers that live; `patience` are the seconds of silence after which one counts as dead,
        None if no death is planned, so that any death takes the run back."""
        self._embedding = {rank: handle.bind(self._site) for rank, handle in embedding.items()}
        self._patience = patience
        self._changed.set()

    async def batch(self, index: int) -> Batch:
        """The batch, whose ids an embedding worker holds; in their place stand the positions of the rows that will come."""
        held: DispatchedBatch | None = None
        while held is None:
            held = await self._ask_one(await self._holder(index), "hold", self._rank, index)
        self._samples[index] = held.sample
        self._record.bytes["dispatched"] += nbytes(held)
        return replace(held.batch, ids={table: np.arange(count) for table, count in held.rows.items()})

    async def pull(self, batch: Batch) -> PullReply:
        if self._sending:  # they take other ways, and might come later
            await asyncio.wait(self._sending)
        start = self._site.now()
        while True:
            sample = self._samples[batch.index]
            reply: PullReply | None = await self._ask_one(rank_of(sample), "pull", sample)
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
            if not await self._ask_one(rank_of(sample), "push", sample, sent):
                abandoned = Gradient(self._rank, token, batch.index, batch.size, void="abandoned")
                await asyncio.gather(*(server.push(abandoned) for server in self._handles))
        finally:
            self._sending.remove(done)
            done.set_result(None)
        self._record.span("push", start, self._site.now(), batch.index)

    async def _holder(self, index: int) -> int:
        """The rank of the embedding worker that is to hold a batch: each in turn, without the dead ones. Where the rule blocks,
        one holds all batches of a worker, so that they come to its gate in their order."""
        first = self._rank if self._rule.blocks else index
        while not self._embedding:
            self._changed.clear()
            await self._changed.wait()
        return min(self._embedding, key=lambda rank: (rank - first) % self._count)

    async def _ask_one(self, rank: int, method: str, *args: Any) -> Any:
        """An embedding worker's answer; None if it is dead, after so long a silence."""
        if (handle := self._embedding.get(rank)) is None:
            return None
        try:
            return await getattr(handle, method)(*args)
        except NodeLost as lost:
            if lost.node != f"embedding{rank}" or self._patience is None:
                raise
        await self._site.sleep(self._patience)
        if self._embedding.get(rank) is handle:
            del self._embedding[rank]
        return None


def make_client(site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: PartLog) -> ServerClient:
    """A worker's client of these servers: it goes through embedding workers, or has a cache, or neither."""
    if plan.embedding_workers and "dense" not in servers.holds:
        return EmbeddingClient(site, plan, servers, rank, size, record)
    rule = plan.protocol.dense if "dense" in servers.holds else plan.protocol.sparse
    return (CachedClient if rule.cache_steps else ServerClient)(site, plan, servers, rank, size, record)
