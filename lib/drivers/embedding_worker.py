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
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.drivers.parameter_server import Servers
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, PartLog
from lib.drivers.server_worker import DispatchedBatch, ServerClient, first_sample
from lib.drivers.shard import PullReply
from lib.drivers.trainer import DataService
from lib.store.checkpoint import Part
from lib.store.spec import Bags
from lib.tasks.flat_model import Batch, StepResult


class EmbeddingWorker(Part):
    """Answers for the batches that it holds, in any order, and for none of an earlier generation of its node."""

    in_checkpoint = ("record",)

    def __init__(self, site: Site, plan: Plan, rank: int, servers: Servers, data_service: DataService):
        self._site, self._plan, self._servers = site, plan, servers
        self._store = plan.store
        self._bags = {table: bag for table, bag in plan.pooled_bag_sizes.items() if table not in plan.server_bag_sizes}
        """Table -> the bags that are summed here."""
        self._next = first_sample(rank, site.generation)
        self._held: dict[int, tuple[int, Batch, dict[str, Bags]]] = {}
        """Sample ID -> the worker that trains on the batch, its ids with their positions, and its sums that are made here,
        until its gradients are back."""
        self._clients: dict[int, ServerClient] = {}
        """Worker -> its client of the servers, whose rule follows the workers that train."""
        self._end = asyncio.Event()
        self.record = PartLog(site.node, [] if plan.trace else None)
        self._make = data_service.batch_maker(site, plan, self.record)

    async def dispatch_without_ids(self, worker: int, index: int) -> DispatchedBatch:
        """Make a batch for a worker, or let a reader make it, and keep its ids."""
        if worker not in self._clients:
            plan = self._plan.without_server_compression
            self._clients[worker] = ServerClient(self._site, plan, self._servers, worker, 0, self.record)
        client = self._clients[worker]
        batch = await self._make(index)
        sample, self._next = self._next, self._next + 1
        if self._clients.get(worker) is client:  # else the worker died meanwhile
            bags = {t: Bags.of(batch.ids[t], batch.where[t], bag, slice(None)) for t, bag in self._bags.items()}
            self._held[sample] = worker, replace(batch, features={}, labels=None, ballast=None), bags
            self.record.ledger["samples held"] += 1
        summed = self._plan.pooled_bag_sizes
        where = {table: places[:, :0] if table in summed else places for table, places in batch.where.items()}
        rows = {table: ids.size for table, ids in batch.ids.items() if table not in summed}
        return DispatchedBatch(sample, replace(batch, ids={}, where=where), rows)

    async def pull(self, sample_id: int) -> PullReply | None:
        """The rows of a held batch, or their sums, as they travel; None if no batch has that ID."""
        if sample_id not in self._held:
            return None
        worker, batch, bags = self._held[sample_id]
        reply = await self._clients[worker].pull(batch)
        if reply is None:
            return None
        rows = await self._site.compute(self._pooling_cost(bags), self._pool, batch, bags, reply.rows)
        return replace(reply, rows=rows)

    async def push(self, sample_id: int, gradients: Mapping[str, Any] | None) -> bool:
        """Bring the gradients of a held batch's rows to the servers, or that there are none, and forget the batch; return when
        the servers have taken them. False if no batch has that ID."""
        if sample_id not in self._held:
            return False
        worker, batch, bags = self._held[sample_id]
        client, result = self._clients[worker], None
        if gradients is not None:
            rows = await self._site.compute(self._pooling_cost(bags), self._spread_gradients, bags, gradients)
            result = StepResult(loss=math.nan, dense=torch.empty(0), rows=rows, scores=None)
        await client.push(batch, result)
        if self._held.pop(sample_id, None):
            self.record.ledger["samples returned"] += 1
        return True

    async def forget_worker(self, worker: int) -> None:
        """Drop what is held for a lost worker."""
        self._clients.pop(worker, None)
        forgotten = [sample for sample, (owner, *_) in self._held.items() if owner == worker]
        for sample in forgotten:
            del self._held[sample]
        self.record.ledger["samples forgotten"] += len(forgotten)

    async def wait_for_stop(self) -> None:
        """Wait until `stop`; a caller that waits for this learns of the node's death."""
        self._end.clear()
        await self._end.wait()

    async def stop(self) -> None:
        self._end.set()

    async def report(self, end: EvalPoint) -> PartLog:
        return self.record

    def _pooling_cost(self, bags: dict[str, Bags]) -> Work | None:
        """The cost of summing, or of spreading: each entry's row is read and each sum written, or the other way round."""
        numbers = sum(self._plan.dims[table] * (each.entries.size + each.bags.size) for table, each in bags.items())
        return Work(bytes=4 * numbers) if bags else None

    def _pool(self, batch: Batch, bags: dict[str, Bags], rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The rows as they travel, summed where they are in bags."""
        sums = {table: each.sums(rows[table], batch.where[table].ravel()) for table, each in bags.items()}
        return {table: self._store.rows.encode(block) for table, block in {**rows, **sums}.items()}

    def _spread_gradients(self, bags: dict[str, Bags], gradients: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The rows' gradients, those of sums spread over the rows that were summed."""
        rows = {table: self._store.gradients.decode(sent) for table, sent in gradients.items()}
        return rows | {table: each.spread(rows[table])[1] for table, each in bags.items()}
