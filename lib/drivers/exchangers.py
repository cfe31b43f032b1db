"""How a replica's message is exchanged for the other side of a mix: one exchanger for each value of `ReplicaRule.exchange`."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Meeting, Site
from lib.cluster.spec import Work
from lib.drivers.plan import Plan
from lib.drivers.record import PartLog
from lib.drivers.replicas import Replica
from lib.drivers.trainer import OverlappedMean
from lib.errors import BadOption, MemberLost, NodeLost
from lib.protocols.mixing import Centre, Exchange, Gradients, Mean, Mix, Neighbours, Peer
from lib.protocols.replica_rule import mix_takes_place, mixing_row
from lib.store.checkpoint import Checkpointed
from lib.store.rows import concat, dense_slice, union


@dataclass(eq=False)
class Exchanger(Checkpointed, ABC):
    """One worker's side of an exchange."""

    in_checkpoint = ("round",)

    site: Site
    plan: Plan
    rank: int
    replica: Replica
    record: PartLog
    rendezvous: Handle
    sync_servers: tuple[Handle, ...]
    buckets: list[slice]
    """Of the vector, each of which is a collective."""
    round: int = 0
    """The next round of mixing that this worker begins."""
    others: dict[int, Handle] = field(default_factory=dict)
    """The other workers, where they call each other; without those that are dead."""

    def __post_init__(self):
        self.rule = self.plan.protocol.dense
        self.exchange_kind, self.mixes_rows = self.rule.exchange, self.rule.mixes_rows

    async def start(self, until_batch: int, joins: bool) -> None:
        """Begin the stretch of training before batch `until_batch`; `joins`: the others have begun it before."""

    def stop(self, until_batch: int) -> None:
        """End that stretch: the worker mixes no more in it."""

    def request_next_group(self) -> asyncio.Task | None:
        """Ask for a group as a step begins, where that is possible, so that the answer travels while the worker computes."""
        return None

    @abstractmethod
    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        """Mix once; when that began, after all waiting for others. None: no mix took place."""

    async def call(self, rank: int, method: str, *args) -> Any:
        """Another worker's answer; None where it is dead."""
        with suppress(NodeLost):
            return await getattr(self.others[rank], method)(*args) if rank in self.others else None

    def _message(self, round: int) -> np.ndarray:
        sent = self.replica.message(round)
        self.record.bytes["mix dense"] += sent.nbytes
        return sent


class GroupExchanger(Exchanger):
    """Groups are formed by a rendezvous and mix by collectives."""

    def request_next_group(self) -> asyncio.Task | None:
        self.round += 1
        return self._request_group(self.round - 1)

    def _request_group(self, round: int) -> asyncio.Task:
        moved = self.replica.distance_since_mix()
        distance = () if moved is None else (moved,)
        asked = asyncio.ensure_future(self.rendezvous.join_group(self.rank, round, self.site.generation, *distance))
        # The step that asked may have ended when the answer comes, and so may the rendezvous.
        asked.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return asked

    async def mix_in_group(
        self, label: int | None, asked: asyncio.Task | None, mix: Callable[[Meeting], Awaitable[Any]]
    ) -> tuple[float, Any]:
        """When the group was there, and what the mix in it gives, which is made again without a member that died; None where
        there is no group. With a `label` the worker waits meanwhile."""
        before = self.site.now()
        met = await (asked or GroupExchanger.request_next_group(self))
        start = self.site.now()
        if label is not None:
            self.record.add_span("wait", before, start, label)
        while met is not None:
            self.round = met.round + 1
            try:
                return start, await mix(met)
            except MemberLost:
                self.record.extra["mixes repeated"] += 1
                met = await self._request_group(met.round)
        return start, None

    async def mix_rows(self, met: Meeting) -> None:
        """Average the rows that any member holds, in rounds of which the rule says so; a row that a member never met has its
        first value there."""
        tables = self.replica.tables.values() if self.mixes_rows and self.rule.averages_rows(met.round) else ()
        names = self.rule.averaged_state(met.round) if tables else ()
        for table in tables:
            ids = union(await self.site.gather(met, table.ids()))
            rows = table.read(ids) if names else None
            columns = np.array(table.optimizer.columns_of(names, table.dim), np.int64)
            mine = np.hstack([rows.values, rows.state[:, columns]]) if rows else table.peek(ids)
            self.record.bytes["mix rows"] += mine.nbytes
            theirs = (await self.site.mean(met, mine.reshape(-1))).reshape(mine.shape)
            if rows is None:
                table.assign(ids, theirs)
                continue
            state = rows.state.copy()
            state[:, columns] = theirs[:, table.dim :]
            table.write(replace(rows, values=theirs[:, : table.dim], state=state), newer=False)

    def average(self, met: Meeting, mine: np.ndarray) -> Awaitable[np.ndarray]:
        """The members' mean."""
        return self.site.mean(met, mine) if len(self.buckets) == 1 else self._average_buckets(met, mine)

    async def _average_buckets(self, met: Meeting, mine: np.ndarray) -> np.ndarray:
        """Bucket after bucket; behind the buckets are running statistics, if they are sent."""
        buckets = self.buckets
        buckets = [*buckets, slice(buckets[0].stop, mine.size)] if mine.size > buckets[0].stop else buckets
        keys = (replace(met, key=f"{met.key}, bucket {number}") for number in range(len(buckets)))
        means = [await self.site.mean(key, mine[part]) for key, part in zip(keys, buckets, strict=True)]
        return concat(means, buckets)


