"""A worker's view of parameter servers: one vector and one block a table, however many servers hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np

from lib.cluster.base import Site
from lib.data.batch import Batch
from lib.drivers.parameter_server import Pulled, Servers
from lib.drivers.plan import Plan
from lib.drivers.record import Record
from lib.drivers.shard import Gradient
from lib.models.flat import StepResult
from lib.protocols.server_rule import Push
from lib.store.placement import Partition


class ServerClient:
    """A worker's view: it pulls one vector and one block a table, however many servers hold them."""

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: Record):
        self._handles = [handle.seen_from(site) for handle in servers.handles]
        self._site, self._rank, self._record, self.holds = site, rank, record, servers.holds
        self._store = plan.store
        self._partition = Partition(size if "dense" in servers.holds else 0, plan.placement)
        self._tokens: dict[int, int] = {}

    async def pull(self, batch: Batch) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
        start = self._site.now()
        wanted = batch.ids if "rows" in self.holds else {}
        parts = {table: self._partition.split(table, ids) for table, ids in wanted.items()}
        calls = [
            handle.pull(self._rank, batch.index, self._asked(batch, {table: parts[table][shard] for table in wanted}))
            for shard, handle in enumerate(self._handles)
        ]
        pulled = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        self._tokens[batch.index] = pulled[0].token  # tokens come from shard 0 alone
        waited, end = max(part.waited for part in pulled), self._site.now()
        self._record.span("wait", start, start + waited, batch.index)
        self._record.span("pull", start + waited, end, batch.index)
        dense, rows = self._joined(pulled, parts)
        self._record.bytes["pull dense"] += 0 if dense is None else dense.nbytes
        self._record.bytes["pull rows"] += sum(block.nbytes for part in pulled for block in part.rows.values())
        return dense, rows

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        """Send the gradients; awaiting it is waiting for the servers to have taken them."""
        start = self._site.now()
        token = self._tokens.pop(batch.index)
        calls = [
            handle.push(gradient)
            for handle, gradient in zip(self._handles, self._parts(batch, token, result), strict=True)
        ]
        await (calls[0] if len(calls) == 1 else asyncio.gather(*calls))
        self._record.span("push", start, self._site.now(), batch.index)

    async def leave(self) -> None:
        await asyncio.gather(*(handle.leave(self._rank) for handle in self._handles))

    def _asked(self, batch: Batch, mine: dict[str, np.ndarray | slice]) -> dict[str, Any]:
        """For each table the message that asks one server for the batch's ids there."""
        asked = {
            table: self._store.ask(batch.ids[table], batch.where.get(table), chosen) for table, chosen in mine.items()
        }
        self._record.bytes["pull ids"] += sum(message.nbytes for message in asked.values())
        return asked

    def _joined(self, pulled: list[Pulled], parts: dict[str, list[np.ndarray]]):
        decode = self._store.rows.decode
        if len(pulled) == 1:
            return pulled[0].dense, {table: decode(block) for table, block in pulled[0].rows.items()}
        dense = np.concatenate([part.dense for part in pulled]) if "dense" in self.holds else None
        rows = {}
        for table, positions in parts.items():
            blocks = [decode(part.rows[table]) for part in pulled]
            rows[table] = np.empty((sum(map(len, blocks)), blocks[0].shape[1]), np.float32)
            for where, block in zip(positions, blocks, strict=True):
                rows[table][where] = block
        return dense, rows

    def _parts(self, batch: Batch, token: int, result: StepResult | None) -> Iterable[Gradient]:
        push = Push(self._rank, token, batch.index)
        dense = result.dense.cpu().numpy() if result and "dense" in self.holds else None
        rows = result.rows if result and "rows" in self.holds else {}
        self._record.bytes["push dense"] += 0 if dense is None else dense.nbytes
        parts = {table: self._partition.split(table, batch.ids[table]) for table in rows}
        for shard in range(len(self._handles)):
            chosen = {table: parts[table][shard] for table in rows}
            mine = {t: (batch.ids[t][chosen[t]], self._store.gradients.encode(rows[t][chosen[t]])) for t in rows}
            self._record.bytes["push rows"] += sum(ids.nbytes + block.nbytes for ids, block in mine.values())
            share = None if dense is None else dense[self._partition.slice(shard)]
            yield Gradient(push, batch.size, share, mine, result is None)
