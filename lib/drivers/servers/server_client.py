"""A worker's client of parameter servers: one vector and one block a table, however many servers hold them."""

from __future__ import annotations

import asyncio

import numpy as np

from lib.cluster.base import Site, nbytes
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import PartLog
from lib.drivers.servers.messages import Gradient, PullReply
from lib.drivers.servers.parameter_server import Servers
from lib.store.blank import joined, taken
from lib.store.placement import Partition
from lib.tasks.batch import Batch
from lib.tasks.flat_model import StepResult

Share = dict[str, np.ndarray | slice]
"""Table -> positions of a batch's ids, or of its sums, that are on one server."""


class ServerClient:
    """It pulls parameters and pushes gradients, and counts what travels."""

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: PartLog):
        self._handles = [handle.bind(site) for handle in servers.handles]
        self._site, self._rank, self._record = site, rank, record
        self._dense, self._rows = "dense" in servers.holds, "rows" in servers.holds
        self._rule = plan.protocol.dense if self._dense else plan.protocol.sparse
        self.pull_ahead = self._rule.pull_ahead
        self._store, self._partition, self._pooled = plan.store, Partition(size, plan.placement), plan.pooled
        self._steps: dict[int, tuple[int, list[Share]]] = {}
        """Batch -> its token, and where its ids, or its sums, are."""

    async def pull(self, batch: Batch) -> PullReply | None:
        """The batch's parameters, once the servers' rule lets the worker start; None if the worker is taken for dead."""
        shares = self._shares(batch)
        replies = await self._ask(batch, shares)
        if replies is None:
            return None
        self._steps[batch.index] = replies[0].token, shares  # tokens come from the first server alone
        slices, waited, rows = [], 0.0, {}
        for reply in replies:
            slices.append(reply.dense)
            waited = max(waited, reply.waited)
        for table in shares[0]:
            blocks, places = [], []
            for share, reply in zip(shares, replies, strict=True):
                blocks.append(self._store.rows.decode(reply.rows[table]))
                places.append(share[table])
            sums = len(batch.where[table]) * len(self._pooled[table]) if table in self._pooled else 0
            rows[table] = _added(blocks, places, sums) if sums and len(blocks) > 1 else joined(blocks, places)
        return PullReply(replies[0].token, waited, joined(slices) if self._dense else None, rows)

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        """Send the gradients, or that the batch is skipped; return when the servers have taken them."""
        start, record = self._site.now(), self._record
        token, shares = self._steps.pop(batch.index)
        calls = []
        for shard, share in enumerate(shares):
            gradient = self._gradient(token, batch, result, shard, share)
            record.bytes["push dense"] += nbytes((gradient.dense,))
            record.bytes["push rows"] += nbytes(gradient.rows)
            calls.append(self._handles[shard].push(gradient))
        await (calls[0] if len(calls) == 1 else asyncio.gather(*calls))
        record.span("push", start, self._site.now(), batch.index)

    async def tell(self, change: str) -> None:
        """Tell the servers that the worker leaves, or pauses, where that matters to the rule."""
        if self._rule.blocks or change != "pauses":
            await asyncio.gather(*(handle.tell(self._rank, change) for handle in self._handles))

    def _shares(self, batch: Batch) -> list[Share]:
        """Each server's share of a batch's rows."""
        shares: list[Share] = [{} for _ in self._handles]
        for table, ids in batch.ids.items() if self._rows else ():
            for share, part in zip(shares, self._partition.split(table, ids), strict=False):
                share[table] = part
        return shares

    async def _ask(self, batch: Batch, shares: list[Share], *whole: bool) -> list[PullReply] | None:
        """Each server's reply; in `shares`, positions of ids give way to those of sums where servers sum."""
        start, record = self._site.now(), self._record
        wanted, calls = [], []
        for handle, share in zip(self._handles, shares, strict=True):
            messages = {}
            for table, part in share.items():
                pooling = self._pooled.get(table, ())
                messages[table] = self._store.ask(batch.ids[table], batch.where.get(table), part, pooling)
                if pooling:
                    share[table] = messages[table].bags
            wanted.append(messages)
            calls.append(handle.pull(self._rank, batch.index, messages, *whole))
        replies = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        if None in replies:
            return None
        began = start
        record.bytes["pull ids"] += nbytes(wanted)
        for reply in replies:
            began = max(began, start + reply.waited)
            record.bytes["pull dense"] += nbytes((reply.dense,))
            record.bytes["pull rows"] += nbytes(reply.rows)
        record.span("wait", start, began, batch.index)
        record.span("pull", began, self._site.now(), batch.index)
        return replies

    def _gradient(self, token: int, batch: Batch, result: StepResult | None, shard: int, share: Share) -> Gradient:
        """One server's part of a step's gradients."""
        if result is None:
            return Gradient(self._rank, token, batch.index, batch.size, void="dropped")
        dense = result.dense.cpu().numpy()[self._partition.slice(shard)] if self._dense else None
        rows = {}
        for table, part in share.items():
            ids = None if table in self._pooled else batch.ids[table][part]
            rows[table] = ids, self._store.gradients.encode(taken(result.rows[table], part))
        return Gradient(self._rank, token, batch.index, batch.size, dense, rows)


def _added(blocks: list[np.ndarray], places: list[np.ndarray], size: int) -> np.ndarray:
    """Sums of which each server sent a part."""
    whole = np.zeros((size, blocks[0].shape[1]), np.float32)
    for place, block in zip(places, blocks, strict=True):
        whole[place] += block
    return whole