class AveragingExchanger(GroupExchanger):
    """Every member gets the mean of what they all send, and of the rows that any of them holds."""

    def request_next_group(self) -> asyncio.Task | None:
        return super().request_next_group() if self.exchange_kind.ahead else None

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        start, mixed = await self.mix_in_group(label, asked, self._mix)
        return start if mixed else None

    async def exchange(self, seen: tuple[np.ndarray, int, int]) -> tuple[float, Mix | None]:
        """When the group was there, and a mix of the replica as it was seen, which is still to be merged."""
        return await self.mix_in_group(None, None, partial(self._exchange, seen=seen))

    async def _mix(self, met: Meeting) -> bool:
        await self.replica.merge(await self._exchange(met))
        await self.mix_rows(met)
        return True

    async def _exchange(self, met: Meeting, seen: tuple[np.ndarray, int, int] | None = None) -> Mix:
        sent = self.replica.message(met.round, seen)
        self.record.bytes["mix dense"] += sent.nbytes
        return Mix(met.round, met.members, sent, await self.average(met, sent))


class GradientExchanger(GroupExchanger):
    """Every member gets the mean gradient; a mix belongs to a step."""

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        raise NotImplementedError

    async def mean_in_group(
        self, label: int, asked: asyncio.Task, mine: np.ndarray, overlap: OverlappedMean | None
    ) -> tuple[float, np.ndarray]:
        """When the group was there, and the mean; `mine` where there is no group."""
        running, repeats = self.replica.statistics_to_average(), False
        self.record.bytes["mix gradients"] += mine.nbytes + running.nbytes

        async def average(met: Meeting) -> np.ndarray:
            nonlocal repeats
            again, repeats = repeats, True
            if overlap is None:
                mean = await self.average(met, mine)
            else:  # in the same buckets: for a member that has joined again this group is the first of its step
                mean = await (overlap.mean_again(met, mine) if again else overlap.mean())
            if running.size:
                self.replica.set_mean_statistics(await self.site.mean(replace(met, key=f"{met.key}, running"), running))
            await self.mix_rows(met)
            return mean

        start, mean = await self.mix_in_group(label, asked, average)
        return start, mine if mean is None else mean


