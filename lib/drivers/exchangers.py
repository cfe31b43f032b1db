"""How a replica's message is exchanged for the other side of a mix: one exchanger for each value of `ReplicaRule.exchange`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Meeting, Site
from lib.cluster.spec import Work
from lib.drivers.plan import Plan
from lib.drivers.record import PartLog
from lib.drivers.replicas import Replica, parts
from lib.drivers.trainer import Overlap
from lib.errors import BadOption, MemberLost, NodeLost
from lib.protocols.mixing import Centre, Exchange, Gradients, Mean, Mix, Neighbours, Peer
from lib.protocols.replica_rule import mixes_now, neighbours
from lib.store.checkpointed import Checkpointed
from lib.store.phantom import concat
from lib.store.rows import union


@dataclass(frozen=True, slots=True)
class Context:
    """The worker that mixes, and the parts that it can reach."""

    site: Site
    plan: Plan
    rank: int
    replica: Replica
    record: PartLog
    rendezvous: Handle
    sync_servers: tuple[Handle, ...]
    buckets: list[slice]
    """Of the vector, each of which is a collective."""


class Exchanger(Checkpointed, ABC):
    """One worker's side of an exchange."""

    in_checkpoint = ("round",)

    def __init__(self, context: Context):
        self._context, self._rule, self._rank = context, context.plan.protocol.dense, context.rank
        self._site, self._replica, self._record = context.site, context.replica, context.record
        self._exchange = self._rule.exchange
        self._workers: dict[int, Handle] = {}
        """The other workers, where they call each other."""
        self.round = 0
        """The next round of mixing that this worker begins."""

    async def start(self, until: int, joins: bool) -> None:
        """Begin the stretch of training before batch `until`; `joins`: the others have begun it before."""

    def stop(self, until: int) -> None:
        """End that stretch: the worker mixes no more in it."""

    def ask_ahead(self) -> asyncio.Task | None:
        """Ask for a group as a step begins, where that is possible, so that the answer travels while the worker computes."""
        return None

    @abstractmethod
    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        """Mix once; when that began, after all waiting for others. None: no mix took place."""

    def know(self, rank: int, worker: Handle) -> None:
        """Note where another worker is; one that was lost may be elsewhere now."""
        self._workers[rank] = worker.bind(self._site)

    def forget(self, rank: int) -> None:
        """Drop a lost worker's handle: a run that goes on from a checkpoint has none of a worker that was dead there."""
        self._workers.pop(rank, None)

    async def call(self, rank: int, method: str, *args) -> Any:
        """Another worker's answer; None where it is dead."""
        if rank not in self._workers:
            return None
        try:
            return await getattr(self._workers[rank], method)(*args)
        except NodeLost:
            return None

    def _message(self, round: int) -> np.ndarray:
        sent = self._replica.message(round)
        self._record.bytes["mix dense"] += sent.nbytes
        return sent


class InGroups(Exchanger):
    """Groups are formed by a rendezvous and mix by collectives."""

    def ask_ahead(self) -> asyncio.Task | None:
        self.round += 1
        return self._ask(self.round - 1)

    def _ask(self, round: int) -> asyncio.Task:
        moved = self._replica.moved()
        distance = () if moved is None else (moved,)
        asked = asyncio.ensure_future(
            self._context.rendezvous.meet(self._rank, round, self._site.generation, *distance)
        )
        # The step that asked may have ended when the answer comes, and so may the rendezvous.
        asked.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return asked

    async def meet(self, label: int, asked: asyncio.Task | None) -> tuple[float, Meeting | None]:
        """The group, and when it was there."""
        start = self._site.now()
        met = await (asked or InGroups.ask_ahead(self))
        now = self._site.now()
        self._record.span("wait", start, now, label)
        return now, met

    def average(self, met: Meeting, mine: np.ndarray) -> Awaitable[np.ndarray]:
        """The members' mean."""
        return self._site.mean(met, mine) if len(self._context.buckets) == 1 else self._average_buckets(met, mine)

    async def _average_buckets(self, met: Meeting, mine: np.ndarray) -> np.ndarray:
        """Bucket after bucket; behind the buckets are running statistics, if they are sent."""
        buckets = self._context.buckets
        buckets = [*buckets, slice(buckets[0].stop, mine.size)] if mine.size > buckets[0].stop else buckets
        keys = (replace(met, key=f"{met.key}, bucket {number}") for number in range(len(buckets)))
        means = [await self._site.mean(key, mine[part]) for key, part in zip(keys, buckets, strict=True)]
        return concat(means, buckets)

    def _without_lost(self, met: Meeting) -> asyncio.Task:
        """Ask for the same round's group again, after a member died: it has those that are left."""
        self._record.extra["mixes repeated"] += 1
        return self._ask(met.round)


