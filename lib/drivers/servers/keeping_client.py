"""A worker that keeps what it read for some batches (a cache), or its gradients until they are some batches' (an accumulator)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.data.batch import Batch
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Record
from lib.drivers.servers.decided import keeps
from lib.drivers.servers.server_client import Parts, ServerClient
from lib.drivers.servers.servers import Servers
from lib.models.flat import StepResult
from lib.protocols.server_rule import Push
from lib.store.blank import blank
from lib.store.spec import RowStore


@dataclass(frozen=True, slots=True)
class Kept:
    """What one server gave in one answer."""

    version: int
    token: int
    until: int
    """The worker's batch before which it is good."""
    losses: int


class KeepingClient(ServerClient):
    """A `ServerClient` that asks for what it has not, or has no more, and sends sums.

    Guaranteed: what is read anew has all of the worker's gradients in it that were sent, for messages keep their order; what is
    kept, all that it computed since, as its own optimisers step. A pause ends both.
    """

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: Record):
        super().__init__(site, plan, servers, rank, size, record)
        self._plan, self._sums = plan, self._rule.sums
        self._turn = asyncio.Lock()
        self._unsent: list[tuple[Batch, StepResult]] = []
        self._used: dict[int, list[Kept]] = {}
        """Batch -> the oldest that it was computed from, of each server."""
        self._unheard: set[int] = set()
        """Batches that no server knows of."""
        self._forget()

    async def pull(self, batch: Batch) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
        async with self._turn:
            self._batches += 1
            parts = self._parts(batch)
            missing = [
                {table: self._missing(table, batch.ids[table], part) for table, part in share.items()}
                for share in parts
            ]
            ask = [shard for shard, share in enumerate(missing) if self._stale(shard) or any(map(len, share.values()))]
            if ask:
                await self._fetch(batch, missing, ask)
            else:
                self._unheard.add(batch.index)
                self._record.ledger["kept"] += 1
            self._used[batch.index] = [self._oldest(batch, shard, share) for shard, share in enumerate(parts)]
            dense = self._vector.pull() if self._dense else None
            return dense, {
                table: self._tables[table].pull(ids) for table, ids in batch.ids.items()
            } if self._rows else {}

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        if result is None:
            return await self._send([(batch, None)])
        async with self._turn:
            numbers = (result.dense.numel() if self._dense else 0) + sum(grads.size for grads in result.rows.values())
            await self._site.compute(Work(bytes=12 * numbers), self._step, batch, result)
            self._unsent.append((batch, result))
            if len(self._unsent) < self._sums:
                return None
            sent, self._unsent = self._unsent, []
        return await self._send(sent)

    async def tell(self, change: str) -> None:
        if self._unsent:
            sent, self._unsent = self._unsent, []
            await self._send(sent)
        self._forget()
        await super().tell(change)

    def _forget(self) -> None:
        """Have nothing."""
        self._batches = -1
        self._vector = self._plan.dense_store(self._plan.start(self._site)) if self._dense else None
        self._tables = replace(self._plan, store=RowStore()).tables() if self._rows else {}
        self._slices: list[Kept | None] = [None] * len(self._handles)
        self._rows_of: dict[str, dict[int, Kept]] = {table: {} for table in self._tables}

    def _missing(self, table: str, ids: np.ndarray, part: np.ndarray | slice) -> np.ndarray:
        """Where in a server's part of the ids those are whose rows are not here, or no more good."""
        places = np.arange(ids.size)[part]
        good = [self._good(self._rows_of[table].get(id)) for id in ids[places].tolist()]
        return places[~np.array(good, bool)]

    def _good(self, kept: Kept | None) -> bool:
        return kept is not None and self._batches < kept.until

    def _stale(self, shard: int) -> bool:
        return self._dense and not self._good(self._slices[shard])

    async def _fetch(self, batch: Batch, missing: list[Parts], ask: list[int]) -> None:
        start = self._site.now()
        asked = [self._asked(batch, missing[shard]) for shard in ask]
        calls = [
            self._handles[shard].pull(self._rank, batch.index, ids, self._stale(shard))
            for shard, ids in zip(ask, asked, strict=True)
        ]
        pulled = await asyncio.gather(*calls)
        self._note(batch, start, asked, pulled)
        vector = self._vector.pull() if self._dense else None
        for shard, part in zip(ask, pulled, strict=True):
            version, lasts, losses = part.kept
            kept = Kept(version, part.token, self._batches + lasts, losses)
            if part.dense is not None:
                self._slices[shard] = kept
                if self._plan.gradients:
                    vector[self._partition.slice(shard)] = part.dense
            for table, places in missing[shard].items():
                ids = batch.ids[table][places]
                self._tables[table].assign(ids, self._store.rows.decode(part.rows[table]))
                self._rows_of[table].update(dict.fromkeys(ids.tolist(), kept))
        if self._dense:
            self._vector.assign(vector)

    def _oldest(self, batch: Batch, shard: int, share: Parts) -> Kept | None:
        """Of what a batch was computed from; None: it has nothing of that server."""
        used = [self._rows_of[table][id] for table, part in share.items() for id in batch.ids[table][part].tolist()]
        used += [self._slices[shard]] if self._dense else []
        return min(used, key=lambda kept: kept.version, default=None)

    def _step(self, batch: Batch, result: StepResult) -> None:
        """The worker's own update of what it has."""
        rate = self._plan.rate_after(max(0, self._batches) * self._plan.workers * self._plan.workload.batch_size)
        if self._dense:
            self._vector.apply(result.dense, rate)
        for table, grads in result.rows.items() if self._rows else ():
            self._tables[table].push(batch.ids[table], grads, self._batches + 1, distinct=True, rate=rate)

    async def _send(self, kept: Sequence[tuple[Batch, StepResult | None]]) -> None:
        """One push of these batches' summed gradients."""
        start, batch, indices = self._site.now(), kept[-1][0], [batch.index for batch, _ in kept]
        result = kept[-1][1]
        if len(kept) > 1:
            batch, result = self._summed(kept)
        gradients = []
        for shard, parts in enumerate(self._parts(batch)):
            used = [each[shard] for each in map(self._used.get, indices) if each[shard] is not None]
            oldest = min(used, key=lambda each: each.version, default=None)
            push = Push(
                self._rank, oldest.token if oldest else 0, batch.index, oldest.version if oldest else 0, len(kept)
            )
            gradient = self._share(push, batch, result, shard, parts)
            losses = used[-1].losses if used else 0
            gradients.append(replace(gradient, others=tuple(indices[:-1]), losses=losses))
        for index in indices:
            del self._used[index]
        self._count("push dense", [gradient.dense for gradient in gradients])
        self._count("push rows", [gradient.rows for gradient in gradients])
        calls = [handle.push(gradient) for handle, gradient in zip(self._handles, gradients, strict=True)]
        await asyncio.gather(*calls)
        self._record.ledger["kept"] -= len(self._unheard & {*indices})
        self._unheard -= {*indices}
        self._record.span("push", start, self._site.now(), batch.index)

    def _summed(self, kept: Sequence[tuple[Batch, StepResult]]) -> tuple[Batch, StepResult]:
        """As of one batch that has them all."""
        ids, rows = {}, {}
        for table in kept[0][1].rows:
            every = np.concatenate([batch.ids[table] for batch, _ in kept])
            ids[table], places = np.unique(every, return_inverse=True)
            shape = ids[table].size, kept[0][1].rows[table].shape[1]
            rows[table] = np.zeros(shape, np.float32) if self._plan.gradients else blank(*shape)
            if self._plan.gradients:
                np.add.at(rows[table], places, np.concatenate([result.rows[table] for _, result in kept]))
        dense = kept[0][1].dense
        if self._plan.gradients:
            dense = sum((result.dense for _, result in kept[1:]), dense)
        size = sum(batch.size for batch, _ in kept)
        return replace(kept[-1][0], ids=ids, size=size), StepResult(loss=math.nan, dense=dense, rows=rows, scores=None)


def client_of(site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: Record) -> ServerClient:
    """What its rule needs of a worker."""
    rule = plan.protocol.dense if "dense" in servers.holds else plan.protocol.sparse
    kind = KeepingClient if keeps(rule, plan) else ServerClient
    return kind(site, plan, servers, rank, size, record)
