"""A worker of server rules, and its clients of parameter servers, which pull as a step begins or, to hide transfers, earlier."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Site, nbytes
from lib.cluster.spec import Work
from lib.drivers.parameter_server import Servers
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, PartLog
from lib.drivers.shard import Gradient, PullReply
from lib.drivers.trainer import BatchSource, DataService, Trainer
from lib.errors import NodeLost
from lib.store.checkpoint import Part
from lib.store.rows import concat, dense_slice, select
from lib.store.spec import RowStore
from lib.tasks.flat_model import Batch, StepResult

Share = dict[str, np.ndarray | slice]
"""Table -> positions of a batch's ids, or of its sums, that are on one server."""

MOST_EMBEDDING_WORKERS = 256
"""A byte of the sample ID says which one."""


def first_sample(rank: int, generation: int) -> int:
    """The first sample ID of an embedding worker in that generation; each one after it is one more."""
    return rank << 56 | (generation & 0xFFFF) << 40


def embedding_worker_of(sample: int) -> int:
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


class ServerClient:
    """A worker's pulls of parameters and pushes of gradients, with a count of what travels."""

    batch: Callable[[int], Awaitable[Batch]] | None = None
    """Makes a worker's batches, where the worker does not."""

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int, size: int, record: PartLog):
        self._handles = [handle.bind(site) for handle in servers.handles]
        self._site, self._rank, self._record = site, rank, record
        self._dense, self._rows = "dense" in servers.holds, "rows" in servers.holds
        self._rule = plan.protocol.dense if self._dense else plan.protocol.sparse
        self.pull_ahead = self._rule.pull_ahead
        self._store, self._placement, self._pooled = plan.store, plan.placement, plan.server_bag_sizes
        self._slices = [dense_slice(size, len(self._handles), shard) for shard in range(len(self._handles))]
        self._steps: dict[int, tuple[int, list[Share]]] = {}
        """Batch -> its token, and where its ids, or its sums, are."""
        self.pulls_ahead: dict[int, asyncio.Task] = {}
        """Batch -> its pull that is under way, where the rule pulls ahead."""

    def take_pull(self, batch: Batch) -> Awaitable[PullReply]:
        """The pull that is under way for a batch, else a new one."""
        return self.pulls_ahead.pop(batch.index, None) or self.pull(batch)

    async def pull(self, batch: Batch) -> PullReply | None:
        """The batch's parameters, once the servers' rule lets the worker start; None if the worker is taken for dead."""
        shares = self._shares(batch)
        replies = await self._pull_from_servers(batch, shares)
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
            partial = sums and len(blocks) > 1
            rows[table] = _add_partial_sums(blocks, places, sums) if partial else concat(blocks, places)
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
        record.add_span("push", start, self._site.now(), batch.index)

    async def report_change(self, change: str) -> None:
        """Tell the servers that the worker leaves, or pauses, where that matters to the rule."""
        if self._rule.blocks or change != "pauses":
            await asyncio.gather(*(handle.note_change(self._rank, change) for handle in self._handles))

    def _shares(self, batch: Batch) -> list[Share]:
        """Each server's share of a batch's rows."""
        shares: list[Share] = [{} for _ in self._handles]
        for table, ids in batch.ids.items() if self._rows else ():
            for share, part in zip(shares, self._placement.split(table, ids), strict=False):
                share[table] = part
        return shares

    async def _pull_from_servers(self, batch: Batch, shares: list[Share], *with_dense: bool) -> list[PullReply] | None:
        """Each server's reply; in `shares`, positions of ids give way to those of sums where servers sum."""
        start, record = self._site.now(), self._record
        wanted, calls, replies = [], [], []
        alone = len(self._handles) == 1 or self._rule.first_come
        for handle, share in zip(self._handles, shares, strict=True):
            messages = {}
            for table, part in share.items():
                pooling = self._pooled.get(table, ())
                messages[table] = self._store.encode_request(batch.ids[table], batch.where.get(table), part, pooling)
                if pooling:
                    share[table] = messages[table].bags
            wanted.append(messages)
            call = handle.pull(self._rank, batch.index, messages, *with_dense)
            if alone and not replies:
                replies.append(await call)
            else:
                calls.append(call)
        replies += await asyncio.gather(*calls) if calls else []
        if None in replies:
            return None
        began = start
        record.bytes["pull ids"] += nbytes(wanted)
        for reply in replies:
            began = max(began, start + reply.waited)
            record.bytes["pull dense"] += 0 if reply.dense is None else reply.dense.nbytes
            record.bytes["pull rows"] += nbytes(reply.rows)
        record.add_span("wait", start, began, batch.index)
        record.add_span("pull", began, self._site.now(), batch.index)
        return replies

    def _gradient(self, token: int, batch: Batch, result: StepResult | None, shard: int, share: Share) -> Gradient:
        """One server's part of a step's gradients."""
        if result is None:
            return Gradient(self._rank, token, batch.index, batch.size, void="dropped")
        dense = self._site.to_message(result.dense)[self._slices[shard]] if self._dense else None
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
            missing = [{name: self._missing_places(name, batch, part) for name, part in one.items()} for one in shares]
            start = asyncio.ensure_future(self._pull_from_servers(batch, missing, expired))
            self._starts[batch.index] = start, shares
            self._record.ledger["unanswered"] += 1
            if expired or any(places.size for share in missing for places in share.values()):
                self._cache_replies(batch, missing, await start, expired)
            self._steps_left -= 1
            dense = self._vector.pull() if self._dense else None
            rows = {name: table.pull(batch.ids[name]) for name, table in self._tables.items()}
            return PullReply(0, 0.0, dense, rows)

    async def push(self, batch: Batch, result: StepResult | None) -> None:
        async with self._turn:
            if result is not None:
                numbers = result.dense.numel() + sum(gradient.size for gradient in result.rows.values())
                await self._site.compute(Work(bytes=12 * numbers), self._update, batch, result)
            sent = asyncio.ensure_future(self._push_after_start(batch, result))
            self._sending.add(sent)
            sent.add_done_callback(self._sending.discard)
        await sent

    async def report_change(self, change: str) -> None:
        self._clear()
        await super().report_change(change)

    def _clear(self) -> None:
        """Begin with an empty copy, and with optimisers that have not stepped."""
        plan, site = self._plan, self._site
        self._vector = plan.dense_store(plan.initial_parameters(site), site.device) if self._dense else None
        device = self._plan.row_device(self._site.device)
        self._tables = replace(self._plan, store=RowStore()).tables(device=device) if self._rows else {}
        self._steps_left = 0
        """Steps for which the copy may still be used."""
        self._cached: dict[str, np.ndarray] = {}
        """Table -> ids whose rows are in the copy."""

    def _missing_places(self, table: str, batch: Batch, part: np.ndarray | slice) -> np.ndarray:
        """Positions of one server's ids whose rows are not in the copy."""
        places = np.arange(batch.ids[table].size)[part]
        return places[~np.isin(batch.ids[table][places], self._cached[table])]

    def _cache_replies(self, batch: Batch, missing: list[Share], replies: list[PullReply], with_dense: bool) -> None:
        """Take the servers' replies into the copy."""
        if with_dense:
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
        rate = self._plan.lr_factor_after(batch.index * self._plan.workload.batch_size)
        if self._dense:
            self._vector.apply(result.dense, rate)
        for table, gradient in result.rows.items() if self._rows else ():
            self._tables[table].push(batch.ids[table], gradient, batch.index + 1, distinct=True, rate=rate)

    async def _push_after_start(self, batch: Batch, result: StepResult | None) -> None:
        start, shares = self._starts.pop(batch.index)
        self._steps[batch.index] = (await start)[0].token, shares
        self._record.ledger["unanswered"] -= 1
        await super().push(batch, result)


