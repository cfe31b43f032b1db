"""A worker that trains on a copy of the parameters until the copy is too old (SSP's cache)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import PartLog
from lib.drivers.servers.messages import PullReply
from lib.drivers.servers.parameter_server import Servers
from lib.drivers.servers.server_client import ServerClient, Share
from lib.store.spec import RowStore
from lib.tasks.batch import Batch
from lib.tasks.flat_model import StepResult


class CachedClient(ServerClient):
    """A `ServerClient` that pulls only the rows that its copy lacks, and everything again when the copy is too old.

    Guaranteed: the copy has all gradients of this worker, as its own optimisers step; servers hear of each step when it begins.
    A pause ends the copy.
    """

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: PartLog):
        super().__init__(site, plan, servers, rank, size, record)
        self._plan = plan
        self._starts: dict[int, tuple[asyncio.Future, list[Share]]] = {}
        """Batch -> the request that starts its step at the servers, and where its ids are."""
        self._sending: set[asyncio.Future] = set()
        """Pushes whose own update is in the copy."""
        self._turn = asyncio.Lock()
        self._clear()

    async def pull(self, batch: Batch) -> PullReply:
        async with self._turn:
            if expired := self._steps_left == 0:
                if self._sending:  # the new copy must have all of this worker's gradients
                    await asyncio.wait(self._sending)
                self._cached = {table: np.empty(0, np.int64) for table in self._tables}
            shares = self._shares(batch)
            missing = [{table: self._missing(table, batch, part) for table, part in each.items()} for each in shares]
            start = asyncio.ensure_future(self._ask(batch, missing, expired))
            self._starts[batch.index] = start, shares
            if expired or any(places.size for share in missing for places in share.values()):
                self._keep(batch, missing, await start, expired)
            self._steps_left -= 1
            dense = self._vector.pull() if self._dense else None
            return PullReply(
                0, 0.0, dense, {table: self._tables[table].pull(batch.ids[table]) for table in self._tables}
            )

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        async with self._turn:
            if result is not None:
                numbers = result.dense.numel() + sum(gradient.size for gradient in result.rows.values())
                await self._site.compute(Work(bytes=12 * numbers), self._update, batch, result)
            sent = asyncio.ensure_future(self._send(batch, result))
            self._sending.add(sent)
            sent.add_done_callback(self._sending.discard)
        await sent

    async def tell(self, change: str) -> None:
        self._clear()
        await super().tell(change)

    def _clear(self) -> None:
        """Begin with an empty copy, and with optimisers that have not stepped."""
        self._vector = self._plan.dense_store(self._plan.start(self._site)) if self._dense else None
        self._tables = replace(self._plan, store=RowStore()).tables() if self._rows else {}
        self._steps_left = 0
        """Steps for which the copy may still be used."""
        self._cached: dict[str, np.ndarray] = {}
        """Table -> ids whose rows are in the copy."""

    def _missing(self, table: str, batch: Batch, part: np.ndarray | slice) -> np.ndarray:
        """Positions of one server's ids whose rows are not in the copy."""
        places = np.arange(batch.ids[table].size)[part]
        return places[~np.isin(batch.ids[table][places], self._cached[table])]

    def _keep(self, batch: Batch, missing: list[Share], replies: list[PullReply], whole: bool) -> None:
        """Take the servers' replies into the copy."""
        if whole:
            self._steps_left = max(1, 1 + self._rule.cache_steps - max(reply.lead for reply in replies))
            if self._dense and self._plan.gradients:
                self._vector.assign(np.concatenate([reply.dense for reply in replies]))
        for share, reply in zip(missing, replies, strict=True):
            for table, places in share.items():
                ids = batch.ids[table][places]
                self._tables[table].assign(ids, self._store.rows.decode(reply.rows[table]))
                self._cached[table] = np.concatenate([self._cached[table], ids])

    def _update(self, batch: Batch, result: StepResult) -> None:
        """The worker's own update of its copy."""
        rate = self._plan.rate_after(batch.index * self._plan.workload.batch_size)
        if self._dense:
            self._vector.apply(result.dense, rate)
        for table, gradient in result.rows.items() if self._rows else ():
            self._tables[table].push(batch.ids[table], gradient, batch.index + 1, distinct=True, rate=rate)

    async def _send(self, batch: Batch, result: StepResult | None) -> None:
        start, shares = self._starts.pop(batch.index)
        self._steps[batch.index] = (await start)[0].token, shares
        await super().push(batch, result)


def make_client(site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: PartLog) -> ServerClient:
    """The client that the servers' rule needs."""
    rule = plan.protocol.dense if "dense" in servers.holds else plan.protocol.sparse
    return (CachedClient if rule.cache_steps else ServerClient)(site, plan, servers, rank, size, record)