class Averaging(InGroups):
    """Every member gets the mean of what they all send, and of the rows that any of them holds."""

    def ask_ahead(self) -> asyncio.Task | None:
        return super().ask_ahead() if self._exchange.ahead else None

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        start, met = await self.meet(label, asked)
        while met is not None:
            self.round = met.round + 1
            try:
                sent = self._message(met.round)
                theirs = await self.average(met, sent)
                await self._replica.merge(Mix(met.round, met.members, sent, theirs))
                for table in self._replica.tables.values() if self._rule.mixes_rows else ():
                    await self._mix_rows(met, table)
                return start
            except MemberLost:
                met = await self._without_lost(met)
        return None

    async def _mix_rows(self, met: Meeting, table: Any) -> None:
        """A row that a member never met has its first value there."""
        ids = union(await self._site.gather(met, table.ids()))
        mine = table.peek(ids)
        self._record.bytes["mix rows"] += mine.nbytes
        table.assign(ids, (await self._site.mean(met, mine.reshape(-1))).reshape(mine.shape))


class AveragingGradients(InGroups):
    """Every member gets the mean gradient; a mix belongs to a step."""

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        raise NotImplementedError

    async def mean(self, label: int, asked: asyncio.Task, mine: np.ndarray, overlap: Overlap | None):
        """When the group was there, and the mean; `mine` where there is no group."""
        start, met = await self.meet(label, asked)
        first, running = met, self._replica.running()
        self._record.bytes["mix gradients"] += mine.nbytes + running.nbytes
        while met is not None:
            self.round = met.round + 1
            try:
                if overlap is None:
                    mean = await self.average(met, mine)
                else:  # in the same buckets: for a member that has joined again this group is the first of its step
                    mean = await (overlap if met is first else overlap.again(met, mine)).mean()
                if running.size:
                    self._replica.settle(await self._site.mean(replace(met, key=f"{met.key}, running"), running))
                return start, mean
            except MemberLost:
                met = await self._without_lost(met)
        return start, mine


