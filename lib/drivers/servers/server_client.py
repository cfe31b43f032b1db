"""A worker's view of parameter servers: one vector and one block a table, however many servers hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from lib.cluster.base import Site, nbytes
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Record
from lib.drivers.servers.servers import Servers
from lib.drivers.servers.shard import Gradient
from lib.drivers.servers.steps import Pulled
from lib.protocols.server_rule import Push
from lib.store.blank import joined, taken
from lib.store.placement import Partition
from lib.tasks.batch import Batch
from lib.tasks.flat_model import StepResult

Parts = dict[str, np.ndarray | slice]
"""Table -> which of a batch's ids, or of its sums, are on one server."""


class ServerClient:
    """A worker's view: it pulls one vector and one block a table, however many servers hold them, and counts what travels."""

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: Record):
        self._handles = [handle.bind(site) for handle in servers.handles]
        self._site, self._rank, self._record = site, rank, record
        self._dense, self._rows = "dense" in servers.holds, "rows" in servers.holds
        rule = plan.protocol.dense if self._dense else plan.protocol.sparse
        self._rule, self._blocks, self.ahead = rule, rule.blocks, rule.ahead
        self._store, self._partition = plan.store, Partition(size, plan.placement)
        self._pooled = plan.pooled
        self._steps: dict[int, tuple[int, list[Parts]]] = {}
        """Batch -> its token, and where its ids, or its sums, are."""

    async def pull(self, batch: Batch) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
        found = await self.ask(batch)
        return found.dense, found.rows

    async def ask(self, batch: Batch) -> Pulled | None:
        """`pull`, with the step's token and how long it waited for its turn; None: the worker is taken for dead."""
        start = self._site.now()
        parts = self._parts(batch)
        asked = [self._asked(batch, share) for share in parts]
        pulled = await self._fetch(batch, asked)
        if pulled is None:
            return None
        self._steps[batch.index] = pulled[0].token, parts  # tokens come from shard 0 alone
        waited = self._note(batch, start, asked, pulled)
        dense = joined([part.dense for part in pulled]) if self._dense else None
        for share, messages in zip(parts, asked, strict=True):
            share.update({table: messages[table].bags for table in self._pooled if table in share})
        rows = {table: self._block(table, batch, pulled, parts) for table in parts[0]}
        return Pulled(pulled[0].token, waited, dense, rows)

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        """Send the gradients; awaiting it is waiting for the servers to have taken them."""
        start = self._site.now()
        token, parts = self._steps.pop(batch.index)
        push = Push(self._rank, token, batch.index)
        gradients = [self._share(push, batch, result, *each) for each in enumerate(parts)]
        self._count("push dense", [gradient.dense for gradient in gradients])
        self._count("push rows", [gradient.rows for gradient in gradients])
        calls = [handle.push(gradient) for handle, gradient in zip(self._handles, gradients, strict=True)]
        await (calls[0] if len(calls) == 1 else asyncio.gather(*calls))
        self._record.span("push", start, self._site.now(), batch.index)

    async def tell(self, change: str) -> None:
        """What becomes of the worker: it leaves, or only pauses."""
        if self._blocks or change != "pauses":  # else nobody would wait for it
            await asyncio.gather(*(handle.tell(self._rank, change) for handle in self._handles))

    async def _fetch(self, batch: Batch, asked: Sequence[object], *whole: bool) -> list[Pulled] | None:
        """Each server's answer; None: the worker is taken for dead."""
        calls = [
            handle.pull(self._rank, batch.index, ids, *whole) for handle, ids in zip(self._handles, asked, strict=True)
        ]
        pulled = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        return None if None in pulled else pulled

    def _note(self, batch: Batch, start: float, asked: Sequence[object], pulled: Sequence[Pulled]) -> float:
        """What came, since when; how long it waited for its turn."""
        waited, end = max(part.waited for part in pulled), self._site.now()
        self._record.span("wait", start, start + waited, batch.index)
        self._record.span("pull", start + waited, end, batch.index)
        self._count("pull ids", asked)
        self._count("pull dense", [part.dense for part in pulled])
        self._count("pull rows", [part.rows for part in pulled])
        return waited

    def _parts(self, batch: Batch) -> list[Parts]:
        """Each server's share of a batch's rows."""
        split = {table: self._partition.split(table, ids) for table, ids in batch.ids.items()} if self._rows else {}
        return [{table: part[shard] for table, part in split.items()} for shard in range(len(self._handles))]

    def _asked(self, batch: Batch, share: Parts) -> dict[str, object]:
        """The message that asks a server for its share."""
        return {
            table: self._store.ask(batch.ids[table], batch.where.get(table), part, self._pooled.get(table, ()))
            for table, part in share.items()
        }

    def _block(self, table: str, batch: Batch, pulled: list[Pulled], parts: list[Parts]) -> np.ndarray:
        blocks = [self._store.rows.decode(part.rows[table]) for part in pulled]
        if table in self._pooled and len(blocks) > 1:  # servers may each have a part of a sum
            whole = np.zeros((len(batch.where[table]) * len(self._pooled[table]), blocks[0].shape[1]), np.float32)
            for part, block in zip(parts, blocks, strict=True):
                whole[part[table]] += block
            return whole
        return joined(blocks, [part[table] for part in parts])

    def _share(self, push: Push, batch: Batch, result: StepResult | None, shard: int, parts: Parts) -> Gradient:
        """What one server gets of a step's gradients."""
        if result is None:
            return Gradient(push, batch.size, None, {}, void="dropped")
        dense = result.dense.cpu().numpy()[self._partition.slice(shard)] if self._dense else None
        rows = {
            table: (
                None if table in self._pooled else batch.ids[table][part],
                self._store.gradients.encode(taken(result.rows[table], part)),
            )
            for table, part in parts.items()
        }
        return Gradient(push, batch.size, dense, rows)

    def _count(self, kind: str, messages: list) -> None:
        self._record.bytes[kind] += nbytes(messages)
