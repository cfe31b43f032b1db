"""A parameter server: the part that follows a server rule with its share of the parameters.

Requests take turns for what they decide, which is short and pure, and not for what they carry out. So a server answers pulls
while an update is under way, and updates run side by side: on its lanes, in threads, as calls of an actor. What is waited for:

- an update of a rule that has them in order waits for those before it, and whoever comes after it, for it to begin;
- a worker's pull waits for the updates that its own pushes set off and, where the rule blocks, for all that were decided
  before its gate opened. So a gate never opens on parameters that are not in the store yet.

Where rows outlive their process, so does all else that a server cannot do without: it notes it at the end of each turn, before
anything that was decided there is carried out, and the next process goes on from it. Gone are the gradients that it had taken
and not brought into the store, which are counted as lost. Whoever had asked asks again, and is answered once: a step
that has started has its token, a gradient that was taken is not taken twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import Site
from lib.drivers.membership.members import Members
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Mark, Marks, Record, Snapshot
from lib.drivers.servers.decided import check, received, settled
from lib.drivers.servers.shard import Applied, Gradient, Read, Shard
from lib.drivers.servers.steps import Pulled, Started, Update
from lib.protocols.server_rule import Decisions, Drop, Push, ServerRule, ServerState
from lib.store.checkpoint import Kept
from lib.store.rows import Rows


class ParameterServer(Kept):
    """One server's share of the parameters, its rule's state and the gradients that wait for their update."""

    def __init__(self, site: Site, plan: Plan, rule: ServerRule, number: int, holds: frozenset[str]):
        self._site, self._rule, self._ordered = site, rule, rule.ordered(plan.workers)
        self._state = rule.init(plan.workers)
        self._shard = Shard(site, plan, rule, number, holds)
        self._lock = asyncio.Lock()
        self._gates: dict[tuple[int, int], asyncio.Future] = {}
        """(worker, batch) -> a pull that waits for the rule to let its worker start, in the order in which they came; it gets
        what `_start` says, and None where the worker is lost."""
        self._started: dict[tuple[int, int], Started] = {}
        """(worker, batch) of steps that were started and not pushed."""
        self._copies: dict[int, Read] = {}
        """Worker -> what it keeps a copy of, where the rule lets it."""
        self._members = Members.of(plan.workers)
        self._waiting: dict[Push, Gradient] = {}
        self._under_way: list[Update] = []
        self._marks, self._samples, self._dropped = Marks(map(plan.mark, plan.marks)), 0, 0
        self._rate_after, self._decided = plan.rate_after, 0
        """Learning rates go by the samples of whose gradients it is decided what becomes, whichever updates are done first."""
        self.record = Record(site.node, [] if plan.trace else None)

    async def inherit(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with what another protocol has trained."""
        self._shard.inherit(dense, rows)

    async def pull(self, worker: int, batch: int, asked: dict[str, Any], whole: bool = True) -> Pulled | None:
        """The parameters, once the rule lets the worker start, with the token of its step; None: whoever asked is dead.
        Not `whole`: only the rows that are asked for, since the worker computes from a copy of what it read before.

        Who asks again for the same step, since an embedding worker died with the answer, gets the same token."""
        came, generation, step = self._site.now(), self._members.generations[worker], (worker, batch)
        async with self._lock:
            if self._members.generations[worker] > generation:
                return None
            if worker in self._members.joining:
                self._members = self._members.after(worker, "comes in")
                self._state = self._rule.on_join(self._state, worker)
                self._open(self._gates)
            if worker not in self._state.active:  # an embedding worker asks for one that was lost meanwhile
                return None
            gate = asyncio.get_running_loop().create_future()
            if step in self._started:
                gate.set_result(self._told(*step))
            else:
                before = self._gates.get(step)
                self._gates[step] = gate
                if before:
                    before.set_result(None)
                else:
                    self._open([step])
            updates = await self._go_without_paused()
        await self._carry_out(updates)
        started = await gate
        if started is None:
            return None
        token, before = started
        waited = self._site.now() - came
        ids = self._shard.asked(asked)
        work = self._shard.reading(ids, whole)
        read, dense, rows = await self._site.compute(work, self._shard.read, ids, whole, after=before)
        step = self._started.get((worker, batch)) if self._members.generations[worker] == generation else None
        if step is not None:
            if self._rule.cache_steps:
                read = self._copies[worker] = read if whole else self._copies[worker]
            step.read = read
        return Pulled(token, waited, dense, rows, step.lead if step is not None else 0)

    async def push(self, gradient: Gradient) -> None:
        """Take a gradient; what it sets off is in the store when this returns."""
        push = gradient.push
        async with self._lock:
            started = self._started.pop((push.worker, push.batch), None)
            if (
                started is None
            ):  # it was taken for lost, and so was this; or it is here already, and who brought it died too soon
                return
            read = started.read
            if read is None and not gradient.void:
                gradient = replace(gradient, dense=None, rows={}, void="lost")
                self.record.extra["gradients lost at servers"] += 1
            push = push if read is None else replace(push, read=read.version)
            self._waiting[push] = replace(gradient, push=push, read=read)
            answer = received(self._rule, self._state, push, self._rule.on_push(self._state, push))
            updates = await self._decide(push.worker, *answer)
            updates += await self._go_without_paused()
        await self._carry_out(updates)

    async def tell(self, worker: int, change: str) -> int | None:
        """Something has become of a worker; of one that is there again, the step that is its next."""
        async with self._lock:
            self._members = self._members.after(worker, change)
            if change == "comes back":
                return self._rule.on_join(self._state, worker).clocks[worker]
            if change == "dies":
                self._lose(worker)
            updates = await self._leave(worker) if change != "pauses" else []
            updates += await self._go_without_paused()
        await self._carry_out(updates)

    async def save(self) -> dict[str, Any]:
        """Everything, when no update is under way: the rule's state, the store and the gradients in flight are one cut."""
        await _finished(self._under_way)
        self._state = self._rule.on_cut(replace(self._state, active=self._state.active | self._members.left_out))
        self._members = self._members.after_cut()
        return {
            "rule": self._state,
            "members": self._members,
            "waiting": list(self._waiting.values()),
            "samples": self._samples,
            "dropped": self._dropped,
            "decided": self._decided,
            "record": self.record,
            **self._shard.save(),
        }

    async def load(self, state: dict[str, Any]) -> None:
        self._state, self._members = state["rule"], state["members"].in_another_process()
        self._waiting = {gradient.push: gradient for gradient in state["waiting"]}
        self._shard.load(state, self._state.step)
        self._samples, self._dropped = state["samples"], state["dropped"]
        self._decided = state["decided"]
        self._marks.crossed(self._samples + self._dropped)
        self.record.become(state["record"])

    async def report(self, end: Mark) -> Record:
        await _finished(self._under_way)
        settled(self._rule, self._state, len(self._waiting))
        self._count(self._waiting.values(), "in_flight")
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = self._shard.final()
        return self.record

    def _lose(self, worker: int) -> None:
        """What it has started will never be pushed, and nobody hears what it waits for."""
        for step in [step for step in self._started if step[0] == worker]:
            del self._started[step]
            self.record.ledger["lost"] += 1
        for step in [step for step in self._gates if step[0] == worker]:
            self._gates.pop(step).set_result(None)

    async def _leave(self, worker: int) -> list[Update]:
        return await self._decide(worker, *self._rule.on_leave(self._state, worker))

    async def _decide(self, worker: int, state: ServerState, decisions: Decisions) -> list[Update]:
        """Take the rule's decisions, in turn; the updates are under way from here on, and begin before anybody else's turn."""
        check(self._rule, self._state, state, decisions, self._waiting)
        updates = []
        for decision in decisions:
            gradients = [self._waiting.pop(push) for push in decision.pushes]
            rate = self._rate_after(self._decided)
            samples = sum(gradient.samples for gradient in gradients)
            self._decided += samples
            if isinstance(decision, Drop):
                self._count(gradients, "dropped")
                self._dropped += samples
                self._evaluate()
                continue
            done = asyncio.get_running_loop().create_future()
            decision = decision if rate == 1 else replace(decision, rate=rate * decision.rate)
            updates.append(Update(decision, gradients, self._state.step + len(updates), worker, done))
        if updates and self._ordered:
            await _finished(self._under_way)
        self._under_way += updates
        self._state = state
        if not self._under_way:
            self._open(self._gates)
        return updates

    def _open(self, gates: Iterable[tuple[int, int]]) -> None:
        """Those of them whose workers the rule lets start now."""
        for step in list(gates):
            if self._rule.may_start(self._state, step[0]):
                self._gates.pop(step).set_result(self._start(*step))

    def _start(self, worker: int, batch: int) -> tuple[int, list[asyncio.Future]]:
        """A step's token, and what must be in the store before its parameters are read."""
        self._state, token = self._rule.on_start(self._state, worker)
        slowest = min(self._state.clocks[other] for other in self._state.active) if self._rule.cache_steps else 0
        self._started[worker, batch] = Started(token, lead=max(0, self._state.clocks[worker] - slowest))
        self.record.ledger["started"] += 1
        return self._told(worker, batch)

    def _told(self, worker: int, batch: int) -> tuple[int, list[asyncio.Future]]:
        """The same of a step that has started."""
        before = [each.done for each in self._under_way if self._rule.blocks or each.worker == worker]
        return self._started[worker, batch].token, before

    async def _carry_out(self, updates: list[Update]) -> None:
        for update in updates:
            start = self._site.now()
            work = self._shard.updating(update.gradients)
            try:
                applied = await self._site.compute(
                    work, self._shard.update, update.decision, update.gradients, update.step
                )
                self._account(update, applied, start)
            finally:
                self._under_way.remove(update)
                update.done.set_result(None)
        if updates:
            async with self._lock:
                self._open(self._gates)
                more = await self._go_without_paused()
            await self._carry_out(more)

    async def _go_without_paused(self) -> list[Update]:
        """Where somebody waits at a gate that none of those who have not paused can open, nobody waits for those who have: fed
        from one queue, workers pause after unlike numbers of steps. Who may not start is at a gate, or on its way to one; or it
        mixes with others first, who may be at one."""
        updates: list[Update] = []
        while (paused := self._members.paused) and self._gates and not self._started and not self._under_way:
            if any(self._rule.may_start(self._state, other) for other in self._state.active - paused):
                break
            self._members = self._members.after(worker := min(paused), "goes unawaited")
            updates += await self._leave(worker)
        return updates

    def _account(self, update: Update, applied: Applied, start: float) -> None:
        record = self.record
        record.span("apply", start, self._site.now(), update.step)
        record.extra["row gradients decayed"] += applied.decayed
        if applied.norm is not None:
            record.norms.append((update.step, applied.norm))
        for gradient, weight in zip(update.gradients, update.decision.weights, strict=True):
            if gradient.void:
                record.ledger[gradient.void] += 1
                continue
            record.used.append(gradient.push.batch)
            record.ledger["applied" if weight == 1 else "decayed"] += 1
            if weight:
                record.staleness.append((start, applied.version - gradient.read.version))
                record.data_staleness.append((start, max(0, update.step - gradient.push.token)))
        self._samples += sum(gradient.samples for gradient in update.gradients)
        self._evaluate()

    def _count(self, gradients: Iterable[Gradient], outcome: str) -> None:
        """What became of them; of those that a process before this one had, that they are lost."""
        for gradient in gradients:
            self.record.ledger["lost" if gradient.void == "lost" else outcome] += 1

    def _evaluate(self) -> None:
        """Where the stream has come to a mark, be it by gradients that were thrown away."""
        self.record.snapshots += map(self._snapshot, self._marks.crossed(self._samples + self._dropped))

    def _snapshot(self, mark: Mark) -> Snapshot:
        return self._shard.snapshot(mark, self._site.now(), self._samples)


async def _finished(updates: Iterable[Update]) -> None:
    if waiting := [update.done for update in updates]:
        await asyncio.wait(waiting)
