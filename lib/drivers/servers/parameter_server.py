"""A parameter server: the part that follows a server rule with its share of the parameters.

Requests take turns for decisions, which are short and pure, and not for carrying them out. So a server answers pulls while an
update is under way, and updates run side by side: on its lanes, in threads, as calls of an actor. A request waits as follows:

- an update of a rule that applies updates in order waits for those before it, and later requests wait until it begins;
- a worker's pull waits for the updates that its own pushes led to and, where the rule blocks, for all that were decided before
  its gate opened. So a gate never opens on parameters that are not in the store yet.
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
from lib.drivers.run.record import EvalPoint, PartLog, Snapshot
from lib.drivers.servers.messages import Gradient, PullReply, StepInput, Update
from lib.drivers.servers.rule_checks import check_decisions, check_end, check_push
from lib.drivers.servers.shard import Shard
from lib.protocols.server_rule import Apply, Decisions, Push, ServerRule, ServerState
from lib.store.checkpointed import Part
from lib.store.rows import Rows

Step = tuple[int, int]
"""A worker and its batch."""
Opening = tuple[StepInput, list[asyncio.Future]]
"""A step that has started, and the updates that must be in the store before its parameters are read."""


class ParameterServer(Part):
    """One server's share of the parameters, its rule's state and the gradients that wait for their update."""

    in_checkpoint = "_state", "_members", "_shard", "_waiting", "_samples", "_dropped", "_decided", "_evals", "record"

    def __init__(
        self, site: Site, plan: Plan, rule: ServerRule, number: int, holds: frozenset[str], tables: dict | None = None
    ):
        self._site, self._rule, self._in_order = site, rule, rule.ordered(plan.workers)
        self._state = rule.init(plan.workers)
        self._shard = Shard(site, plan, rule, number, holds, tables)
        self._members = Members.of(plan.workers)
        self._lock = asyncio.Lock()
        self._gates: dict[Step, asyncio.Future[Opening | None]] = {}
        """Pulls that wait for the rule to let their worker start, in the order of their arrival; None if the worker is lost."""
        self._started: dict[Step, StepInput] = {}
        """Steps that have started and not pushed."""
        self._copies: dict[int, int] = {}
        """Worker -> the version of the last whole reply to it, of which it may keep a copy."""
        self._waiting: dict[Push, Gradient] = {}
        self._under_way: list[Update] = []
        self._evals, self._samples, self._dropped = plan.eval_schedule(), 0, 0
        self._rate_after, self._decided = plan.rate_after, 0
        """Learning rates follow the samples of decided gradients, whichever updates are done first."""
        self.record = PartLog(site.node, [] if plan.trace else None)

    async def inherit(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with a model that another protocol has trained."""
        self._shard.inherit(dense, rows)

    async def pull(self, worker: int, batch: int, wanted: dict[str, Any], whole: bool = True) -> PullReply | None:
        """Answer with the parameters once the rule lets the worker start; None if the worker died meanwhile.

        Not `whole`: answer with the wanted rows alone; the worker computes from its copy of an earlier reply. A second request
        for the same step, as after the death of an embedding worker, gets the same token."""
        came, generation, step = self._site.now(), self._members.generations[worker], (worker, batch)
        async with self._lock:
            if self._members.generations[worker] > generation:
                return None
            if worker in self._members.joining:
                self._members = self._members.after(worker, "comes in")
                self._state = self._rule.on_join(self._state, worker)
                self._open_gates(self._gates)
            if worker not in self._state.active:  # an embedding worker asks for a worker that was lost
                return None
            earlier = self._gates.get(step)
            gate = self._gates[step] = asyncio.get_running_loop().create_future()
            if earlier:
                earlier.set_result(None)
            else:
                self._open_gates([step])
            updates = await self._remove_paused()
        if updates:
            await self._carry_out(updates)
        if (opening := await gate) is None:
            return None
        source, before = opening
        waited = self._site.now() - came
        wanted = self._shard.decoded(wanted)
        cost = self._shard.read_cost(wanted, whole)
        dense, rows = await self._site.compute(cost, self._shard.read, source, wanted, whole, after=before)
        if whole:
            self._copies[worker] = source.version
        else:
            source.version = self._copies[worker]
        return PullReply(source.token, waited, dense, rows, source.lead)

    async def push(self, gradient: Gradient) -> None:
        """Take a gradient; the updates that it leads to are in the store when this returns.

        Ignore it if its worker was lost since the step started, or if it came before."""
        async with self._lock:
            source = self._started.pop((gradient.worker, gradient.batch), None)
            if source is None:
                return
            push = Push(gradient.worker, gradient.token, gradient.batch, source.version)
            self._waiting[push] = replace(gradient, source=source)
            answer = check_push(self._rule, self._state, push, self._rule.on_push(self._state, push))
            updates = await self._decide(push.worker, *answer)
            updates += await self._remove_paused()
        await self._carry_out(updates)

    async def tell(self, worker: int, change: str) -> int | None:
        """Take note of a change of a worker; return the next step of one that comes back."""
        async with self._lock:
            self._members = self._members.after(worker, change)
            if change == "comes back":
                return self._rule.on_join(self._state, worker).clocks[worker]
            if change == "dies":
                self._lose(worker)
            updates = []
            if change != "pauses":
                updates += await self._decide(worker, *self._rule.on_leave(self._state, worker))
            updates += await self._remove_paused()
        await self._carry_out(updates)

    async def save(self) -> dict[str, Any]:
        """The rule's state, the store and the gradients in flight, once no update is under way."""
        await _done(self._under_way)
        self._state = self._rule.on_cut(replace(self._state, active=self._state.active | self._members.left_out))
        self._members = self._members.after_pause()
        return await super().save()

    async def load(self, state: dict[str, Any]) -> None:
        await super().load(state)
        self._members = self._members.in_another_process()

    async def report(self, end: EvalPoint) -> PartLog:
        await _done(self._under_way)
        check_end(self._rule, self._state, len(self._waiting))
        self.record.ledger["in_flight"] += len(self._waiting)
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = self._shard.final()
        return self.record

    def _open_gates(self, steps: Iterable[Step]) -> None:
        """Let those of these steps start that the rule permits, and those that have started before."""
        for step in list(steps):
            worker, before = step[0], []
            if step not in self._started:
                if not self._rule.may_start(self._state, worker):
                    continue
                lead, clocks = 0, self._state.clocks
                if self._rule.cache_steps:
                    lead = max(0, clocks[worker] - min(clocks[other] for other in self._state.active))
                self._state, token = self._rule.on_start(self._state, worker)
                self._started[step] = StepInput(token, lead)
                self.record.ledger["started"] += 1
            for update in self._under_way:
                if self._rule.blocks or update.worker == worker:
                    before.append(update.done)
            self._gates.pop(step).set_result((self._started[step], before))

    def _lose(self, worker: int) -> None:
        """Count the steps that a dead worker started as lost, and answer its pulls with None."""
        for step in [step for step in self._started if step[0] == worker]:
            del self._started[step]
            self.record.ledger["lost"] += 1
        for step in [step for step in self._gates if step[0] == worker]:
            self._gates.pop(step).set_result(None)

    async def _remove_paused(self) -> list[Update]:
        """Go on without paused workers while only they could open the gate at which a pull waits.

        Workers that share a queue pause after different numbers of steps, so a pull may wait for a worker that has paused. A
        worker that has not paused and may not start is at its gate, or comes to it after its mix.
        """
        updates: list[Update] = []
        while self._members.paused and self._gates and not self._started and not self._under_way:
            paused = self._members.paused
            if any(self._rule.may_start(self._state, other) for other in self._state.active - paused):
                break
            self._members = self._members.after(worker := min(paused), "goes unawaited")
            updates += await self._decide(worker, *self._rule.on_leave(self._state, worker))
        return updates

    async def _decide(self, worker: int, state: ServerState, decisions: Decisions) -> list[Update]:
        """Take the rule's decisions; the updates are under way from now on, and begin before the next request's turn."""
        check_decisions(self._rule, self._state, state, decisions, self._waiting)
        updates: list[Update] = []
        for decision in decisions:
            gradients, rate, before = [], self._rate_after(self._decided), self._decided
            for push in decision.pushes:
                gradients.append(self._waiting.pop(push))
                self._decided += gradients[-1].samples
            if isinstance(decision, Apply):
                decision = decision if rate == 1 else replace(decision, rate=rate * decision.rate)
                done = asyncio.get_running_loop().create_future()
                updates.append(Update(decision, gradients, self._state.step + len(updates), worker, done))
            else:
                self.record.ledger["dropped"] += len(gradients)
                self._dropped += self._decided - before
                self._evaluate()
        if updates and self._in_order:
            await _done(self._under_way)
        self._under_way += updates
        self._state = state
        if not self._under_way:
            self._open_gates(self._gates)
        return updates

    async def _carry_out(self, updates: list[Update]) -> None:
        """Bring updates into the store, and those that become possible when they are done."""
        while updates:
            for update in updates:
                start = self._site.now()
                try:
                    await self._site.compute(self._shard.update_cost(update), self._shard.update, update)
                    self._log(update, start)
                finally:
                    self._under_way.remove(update)
                    update.done.set_result(None)
            async with self._lock:
                self._open_gates(self._gates)
                updates = await self._remove_paused()

    def _log(self, update: Update, start: float) -> None:
        record = self.record
        record.span("apply", start, self._site.now(), update.step)
        record.extra["row gradients decayed"] += update.decayed
        if update.norm is not None:
            record.norms.append((update.step, update.norm))
        for gradient, weight in zip(update.gradients, update.decision.weights, strict=True):
            self._samples += gradient.samples
            if gradient.void:
                record.ledger[gradient.void] += 1
                continue
            record.used.append(gradient.batch)
            record.ledger["applied" if weight == 1 else "decayed"] += 1
            if weight:
                record.staleness.append((start, update.version - gradient.source.version))
                record.data_staleness.append((start, max(0, update.step - gradient.token)))
        self._evaluate()

    def _evaluate(self) -> None:
        """Take the snapshots whose place in the stream is reached; samples of dropped gradients count."""
        self.record.snapshots += map(self._snapshot, self._evals.pop_reached(self._samples + self._dropped))

    def _snapshot(self, point: EvalPoint) -> Snapshot:
        return self._shard.snapshot(point, self._site.now(), self._samples)


async def _done(updates: Iterable[Update]) -> None:
    if waiting := [update.done for update in updates]:
        await asyncio.wait(waiting)
