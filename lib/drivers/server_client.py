"""A worker's clients of parameter servers, and when it pulls: as a step begins, or some batches before to hide the transfers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lib.cluster.base import Site, nbytes
from lib.cluster.spec import Work
from lib.drivers.parameter_server import Servers
from lib.drivers.plan import Plan
from lib.drivers.record import PartLog
from lib.drivers.shard import Gradient, PullReply
from lib.store.rows import concat, dense_slice, select
from lib.store.spec import RowStore
from lib.tasks.flat_model import Batch, StepResult

Share = dict[str, np.ndarray | slice]
"""Table -> positions of a batch's ids, or of its sums, that are on one server."""
Pull = Callable[[], Awaitable[PullReply]]
"""Gives the parameters of a step; the request may have been sent before."""


class ServerClient:
    """It pulls parameters and pushes gradients, and counts what travels."""

    batch: Callable[[int], Awaitable[Batch]] | None = None
    """Makes a worker's batches, where the worker does not."""

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: PartLog):
        self._handles = [handle.bind(site) for handle in servers.handles]
        self._site, self._rank, self._record = site, rank, record
        self._dense, self._rows = "dense" in servers.holds, "rows" in servers.holds
        self._rule = plan.protocol.dense if self._dense else plan.protocol.sparse
        self.pull_ahead = self._rule.pull_ahead
        self._store, self._placement, self._pooled, self._size = plan.store, plan.placement, plan.bags_of_servers, size
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
            rows[table] = _added(blocks, places, sums) if sums and len(blocks) > 1 else concat(blocks, places)
        return PullReply(replies[0].token, waited, concat(slices) if self._dense else None, rows)

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        """Send the gradients, or that the batch is skipped; return when the servers have taken them."""
        start, record = self._site.now(), self._record
        token, shares = self._steps.pop(batch.index)
        calls = []
        for shard, share in enumerate(shares):
            gradient = self._gradient(token, batch, result, shard, share)
            record.bytes["push dense"] += 0 if gradient.dense is None else gradient.dense.nbytes
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
            for share, part in zip(shares, self._placement.split(table, ids), strict=False):
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
            record.bytes["pull dense"] += 0 if reply.dense is None else reply.dense.nbytes
            record.bytes["pull rows"] += nbytes(reply.rows)
        record.span("wait", start, began, batch.index)
        record.span("pull", began, self._site.now(), batch.index)
        return replies

    def _gradient(self, token: int, batch: Batch, result: StepResult | None, shard: int, share: Share) -> Gradient:
        """One server's part of a step's gradients."""
        if result is None:
            return Gradient(self._rank, token, batch.index, batch.size, void="dropped")
        part = dense_slice(self._size, len(self._handles), shard)
        dense = self._site.message(result.dense)[part] if self._dense else None
        rows = {}
        for table, part in share.items():
            ids = None if table in self._pooled else batch.ids[table][part]
            rows[table] = ids, self._store.gradients.encode(select(result.rows[table], part))
        return Gradient(self._rank, token, batch.index, batch.size, dense, rows)


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
            self._record.ledger["unanswered"] += 1
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
        self._vector = self._plan.dense_store(self._plan.start(self._site), self._site.device) if self._dense else None
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
        self._record.ledger["unanswered"] -= 1
        await super().push(batch, result)


async def with_pulls(
    batches: AsyncIterator[Batch], clients: Sequence[ServerClient], tasks: asyncio.TaskGroup
) -> AsyncIterator[tuple[Batch, list[Pull]]]:
    """Yield a worker's batches, each with a pull from each client; those of rules that pull ahead are under way.

    Guaranteed: at most `1 + pull_ahead` of a worker's batches are pulled from these servers and not pushed, if the worker sends
    its pushes before it asks for its next batch; nothing is under way after the last batch.
    """
    if not (most := max((client.pull_ahead for client in clients), default=0)):
        async for batch in batches:
            yield batch, [partial(client.pull, batch) for client in clients]
        return
    places = [asyncio.Semaphore(1 + ahead) for ahead in (most, *(client.pull_ahead for client in clients))]
    ready = asyncio.Queue()

    async def pull(client: ServerClient, place: asyncio.Semaphore, batch: Batch) -> PullReply:
        await place.acquire()
        return await client.pull(batch)

    async def fill() -> None:
        while await places[0].acquire() and (batch := await anext(batches, None)) is not None:
            pulls = []
            for client, place in zip(clients, places[1:], strict=True):
                if client.pull_ahead:
                    task = tasks.create_task(pull(client, place, batch), name=f"pull for batch {batch.index}")
                pulls.append((lambda task=task: task) if client.pull_ahead else partial(client.pull, batch))
            ready.put_nowait((batch, pulls))
        ready.put_nowait(None)

    tasks.create_task(fill(), name="pulling ahead")
    while (pulled := await ready.get()) is not None:
        yield pulled
        for place in places:
            place.release()


def _added(blocks: list[np.ndarray], places: list[np.ndarray], size: int) -> np.ndarray:
    """Sums of which each server sent a part."""
    whole = np.zeros((size, blocks[0].shape[1]), np.float32)
    for place, block in zip(places, blocks, strict=True):
        whole[place] += block
    return whole