class WithNeighbours(Exchanger):
    """A worker fetches its neighbours' messages of its round.

    Guaranteed: no worker waits for ever. The worker of the lowest round gets an answer from all others: a message, or None of
    one that is dead, has stopped, or joined at a later round.
    """

    in_checkpoint = ("round", "_paused")

    def __init__(self, context: Context):
        super().__init__(context)
        self._letters: dict[int, asyncio.Future] = {}
        """Round -> this worker's message; None where it will have none."""
        self._paused = 0
        """Its round at the last pause."""
        self._until = self._stopped = 0
        """The batches before which this stretch ends and the last one ended."""

    async def start(self, until: int, joins: bool) -> None:
        """Agree on a round: after a pause all go on with one, and a worker that joins takes one that no other has begun."""
        self._until = until
        rounds = await asyncio.gather(*(self.call(rank, "mix_round", joins) for rank in sorted(self._workers)))
        self.round = max([self.round, *(round for round in rounds if round is not None)])
        self._answer_none(round for round in self._letters if round < self.round)
        self._letters = {round: letter for round, letter in self._letters.items() if not letter.done()}

    def stop(self, until: int) -> None:
        self._stopped, self._paused = until, self.round
        self._answer_none(self._letters)

    def current_round(self, joins: bool) -> int:
        """The round for a worker that starts a stretch together with this one, or joins it."""
        return self.round if joins else self._paused

    async def letter(self, round: int, until: int) -> np.ndarray | None:
        """This worker's message of a round, once it begins that round; None: it never will before batch `until`."""
        if round not in self._letters and (round < self.round or until <= self._stopped):
            return None
        return await asyncio.shield(self._letter(round))  # several neighbours wait for it, of which one may die

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        round, self.round = self.round, self.round + 1
        row = neighbours(self._rule, round, self._rank, self._context.plan.workers)
        others = sorted(row.keys() - {self._rank})
        sent, before = self._replica.message(round), self._site.now()
        self._letter(round).set_result(sent)
        self._letters = {each: letter for each, letter in self._letters.items() if each >= round - 1}
        theirs = await asyncio.gather(*(self.call(rank, "letter", round, self._until) for rank in others))
        start = self._site.now()
        self._record.span("wait", before, start, label)
        messages = {rank: each for rank, each in zip(others, theirs, strict=True) if each is not None}
        weighted, left = [], 1.0
        for rank, message in messages.items():
            self._record.bytes["mix dense"] += message.nbytes
            weighted.append((row[rank], message))
            left -= row[rank]
        work = Work(bytes=4 * sent.nbytes * len(weighted))
        total = await self._site.compute(work, _sum, [(left, sent), *weighted])
        await self._replica.merge(Mix(round, tuple(sorted([self._rank, *messages])), sent, total))
        return start

    def _letter(self, round: int) -> asyncio.Future:
        return self._letters.setdefault(round, asyncio.get_running_loop().create_future())

    def _answer_none(self, rounds: Iterable[int]) -> None:
        for round in rounds:
            if not self._letters[round].done():
                self._letters[round].set_result(None)


class WithPartner(Exchanger):
    """A worker meets one other replica after another."""

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        round, workers = self.round, self._context.plan.workers
        self.round += 1
        partner = self._rule.partner(round, self._rank, workers) if workers > 1 else None
        if partner is None:
            return None
        if partner == self._rank or partner not in range(workers):
            raise BadOption(
                f"{self._rule.name}: partner(round={round}, rank={self._rank}, workers={workers}) gave {partner}"
            )
        if not mixes_now(self._rule, {self._rank: self._replica.moved()}):
            return None
        start, sent = self._site.now(), self._message(round)
        answer = await self.call(partner, "meet", sent)
        if answer is None:
            self._record.extra["mixes missed"] += 1
            return None
        self._record.bytes["mix answers"] += answer.nbytes
        await self._replica.merge(Mix(round, (), sent, answer))
        return start


class WithCentre(Exchanger):
    """A worker meets the sync servers, all at once."""

    def __init__(self, context: Context):
        super().__init__(context)
        self._servers = [server.bind(context.site) for server in context.sync_servers]

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        start, round = self._site.now(), self.round
        if not mixes_now(self._rule, {self._rank: self._replica.moved()}):
            return None
        self.round += 1
        sent = self._message(round)
        slices = parts(sent.size, len(self._servers))
        samples = self._replica.samples
        calls = [
            server.exchange(self._rank, samples, sent[part]) for server, part in zip(self._servers, slices, strict=True)
        ]
        theirs = await calls[0] if len(calls) == 1 else np.concatenate(await asyncio.gather(*calls))
        self._record.bytes["mix answers"] += theirs.nbytes
        await self._replica.merge(Mix(round, (), sent, theirs))
        return start


EXCHANGERS: dict[type[Exchange], type[Exchanger]] = {
    Gradients: AveragingGradients,
    Mean: Averaging,
    Neighbours: WithNeighbours,
    Peer: WithPartner,
    Centre: WithCentre,
}


def _sum(weighted: list[tuple[float, np.ndarray]]) -> np.ndarray:
    total = np.zeros_like(weighted[0][1])
    for weight, array in weighted:
        total += array.dtype.type(weight) * array
    return total
