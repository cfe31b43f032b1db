"""Embedding workers (Persia, Sections 4.1 and 4.2.1): nodes between those who have the rows and those who train the network.

An embedding worker makes a batch, keeps its ids under a sample ID, and sends on what is no id. Whoever trains on the batch
asks for its rows by that ID and returns their gradients by it: only the embedding worker asks servers for rows, sums those of
multi-hot fields, and spreads a sum's gradient over its rows. What it holds is in its memory alone: a death loses it.

A sample here is a whole batch, since a batch is what is pulled and pushed in one go.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lib.cluster.base import Site, nbytes
from lib.cluster.spec import Work
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Mark, Record
from lib.drivers.run.supply import Supply
from lib.drivers.servers.sample_ids import first
from lib.drivers.servers.server_client import ServerClient
from lib.drivers.servers.servers import Servers
from lib.drivers.servers.steps import Pulled
from lib.store.blank import blank
from lib.store.checkpoint import Kept
from lib.store.wire.bags import Bags
from lib.tasks.batch import Batch
from lib.tasks.flat_model import StepResult


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A batch that is held, as the worker gets it that trains on it."""

    sample: int
    """Under which ID."""
    batch: Batch
    """Without its ids; and without the places of those whose rows it will see as sums."""
    rows: dict[str, int]
    """Table -> how many rows there are to come of those that are not summed."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is kept of a batch until its gradients are back."""

    worker: int
    """Who trains on it."""
    batch: Batch
    """Its ids, and where in the batch they stand."""


class EmbeddingWorker(Kept):
    """It answers for what it holds, in any order; it knows nothing of what another generation of its node held."""

    def __init__(self, site: Site, plan: Plan, rank: int, servers: Servers, supply: Supply):
        self._site, self._plan, self._servers = site, plan, servers
        self._readers = [reader.bind(site) for reader in supply.readers]
        self._store, self._dims = plan.store, {name: spec.dim for name, spec in plan.workload.tables().items()}
        self._sums = {table: bag for table, bag in plan.summed.items() if table not in plan.pooled}
        """What is summed here."""
        self._next = first(rank, site.generation)
        self._held: dict[int, Held] = {}
        self._clients: dict[int, ServerClient] = {}
        """The servers, for each worker: rules follow those who train."""
        self._rest = asyncio.Event()
        self.record = Record(site.node, [] if plan.trace else None)

    async def hold(self, worker: int, index: int) -> Dispatched:
        """Make a batch for a worker, or let a reader do it, and keep its ids."""
        if worker not in self._clients:
            self._clients[worker] = ServerClient(self._site, self._plan.behind, self._servers, worker, 0, self.record)
        client, batch = self._clients[worker], await self._made(index)
        sample = self._next
        self._next += 1
        if self._clients.get(worker) is client:  # else it died meanwhile
            self._held[sample] = Held(worker, replace(batch, features={}, labels=None, left_out=None))
            self.record.ledger["samples held"] += 1
        sums = self._plan.summed
        where = {table: places[:, :0] if table in sums else places for table, places in batch.where.items()}
        rows = {table: ids.size for table, ids in batch.ids.items() if table not in sums}
        return Dispatched(sample, replace(batch, ids={}, where=where), rows)

    async def pull(self, sample: int) -> Pulled | None:
        """The rows of what is held under that ID, or their sums, as they travel; None: nothing is."""
        if (held := self._held.get(sample)) is None:
            return None
        found = await self._clients[held.worker].ask(held.batch)
        if found is None:
            return None
        rows = await self._site.compute(self._work(held.batch), self._summed, held.batch, found.rows)
        return replace(found, rows=rows)

    async def push(self, sample: int, gradients: Mapping[str, Any] | None) -> bool:
        """Bring the gradients of what `pull` gave to the servers, or that there are none, and keep the batch no more; when this
        returns, the servers have taken them. False: nothing is held under that ID."""
        if (held := self._held.get(sample)) is None:
            return False
        client, result = self._clients[held.worker], None
        if gradients is not None:
            rows = await self._site.compute(self._work(held.batch), self._spread, held.batch, gradients)
            result = StepResult(loss=math.nan, dense=torch.empty(0), rows=rows, scores=None)
        await client.push(held.batch, result)
        if self._held.pop(sample, None):
            self.record.ledger["samples returned"] += 1
        return True

    async def forget(self, worker: int) -> None:
        """A worker is lost, and what was held for it is not to be asked for."""
        self._clients.pop(worker, None)
        forgotten = [sample for sample, held in self._held.items() if held.worker == worker]
        for sample in forgotten:
            del self._held[sample]
        self.record.ledger["samples forgotten"] += len(forgotten)

    async def serve(self) -> None:
        """Until it is to `rest`: who waits for this hears of its death."""
        self._rest.clear()
        await self._rest.wait()

    async def rest(self) -> None:
        self._rest.set()

    async def save(self) -> dict[str, Any]:
        """At a pause, when it holds nothing."""
        return {"record": self.record}

    async def load(self, state: dict[str, Any]) -> None:
        self.record.become(state["record"])

    async def report(self, end: Mark) -> Record:
        return self.record

    async def _made(self, index: int) -> Batch:
        if not self._readers:
            return await self._site.prepare(self._plan.size_of(index), self._plan.batch, index)
        batch = await self._readers[index % len(self._readers)].batch(index)
        self.record.bytes["batches"] += nbytes(batch)
        return batch

    def _work(self, batch: Batch) -> Work | None:
        """What summing costs, and spreading: each entry's row is read, and each sum written, or the other way round."""
        if not self._sums:
            return None
        numbers = sum(
            self._dims[table] * (batch.where[table].size + len(batch.where[table]) * len(bag))
            for table, bag in self._sums.items()
        )
        return Work(bytes=4 * numbers)

    def _summed(self, batch: Batch, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        sent = dict(rows)
        for table in self._sums:
            bags = self._bags(batch, table)
            if self._plan.gradients:
                sent[table] = bags.sums(rows[table], batch.where[table].ravel())
            else:
                sent[table] = blank(bags.bags.size, self._dims[table])
        return {table: self._store.rows.encode(block) for table, block in sent.items()}

    def _spread(self, batch: Batch, gradients: Mapping[str, Any]) -> dict[str, np.ndarray]:
        rows = {table: self._store.gradients.decode(sent) for table, sent in gradients.items()}
        for table in self._sums:
            if self._plan.gradients:
                rows[table] = self._bags(batch, table).spread(rows[table])[1]
            else:
                rows[table] = blank(batch.ids[table].size, self._dims[table])
        return rows

    def _bags(self, batch: Batch, table: str) -> Bags:
        return Bags.of(batch.ids[table], batch.where[table], self._sums[table], slice(None))
