"""How a replica's message is exchanged for what comes of it: one way for each value of `ReplicaRule.exchange`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lib.cluster.base import Handle, Meeting, Site
from lib.cluster.spec import Work
from lib.drivers.membership.rendezvous import Neighbourhoods, Rendezvous
from lib.drivers.replicas.replica_state import Replica
from lib.drivers.replicas.sync_server import parts
from lib.drivers.run.overlap import Overlap
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import PartLog
from lib.errors import BadOption, MemberLost, NodeLost
from lib.protocols.mixing import Centre, Exchange, Gradients, Mean, Mix, Neighbours, Peer
from lib.protocols.replica_rule import goes, neighbours
from lib.store.checkpointed import Checkpointed
from lib.store.phantom import concat
from lib.store.rows import union


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The worker that mixes, and whom it can reach."""

    site: Site
    plan: Plan
    rank: int
    replica: Replica
    record: PartLog
    rendezvous: Handle
    sync_servers: tuple[Handle, ...]
    buckets: list[slice]
    """Of the vector, each of which is a collective."""


class Way(Checkpointed, ABC):
    """One worker's side of an exchange."""

    in_checkpoint = ("round",)
    rendezvous: ClassVar[type[Rendezvous]] = Rendezvous
    """What brings its workers together."""

    def __init__(self, here: Here):
        self._here, self._rule = here, here.plan.protocol.dense
        self._site, self._replica, self._record = here.site, here.replica, here.record
        self._workers: dict[int, Handle] = {}
        """The others, where they call each other."""
        self.round = 0

    async def start(self) -> None:
        """Training begins, or goes on after a pause."""

    def ahead(self) -> asyncio.Task | None:
        """What can be asked when a step begins, so that the answer travels while the worker computes."""
        return None

    def _message(self, round: int, copies: int = 1) -> np.ndarray:
        """What the replica sends, to so many."""
        sent = self._replica.message(round)
        self._record.bytes["mix dense"] += copies * sent.nbytes
        return sent

    @abstractmethod
    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        """Mix once; when that began, after all waiting for others. None: it did not take place."""

    def know(self, rank: int, worker: Handle) -> None:
        """Where another worker is; one that was lost may be elsewhere now."""
        self._workers[rank] = worker.bind(self._site)

    async def call(self, rank: int, method: str, *args) -> Any:
        """Another worker's answer; None where it is dead."""
        if rank not in self._workers:
            return None
        try:
            return await getattr(self._workers[rank], method)(*args)
        except NodeLost:
            return None

    async def deliver(self, rank: int, round: int, message: np.ndarray) -> None:
        """Another worker's message for a round."""
        raise NotImplementedError

    async def forget(self, rank: int, generation: int) -> None:
        """Stop waiting for messages of a lost worker's earlier generations: they will never come."""
        self._workers.pop(rank, None)


class InGroups(Way):
    """Groups are formed by a rendezvous and mix by collectives."""

    def ask(self) -> asyncio.Task:
        self.round += 1
        return self._meeting(self.round - 1)

    def ahead(self) -> asyncio.Task | None:
        return self.ask()

    def _meeting(self, round: int) -> asyncio.Task:
        moved = self._replica.moved()
        told = () if moved is None else (moved,)
        asked = asyncio.ensure_future(self._here.rendezvous.meet(self._here.rank, round, self._site.generation, *told))
        # The step that asked may be no more when the answer comes, be it that its rendezvous is no more either.
        asked.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return asked

    async def meet(self, label: int, asked: asyncio.Task | None) -> tuple[float, Meeting | None]:
        """The group, and when it was there."""
        start = self._site.now()
        met = await (asked or self.ask())
        now = self._site.now()
        self._record.span("wait", start, now, label)
        return now, met

    async def average(self, met: Meeting, mine: np.ndarray) -> np.ndarray:
        """The members' mean, bucket after bucket; behind the buckets are running statistics, if they are sent."""
        buckets = self._here.buckets
        if len(buckets) == 1:
            return await self._site.mean(met, mine)
        buckets = [*buckets, slice(buckets[0].stop, mine.size)] if mine.size > buckets[0].stop else buckets
        keys = (replace(met, key=f"{met.key}, bucket {number}") for number in range(len(buckets)))
        means = [await self._site.mean(key, mine[part]) for key, part in zip(keys, buckets, strict=True)]
        return concat(means, buckets)

    async def together(self, met: Meeting | None, once: Callable[[Meeting], Awaitable[Any]]) -> Any:
        """`once` with that group, or with those who are left of it when a member dies; None where there is no group."""
        while met is not None:
            self.round = met.round + 1
            try:
                return await once(met)
            except MemberLost:
                self._record.extra["mixes repeated"] += 1
                met = await self._meeting(met.round)
        return None


class Averaging(InGroups):
    """Every member gets the mean of what they all send, and of the rows that any of them holds."""

    def ahead(self) -> asyncio.Task | None:
        return self.ask() if self._rule.exchange.ahead else None

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        start, met = await self.meet(label, asked)
        return start if await self.together(met, self._once) else None

    async def _once(self, met: Meeting) -> bool:
        sent = self._message(met.round)
        theirs = await self.average(met, sent)
        await self._replica.merge(Mix(met.round, met.members, sent, theirs))
        for table in self._replica.tables.values() if self._rule.mixes_rows else ():
            await self._mix_rows(met, table)
        return True

    async def _mix_rows(self, met: Meeting, table: Any) -> None:
        """A row that a member never met has its first value there."""
        ids = union(await self._site.gather(met, table.ids()))
        mine = table.peek(ids)
        self._record.bytes["mix rows"] += mine.nbytes
        table.assign(ids, (await self._site.mean(met, mine.reshape(-1))).reshape(mine.shape))