class EmbeddingClient(ServerClient):
    """Make a worker's batches; pull and push their rows at embedding workers instead of servers.

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

    def set_embedding_workers(self, embedding: Mapping[int, Handle], patience: float | None) -> None:
        """Take note of the embedding workers that live; `patience` are the seconds of silence after which one counts as dead,
        None if no death is planned, so that any death takes the run back."""
        self._embedding = {rank: handle.bind(self._site) for rank, handle in embedding.items()}
        self._patience = patience
        self._changed.set()

    async def batch(self, index: int) -> Batch:
        """The batch, whose ids an embedding worker holds; in their place stand the positions of the rows that will come."""
        held: DispatchedBatch | None = None
        while held is None:
            rank = await self._choose_embedding_worker(index)
            held = await self._call_embedding_or_none(rank, "dispatch_without_ids", self._rank, index)
        self._samples[index] = held.sample
        self._record.bytes["dispatched"] += nbytes(held)
        return replace(held.batch, ids={table: np.arange(count) for table, count in held.rows.items()})

    async def pull(self, batch: Batch) -> PullReply:
        if self._sending:  # they take other ways, and might come later
            await asyncio.wait(self._sending)
        start = self._site.now()
        while True:
            sample = self._samples[batch.index]
            reply: PullReply | None = await self._call_embedding_or_none(embedding_worker_of(sample), "pull", sample)
            if reply is not None:
                break
            await self.batch(batch.index)  # its holder died
        self._tokens[batch.index] = reply.token
        self._record.add_span("wait", start, start + reply.waited, batch.index)
        self._record.add_span("pull", start + reply.waited, self._site.now(), batch.index)
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
            if not await self._call_embedding_or_none(embedding_worker_of(sample), "push", sample, sent):
                abandoned = Gradient(self._rank, token, batch.index, batch.size, void="abandoned")
                await asyncio.gather(*(server.push(abandoned) for server in self._handles))
        finally:
            self._sending.remove(done)
            done.set_result(None)
        self._record.add_span("push", start, self._site.now(), batch.index)

    async def _choose_embedding_worker(self, index: int) -> int:
        """The rank of the embedding worker that is to hold a batch: each in turn, without the dead ones. Where the rule blocks,
        one holds all batches of a worker, so that they come to its gate in their order."""
        first = self._rank if self._rule.blocks else index
        while not self._embedding:
            self._changed.clear()
            await self._changed.wait()
        return min(self._embedding, key=lambda rank: (rank - first) % self._count)

    async def _call_embedding_or_none(self, rank: int, method: str, *args: Any) -> Any:
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


class ServerWorker(Part):
    """A worker without parameters of its own."""

    in_checkpoint = ("_input", "record")

    def __init__(self, site: Site, plan: Plan, rank: int, servers: tuple[Servers, ...], data_service: DataService):
        self.record = PartLog(site.node, [] if plan.trace else None)
        self._trainer = Trainer(site, plan, rank, self.record)
        size = self._trainer.model.size
        self._clients = [make_client(site, plan, each, rank, size, self.record) for each in servers]
        self._plan = plan
        self._input = BatchSource(site, plan, rank, data_service, self._trainer, self._clients[-1].batch)

    async def run(self, until_batch: int) -> None:
        """Train on all batches before `until_batch`, then leave, or pause if it is not the end."""
        async with asyncio.TaskGroup() as sending:
            batches = self._input.batches(until_batch, sending)
            async for batch in with_pulls(batches, self._clients, sending):
                pulls = [client.take_pull(batch) for client in self._clients]
                replies = [await pulls[0]] if len(pulls) == 1 else await asyncio.gather(*pulls)
                dense, rows = None, {}
                for reply in replies:
                    dense = reply.dense if reply.dense is not None else dense
                    rows |= reply.rows
                result = await self._trainer.step(batch, dense, rows)
                for client in self._clients:
                    # The worker goes on at once; the rule decides whether its next pull waits for this push.
                    sending.create_task(client.push(batch, result), name=f"push of batch {batch.index}")
                await asyncio.sleep(0)  # the pushes leave before the next pull
        for client in self._clients:
            await client.report_change("pauses" if until_batch < self._plan.end_batch else "leaves")

    async def set_peers(self, others: dict[int, Handle], embedding: dict[int, Handle], patience: float | None) -> None:
        """Take note of the embedding workers that live."""
        self._clients[-1].set_embedding_workers(embedding, patience)

    async def state_for_rejoin(self) -> None:
        """What a worker that comes back needs of this one: nothing, since the servers have all."""

    async def take_over(self, step: int, copy: None, last_taken: int) -> None:
        """Take the place of a lost worker, at a step that comes after the batch `last_taken`; its share of what the others
        trained on meanwhile is left out."""
        self._input.resume_after(step, last_taken)

    async def report(self, end: EvalPoint) -> PartLog:
        return self.record


def with_pulls(
    batches: AsyncIterator[Batch], clients: Sequence[ServerClient], tasks: asyncio.TaskGroup
) -> AsyncIterator[Batch]:
    """A worker's batches; the pulls of rules that pull ahead are under way when a batch comes.

    Guaranteed: at most `1 + pull_ahead` of a worker's batches are pulled from these servers and not pushed, if the worker sends
    its pushes before it asks for its next batch; nothing is under way after the last batch.
    """
    most = max((client.pull_ahead for client in clients), default=0)
    return _pull_ahead_batches(batches, clients, tasks, most) if most else batches


async def _pull_ahead_batches(
    batches: AsyncIterator[Batch], clients: Sequence[ServerClient], tasks: asyncio.TaskGroup, most: int
) -> AsyncIterator[Batch]:
    places = [asyncio.Semaphore(1 + ahead) for ahead in (most, *(client.pull_ahead for client in clients))]
    ready = asyncio.Queue()

    async def pull(client: ServerClient, place: asyncio.Semaphore, batch: Batch) -> PullReply:
        await place.acquire()
        return await client.pull(batch)

    async def fill() -> None:
        while await places[0].acquire() and (batch := await anext(batches, None)) is not None:
            for client, place in zip(clients, places[1:], strict=True):
                if client.pull_ahead:
                    name = f"pull for batch {batch.index}"
                    client.pulls_ahead[batch.index] = tasks.create_task(pull(client, place, batch), name=name)
            ready.put_nowait(batch)
        ready.put_nowait(None)

    tasks.create_task(fill(), name="pulling ahead")
    while (batch := await ready.get()) is not None:
        yield batch
        for place in places:
            place.release()


def _add_partial_sums(blocks: list[np.ndarray], places: list[np.ndarray], size: int) -> np.ndarray:
    """Sums of which each server sent a part."""
    whole = np.zeros((size, blocks[0].shape[1]), np.float32)
    for place, block in zip(places, blocks, strict=True):
        whole[place] += block
    return whole
