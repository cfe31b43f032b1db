"""Copies of the parameters, a worker's own and those of the sync servers, and how copies mix.

A replica has a dense vector and optimiser, what its rule remembers, and rows where no server has them. There is one exchanger for
each value of `ReplicaRule.exchange`: it exchanges a replica's message for the other side of a mix."""

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Meeting, Site, World
from lib.cluster.spec import Work
from lib.drivers.model_state import ModelState
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, PartLog, Snapshot, pop_reached
from lib.drivers.rule_checks import checked_pair, readonly, without_views, writes_refused
from lib.drivers.trainer import Overlap
from lib.errors import BadOption, MemberLost, NodeLost
from lib.options.checked import checked
from lib.protocols import statistics
from lib.protocols.mixing import Background, Centre, Exchange, Gradients, Loop, Mean, Mix, Neighbours, Peer
from lib.protocols.replica_rule import mixes_now, neighbours
from lib.store.checkpoint import Checkpointed, Part
from lib.store.dense import DenseStore
from lib.store.optim import Optimizer
from lib.store.phantom import PhantomDense, concat, phantom
from lib.store.placement import Partition, Uniform
from lib.store.rows import Rows, union


class Replica(Checkpointed):
    """Updates and mixes stop nobody: each is atomic, and a mix moves the replica by as much as it says from where it was when the
    mix was worked out. Guaranteed: no mix undoes a local update that came beside it, and no update a mix.

    Its vector is that of `FlatModel`. The rule sees the parameters; what a mix makes of the running statistics behind them is one
    word of the rule's."""

    in_checkpoint = ("_dense", "tables", "_memory", "_mixed", "steps", "samples")

    def __init__(self, site: Site, plan: Plan, record: PartLog, parameters: int, rows: bool):
        """`rows`: they are here, and not on servers."""
        self._site, self._plan, self._rule, self._record = site, plan, plan.protocol.dense, record
        start = plan.start(site)
        self.size, self._running = parameters, start.size - parameters
        self._dense = plan.dense_store(start, site.device, parameters)
        self._memory = self._rule.init(readonly(start[: self.size]))
        self.tables = plan.tables() if rows else {}
        # A shadow thread's merges are beside the cores that train.
        self._modelled = not isinstance(self._rule.when, Background)
        self._together = self._rule.exchange.together
        self._stands = isinstance(self._rule.when, Loop) and isinstance(self._rule.exchange, Mean)
        """Nobody writes from a message to its merge, and nobody keeps the message."""
        self._merging = threading.Lock()
        """What the rule remembers is one merge's at a time."""
        self._sent: tuple[np.ndarray, int] | None = None
        """What the last message was made of, and how often it had been written to."""
        self._included: dict[int, int] = {}
        """Mix under way -> gradients of this replica's own that its message has."""
        self._mixed = self._dense.pull() if self._rule.should_mix else None
        """What the last mix made of the vector, if anybody asks how far it is from that."""
        self.steps = self.samples = 0

    @property
    def values(self) -> Any:
        """The live vector."""
        return self._dense.values

    def pull(self) -> np.ndarray:
        """A copy of the vector."""
        return self._dense.pull()

    def model(self) -> np.ndarray:
        """The dense parameters that it stands for, and its running statistics."""
        mine = self._dense.pull()
        return self._joined(self._rule.as_model(self._memory, readonly(mine[: self.size])), mine[self.size :])

    def moved(self) -> float | None:
        """How far its parameters are from what the last mix made of them; None: nobody asks."""
        if self._mixed is None or not self._plan.gradients:
            return None if self._mixed is None else math.inf
        return float(np.linalg.norm((self._dense.pull() - self._mixed)[: self.size]))

    def rate(self) -> float:
        """What the learning rates of its next step are multiplied by: as far in the pass as if all made as many steps as it."""
        return self._plan.rate_after(self.steps * self._plan.workers * self._plan.workload.batch_size)

    async def update(self, gradient: Any, batch: int, rate: float) -> None:
        """One local step of the optimiser."""
        start = self._site.now()
        await self._site.compute(Work(bytes=3 * self._dense.nbytes), self._dense.apply, gradient, rate)
        self._record.span("apply", start, self._site.now(), batch)
        self._record.ledger["held"] += 1

    def follow(self, change: Any) -> None:
        """Move the running statistics as the forward pass of a batch moved them."""
        self._dense.shift(change)

    def running(self) -> np.ndarray:
        """What others are told of its running statistics where gradients are averaged."""
        own = self._dense.pull()[self.size :] if self._running else np.empty(0, np.float32)
        return statistics.brought(own, self._rule.statistics or "none")

    def settle(self, theirs: np.ndarray) -> None:
        """Take the mean of what all told of theirs."""
        if self._plan.gradients:
            own = self._dense.pull()[self.size :]
            self._dense.shift(statistics.taken(own, theirs, self._rule.statistics) - own)

    def message(self, round: int) -> np.ndarray:
        """What it sends in a mix."""
        self._included[round] = self._record.ledger["held"]
        mine, writes = self._dense.still() if self._stands else self._dense.seen()
        if self._together:  # so that nobody makes another before this one is merged
            self._sent = mine, writes
        with writes_refused(self._rule, "send"):
            sent = self._rule.send(self._memory, readonly(mine[: self.size]), round)
        if not self._plan.gradients:
            sent = phantom(*sent.shape, kind=sent.dtype)
        return self._joined(sent, statistics.brought(mine[self.size :], self._rule.statistics))

    async def merge(self, mix: Mix) -> None:
        work = Work(bytes=3 * mix.theirs.nbytes) if self._modelled else None
        await self._site.compute(work, self._merge, mix)
        included = self._included.pop(mix.round, 0)
        if len(mix.members) != 1:  # in a group of one, no other replica has them
            self._note_heard(included)

    async def meet(self, theirs: np.ndarray) -> np.ndarray:
        """Take in another worker's message, beside the cores that train; the answer."""
        held = self._record.ledger["held"]
        answer = await self._site.compute(None, update_centre, self._plan, self._dense, theirs)
        self._note_heard(held)
        return answer

    def _note_heard(self, gradients: int) -> None:
        """Count the gradients that other replicas have too: they are not lost with this one."""
        self._record.ledger["heard"] = max(self._record.ledger["heard"], gradients)

    def inherit(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with what another protocol has trained."""
        self._dense.load(dense)
        self._memory = self._rule.init(readonly(dense["values"][: self.size]))
        self._mixed = self._dense.pull() if self._rule.should_mix else None
        for name, table in self.tables.items():
            table.load(rows[name])

    def take_over(self, copy: dict[str, Any]) -> None:
        """Be the replica of a worker that was lost and is there again, with what another `copy` holds."""
        self.restore({**copy, "samples": 0})
        self._memory = self._rule.rejoined(self._memory, readonly(self._dense.pull()[: self.size]))

    def final(self) -> dict[str, Any]:
        return {
            "replica": self._dense.export(),
            "replica rows": {name: table.export() for name, table in self.tables.items()},
        }

    def _merge(self, mix: Mix) -> None:
        if not self._plan.gradients:
            return
        with self._merging:
            mine, writes = self._dense.seen(self._sent)
            self._sent = None
            with writes_refused(self._rule, "merge"):
                merged = self._merged(mine, mix)
            if beside := self._dense.move(mine, writes, merged):
                self._record.extra["updates beside a merge"] += beside
            if self._mixed is not None:
                self._mixed = merged.copy()

    def _merged(self, mine: np.ndarray, mix: Mix) -> np.ndarray:
        """The rule's merge of the parameters, and what a word of the rule's makes of the running statistics behind them. The rule
        may keep what it is given no longer than this."""
        brought = 0 if self._rule.statistics == "none" else self._running
        sent, theirs = (readonly(array[: array.size - brought]) for array in (mix.sent, mix.theirs))
        given = replace(mix, sent=sent, theirs=theirs)
        self._memory, merged = checked_pair(
            self._rule,
            "merge",
            "memory and replica",
            self._rule.merge(self._memory, readonly(mine[: self.size]), given),
        )
        self._memory = without_views(self._memory, mine)
        if not self._running:
            return merged
        return self._joined(
            merged, statistics.taken(mine[self.size :], mix.theirs[theirs.size :], self._rule.statistics)
        )

    def _joined(self, parameters: np.ndarray, running: np.ndarray) -> np.ndarray:
        """As one array of the parameters' type."""
        return np.concatenate([parameters, running.astype(parameters.dtype)]) if self._running else parameters


def update_centre(plan: Plan, dense: DenseStore | PhantomDense, theirs: np.ndarray) -> np.ndarray:
    """Change a copy by a worker's message, or by a step of the sync servers' optimiser; the answer to the worker."""
    rule = plan.protocol.dense
    if getattr(rule.exchange, "optimizer", None):
        dense.apply(theirs)
        return dense.pull() if plan.gradients else theirs
    if not plan.gradients:
        return theirs
    mine, writes = dense.seen()
    with writes_refused(rule, "update_centre"):
        answer = rule.update_centre(readonly(mine), readonly(theirs))
    changed, answer = checked_pair(rule, "update_centre", "copy and answer", answer)
    dense.move(mine, writes, changed)
    return answer


class SyncServer(Part):
    """A part of the copy in the middle, of rules that have one."""

    in_checkpoint = ("_copy", "_samples", "_evals", "record")

    def __init__(self, site: Site, plan: Plan, server: int):
        self._site, self._plan, self._server = site, plan, server
        start = plan.start(site)
        rule = plan.protocol.dense
        self._part = Partition(start.size, Uniform(shards=rule.exchange.servers)).slice(server)
        optimizer = checked(Optimizer | None, rule.exchange.optimizer, rule.name, "optimizer")
        if optimizer:
            optimizer.check_dense()
        self._copy = plan.dense_store(start[self._part], optimizer=optimizer)
        self._samples = [0] * plan.workers
        self._evals = [*plan.eval_points]
        self.record = PartLog(site.node, [] if plan.trace else None)

    async def inherit(self, values: np.ndarray) -> None:
        self._copy.assign(values[self._part])

    async def exchange(self, rank: int, samples: int, theirs: np.ndarray) -> np.ndarray:
        """The answer to a worker that has trained on so many samples, once the copy has taken its message in."""
        start = self._site.now()
        work = Work(bytes=3 * theirs.nbytes)
        answer = await self._site.compute(work, update_centre, self._plan, self._copy, theirs)
        self.record.span("absorb", start, self._site.now(), rank)
        self._samples[rank] = samples
        self.record.snapshots += map(self._snapshot, pop_reached(self._evals, sum(self._samples)))
        return answer

    async def report(self, end: EvalPoint) -> PartLog:
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = {"centre": self._copy.pull()}
        return self.record

    def _snapshot(self, point: EvalPoint) -> Snapshot:
        return Snapshot(point, self._site.now(), sum(self._samples), {self._server: self._copy.pull()})


async def open_sync_servers(world: World, plan: Plan, model: ModelState | None) -> tuple[Handle, ...]:
    """One on each node "sync0", "sync1", ..."""
    servers = range(plan.protocol.dense.exchange.servers)
    handles = await asyncio.gather(*(world.host(SyncServer, plan, server, node=f"sync{server}") for server in servers))
    if model:
        await asyncio.gather(*(handle.inherit(model.dense["values"]) for handle in handles))
    return tuple(handles)


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

    async def call(self, rank: int, method: str, *args) -> Any:
        """Another worker's answer; None where it is dead."""
        with suppress(NodeLost):
            return await getattr(self.others[rank], method)(*args) if rank in self.others else None

    def _message(self, round: int) -> np.ndarray:
        sent = self.replica.message(round)
        self.record.bytes["mix dense"] += sent.nbytes
        return sent


class InGroups(Exchanger):
    """Groups are formed by a rendezvous and mix by collectives."""

    def ask_ahead(self) -> asyncio.Task | None:
        self.round += 1
        return self._ask(self.round - 1)

    def _ask(self, round: int) -> asyncio.Task:
        moved = self.replica.moved()
        distance = () if moved is None else (moved,)
        asked = asyncio.ensure_future(self.rendezvous.meet(self.rank, round, self.site.generation, *distance))
        # The step that asked may have ended when the answer comes, and so may the rendezvous.
        asked.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return asked

    async def in_group(
        self, label: int, asked: asyncio.Task | None, mix: Callable[[Meeting], Awaitable[Any]]
    ) -> tuple[float, Any]:
        """When the group was there, and what the mix in it gives, which is made again without a member that died; None where
        there is no group."""
        before = self.site.now()
        met = await (asked or InGroups.ask_ahead(self))
        start = self.site.now()
        self.record.span("wait", before, start, label)
        while met is not None:
            self.round = met.round + 1
            try:
                return start, await mix(met)
            except MemberLost:
                self.record.extra["mixes repeated"] += 1
                met = await self._ask(met.round)
        return start, None

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


class Averaging(InGroups):
    """Every member gets the mean of what they all send, and of the rows that any of them holds."""

    def ask_ahead(self) -> asyncio.Task | None:
        return super().ask_ahead() if self.rule.exchange.ahead else None

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        start, mixed = await self.in_group(label, asked, self._mix)
        return start if mixed else None

    async def _mix(self, met: Meeting) -> bool:
        sent = self._message(met.round)
        theirs = await self.average(met, sent)
        await self.replica.merge(Mix(met.round, met.members, sent, theirs))
        for table in self.replica.tables.values() if self.rule.mixes_rows else ():
            await self._mix_rows(met, table)
        return True

    async def _mix_rows(self, met: Meeting, table: Any) -> None:
        """A row that a member never met has its first value there."""
        ids = union(await self.site.gather(met, table.ids()))
        mine = table.peek(ids)
        self.record.bytes["mix rows"] += mine.nbytes
        table.assign(ids, (await self.site.mean(met, mine.reshape(-1))).reshape(mine.shape))


class AveragingGradients(InGroups):
    """Every member gets the mean gradient; a mix belongs to a step."""

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        raise NotImplementedError

    async def mean(self, label: int, asked: asyncio.Task, mine: np.ndarray, overlap: Overlap | None):
        """When the group was there, and the mean; `mine` where there is no group."""
        running, repeats = self.replica.running(), False
        self.record.bytes["mix gradients"] += mine.nbytes + running.nbytes

        async def average(met: Meeting) -> np.ndarray:
            nonlocal repeats
            again, repeats = repeats, True
            if overlap is None:
                mean = await self.average(met, mine)
            else:  # in the same buckets: for a member that has joined again this group is the first of its step
                mean = await (overlap.again(met, mine) if again else overlap.mean())
            if running.size:
                self.replica.settle(await self.site.mean(replace(met, key=f"{met.key}, running"), running))
            return mean

        start, mean = await self.in_group(label, asked, average)
        return start, mine if mean is None else mean


class WithNeighbours(Exchanger):
    """A worker fetches its neighbours' messages of its round.

    Guaranteed: no worker waits for ever. The worker of the lowest round gets an answer from all others: a message, or None of
    one that is dead, has stopped, or joined at a later round.
    """

    in_checkpoint = ("round", "_paused")

    def __post_init__(self):
        super().__post_init__()
        self._letters: dict[int, asyncio.Future] = {}
        """Round -> this worker's message; None where it will have none."""
        self._paused = 0
        """Its round at the last pause."""
        self._until = self._stopped = 0
        """The batches before which this stretch ends and the last one ended."""

    async def start(self, until: int, joins: bool) -> None:
        """Agree on a round: after a pause all go on with one, and a worker that joins takes one that no other has begun."""
        self._until = until
        rounds = await asyncio.gather(*(self.call(rank, "mix_round", joins) for rank in sorted(self.others)))
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
        row = neighbours(self.rule, round, self.rank, self.plan.workers)
        others = sorted(row.keys() - {self.rank})
        sent, before = self.replica.message(round), self.site.now()
        self._letter(round).set_result(sent)
        self._letters = {each: letter for each, letter in self._letters.items() if each >= round - 1}
        theirs = await asyncio.gather(*(self.call(rank, "letter", round, self._until) for rank in others))
        start = self.site.now()
        self.record.span("wait", before, start, label)
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

    def _letter(self, round: int) -> asyncio.Future:
        return self._letters.setdefault(round, asyncio.get_running_loop().create_future())

    def _answer_none(self, rounds: Iterable[int]) -> None:
        for round in rounds:
            if not self._letters[round].done():
                self._letters[round].set_result(None)


class WithPartner(Exchanger):
    """A worker meets one other replica after another."""

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        round, workers = self.round, self.plan.workers
        self.round += 1
        partner = self.rule.partner(round, self.rank, workers) if workers > 1 else None
        if partner is None:
            return None
        if partner == self.rank or partner not in range(workers):
            raise BadOption(
                f"{self.rule.name}: partner(round={round}, rank={self.rank}, workers={workers}) gave {partner}"
            )
        if not mixes_now(self.rule, {self.rank: self.replica.moved()}):
            return None
        start, sent = self.site.now(), self._message(round)
        answer = await self.call(partner, "meet", sent)
        if answer is None:
            self.record.extra["mixes missed"] += 1
            return None
        self.record.bytes["mix answers"] += answer.nbytes
        await self.replica.merge(Mix(round, (), sent, answer))
        return start


class WithCentre(Exchanger):
    """A worker meets the sync servers, all at once."""

    def __post_init__(self):
        super().__post_init__()
        self._servers = [server.bind(self.site) for server in self.sync_servers]

    async def mix(self, label: int, asked: asyncio.Task | None = None) -> float | None:
        start, round = self.site.now(), self.round
        if not mixes_now(self.rule, {self.rank: self.replica.moved()}):
            return None
        self.round += 1
        sent = self._message(round)
        partition = Partition(sent.size, Uniform(shards=len(self._servers)))
        calls = []
        for number, server in enumerate(self._servers):
            calls.append(server.exchange(self.rank, self.replica.samples, sent[partition.slice(number)]))
        theirs = await calls[0] if len(calls) == 1 else np.concatenate(await asyncio.gather(*calls))
        self.record.bytes["mix answers"] += theirs.nbytes
        await self.replica.merge(Mix(round, (), sent, theirs))
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