class AveragingGradients(InGroups):
    """The members' mean gradient; a mix belongs to a step."""

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        raise NotImplementedError

    async def mean(self, label: int, asked: asyncio.Task, mine: np.ndarray, overlap: Overlap | None):
        """The mean, and when the group was there."""
        start, met = await self.meet(label, asked)
        first, running = met, self._replica.running()
        self._record.bytes["mix gradients"] += mine.nbytes + running.nbytes

        async def once(met: Meeting) -> np.ndarray:
            if overlap is None:
                mean = await self.average(met, mine)
            else:  # in buckets as before: for a member that is there again this group is the first of its step
                mean = await (overlap if met is first else overlap.again(met, mine)).mean()
            if running.size:
                self._replica.settle(await self._site.mean(replace(met, key=f"{met.key}, running"), running))
            return mean

        mean = await self.together(met, once)
        return start, mine if mean is None else mean


class WithNeighbours(Averaging):
    """Messages go from worker to worker."""

    rendezvous = Neighbourhoods
    ahead = InGroups.ahead

    def __init__(self, here: Here):
        super().__init__(here)
        self._mail: dict[tuple[int, int], asyncio.Future] = {}
        """(round, worker) -> its message; None where it will never come."""
        self._generations: Counter[int] = Counter()
        """The first generation of each other worker that may still send something."""

    async def start(self) -> None:
        self.round = await self._here.rendezvous.first(self._here.rank)

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        asked = asked or self.ask()
        rank, round, workers = self._here.rank, self.round - 1, self._here.plan.workers
        to = [
            other for other in range(workers) if other != rank and rank in neighbours(self._rule, round, other, workers)
        ]
        sent = self._message(round, len(to))
        sending = asyncio.gather(*(self.call(other, "deliver", rank, round, sent) for other in to))
        start, met = await self.meet(label, asked)
        if met is not None:
            await self._weigh(met, sent)
        await sending
        return start if met else None

    async def _weigh(self, met: Meeting, sent: np.ndarray) -> None:
        row = neighbours(self._rule, met.round, self._here.rank, self._here.plan.workers)
        weighted, left = [], 1.0
        for other, generation in zip(met.members, met.generations, strict=True):
            message = None if other == self._here.rank else await self._mail_of(met.round, other, generation)
            if message is not None:
                weighted.append((row[other], message))
                left -= row[other]
        self._mail = {key: value for key, value in self._mail.items() if key[0] > met.round}
        work = Work(bytes=4 * sent.nbytes * len(weighted))
        theirs = await self._site.compute(work, _sum, [(left, sent), *weighted])
        await self._replica.merge(Mix(met.round, met.members, sent, theirs))

    async def _mail_of(self, round: int, other: int, generation: int) -> np.ndarray | None:
        waiting = self._slot(round, other)
        if self._generations[other] > generation and not waiting.done():
            waiting.set_result(None)
        return await waiting

    async def deliver(self, rank: int, round: int, message: np.ndarray) -> None:
        if not (slot := self._slot(round, rank)).done():
            slot.set_result(message)

    async def forget(self, rank: int, generation: int) -> None:
        await super().forget(rank, generation)
        self._generations[rank] = generation
        for (_, other), waiting in self._mail.items():
            if other == rank and not waiting.done():
                waiting.set_result(None)

    def _slot(self, round: int, rank: int) -> asyncio.Future:
        return self._mail.setdefault((round, rank), asyncio.get_running_loop().create_future())


class WithPartner(Way):
    """One worker's replica after another."""

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        round, rank, workers = self.round, self._here.rank, self._here.plan.workers
        self.round += 1
        partner = self._rule.partner(round, rank, workers) if workers > 1 else None
        if partner is None:
            return None
        if partner == rank or partner not in range(workers):
            raise BadOption(f"{self._rule.name}: partner(round={round}, rank={rank}, workers={workers}) gave {partner}")
        if not goes(self._rule, {rank: self._replica.moved()}):
            return None
        start, sent = self._site.now(), self._message(round)
        answer = await self.call(partner, "absorb", sent)
        if answer is None:
            self._record.extra["mixes missed"] += 1
            return None
        self._record.bytes["mix answers"] += answer.nbytes
        await self._replica.merge(Mix(round, (), sent, answer))
        return start


class WithCentre(Way):
    """The sync servers, all at once."""

    def __init__(self, here: Here):
        super().__init__(here)
        self._servers = [server.bind(here.site) for server in here.sync_servers]

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        start, round = self._site.now(), self.round
        if not goes(self._rule, {self._here.rank: self._replica.moved()}):
            return None
        self.round += 1
        sent = self._message(round)
        slices = parts(sent.size, len(self._servers))
        rank, samples = self._here.rank, self._replica.samples
        calls = [server.exchange(rank, samples, sent[part]) for server, part in zip(self._servers, slices, strict=True)]
        theirs = await calls[0] if len(calls) == 1 else np.concatenate(await asyncio.gather(*calls))
        self._record.bytes["mix answers"] += theirs.nbytes
        await self._replica.merge(Mix(round, (), sent, theirs))
        return start


WAYS: dict[type[Exchange], type[Way]] = {
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