class NeighbourExchanger(Exchanger):
    """A worker fetches its neighbours' messages of its round.

    Guaranteed: no worker waits for ever. The worker of the lowest round gets an answer from all others: a message, or None of
    one that is dead, has stopped, or joined at a later round.
    """

    in_checkpoint = ("round", "_paused")

    def __post_init__(self):
        super().__post_init__()
        self._round_messages: dict[int, asyncio.Future] = {}
        """Round -> this worker's message; None where it will have none."""
        self._paused = 0
        """Its round at the last pause."""
        self._until = self._stopped = 0
        """The batches before which this stretch ends and the last one ended."""

    async def start(self, until_batch: int, joins: bool) -> None:
        """Agree on a round: after a pause all go on with one, and a worker that joins takes one that no other has begun."""
        self._until = until_batch
        rounds = await asyncio.gather(*(self.call(rank, "round_for_peer", joins) for rank in sorted(self.others)))
        self.round = max([self.round, *(round for round in rounds if round is not None)])
        self._answer_none(round for round in self._round_messages if round < self.round)
        self._round_messages = {round: message for round, message in self._round_messages.items() if not message.done()}

    def stop(self, until_batch: int) -> None:
        self._stopped, self._paused = until_batch, self.round
        self._answer_none(self._round_messages)

    def round_for_peer(self, peer_joins: bool) -> int:
        """The round for a worker that starts a stretch together with this one, or joins it."""
        return self.round if peer_joins else self._paused

    async def serve_message(self, round: int, until_batch: int) -> np.ndarray | None:
        """This worker's message of a round, once it begins that round; None: it never will before batch `until_batch`."""
        if round not in self._round_messages and (round < self.round or until_batch <= self._stopped):
            return None
        return await asyncio.shield(self._message_future(round))  # several neighbours wait for it, of which one may die

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        round, self.round = self.round, self.round + 1
        row = mixing_row(self.rule, round, self.rank, self.plan.workers)
        others = sorted(row.keys() - {self.rank})
        sent, before = self.replica.message(round), self.site.now()
        self._message_future(round).set_result(sent)
        self._round_messages = {each: message for each, message in self._round_messages.items() if each >= round - 1}
        theirs = await asyncio.gather(*(self.call(rank, "serve_message", round, self._until) for rank in others))
        start = self.site.now()
        self.record.add_span("wait", before, start, label)
        messages = {rank: each for rank, each in zip(others, theirs, strict=True) if each is not None}
        weighted, left = [], 1.0
        for rank, message in messages.items():
            self.record.bytes["mix dense"] += message.nbytes
            weighted.append((row[rank], message))
            left -= row[rank]
        work = Work(bytes=4 * sent.nbytes * len(weighted))
        total = await self.site.compute(work, _sum, [(left, sent), *weighted])
        await self.replica.merge(Mix(round, tuple(sorted([self.rank, *messages])), sent, total))
        return start

    def _message_future(self, round: int) -> asyncio.Future:
        return self._round_messages.setdefault(round, asyncio.get_running_loop().create_future())

    def _answer_none(self, rounds: Iterable[int]) -> None:
        for round in rounds:
            if not self._round_messages[round].done():
                self._round_messages[round].set_result(None)


class PartnerExchanger(Exchanger):
    """A worker meets one other replica after another."""

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        round, workers = self.round, self.plan.workers
        self.round += 1
        partner = self.rule.partner(round, self.rank, workers) if workers > 1 else None
        if partner is None:
            return None
        if partner == self.rank or partner not in range(workers):
            asked = f"partner(round={round}, rank={self.rank}, workers={workers})"
            raise BadOption(f"{self.rule.name}: {asked} gave {partner}")
        if not mix_takes_place(self.rule, {self.rank: self.replica.distance_since_mix()}):
            return None
        start, sent = self.site.now(), self._message(round)
        answer = await self.call(partner, "answer_peer", sent)
        if answer is None:
            self.record.extra["mixes missed"] += 1
            return None
        self.record.bytes["mix answers"] += answer.nbytes
        await self.replica.merge(Mix(round, (), sent, answer))
        return start


class CentreExchanger(Exchanger):
    """A worker meets the sync servers, all at once."""

    def __post_init__(self):
        super().__post_init__()
        self._servers = [server.bind(self.site) for server in self.sync_servers]

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        start, round = self.site.now(), self.round
        if not mix_takes_place(self.rule, {self.rank: self.replica.distance_since_mix()}):
            return None
        self.round += 1
        sent = self._message(round)
        calls = []
        for number, server in enumerate(self._servers):
            part = dense_slice(sent.size, len(self._servers), number)
            calls.append(server.update_centre(self.rank, self.replica.samples, sent[part]))
        theirs = await calls[0] if len(calls) == 1 else np.concatenate(await asyncio.gather(*calls))
        self.record.bytes["mix answers"] += theirs.nbytes
        await self.replica.merge(Mix(round, (), sent, theirs))
        return start


EXCHANGERS: dict[type[Exchange], type[Exchanger]] = {
    Gradients: GradientExchanger,
    Mean: AveragingExchanger,
    Neighbours: NeighbourExchanger,
    Peer: PartnerExchanger,
    Centre: CentreExchanger,
}


def _sum(weighted: list[tuple[float, np.ndarray]]) -> np.ndarray:
    total = np.zeros_like(weighted[0][1])
    for weight, array in weighted:
        total += array.dtype.type(weight) * array
    return total
