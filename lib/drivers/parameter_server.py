"""A parameter server: the part that follows a server rule with its share of the parameters.

Requests take turns for decisions, which are short and pure, and not for carrying them out. So a server answers pulls while an
update is under way, and updates run side by side: on its lanes, in threads, as calls of an actor. A request waits as follows:

- an update of a rule that applies updates in order waits for those before it, and later requests wait until it begins;
- a worker's pull waits for the updates that its own pushes led to and, where the rule blocks, for all that were decided before
  its gate opened. So a gate never opens on parameters that are not in the store yet.
"""

import asyncio
import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Site, World
from lib.drivers.membership import Members
from lib.drivers.model_state import ModelState
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, ModelSnapshot, PartLog, pop_reached
from lib.drivers.shard import Gradient, PullReply, Shard, StepInput, Update
from lib.errors import BadOption
from lib.protocols.server_rule import Apply, Push, ServerRule, ServerState, check_decisions, check_push, check_trained
from lib.store.checkpoint import Part
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
        self._site, self._rule, self._in_order = site, rule, rule.updates_serially(plan.workers)
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
        self._evals, self._samples, self._dropped = [*plan.eval_points], 0, 0
        self._lr_factor_after, self._decided = plan.lr_factor_after, 0
        """Learning rates follow the samples of decided gradients, whichever updates are done first."""
        self.record = PartLog(site.node, [] if plan.trace else None)

    async def warm_start(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with a model that another protocol has trained."""
        self._shard.warm_start(dense, rows)

    async def pull(self, worker: int, batch: int, wanted: dict[str, Any], with_dense: bool = True) -> PullReply | None:
        """Answer with the parameters once the rule lets the worker start; None if the worker died meanwhile.

        Not `with_dense`: answer with the wanted rows alone; the worker computes from its copy of an earlier reply. A second
        request for the same step, as after the death of an embedding worker, gets the same token."""
        came, generation, step = self._site.now(), self._members.generations[worker], (worker, batch)
        async with self._lock:
            if self._members.generations[worker] > generation:
                return None
            if worker in self._members.joining:
                self._members = self._members.after(worker, "comes in")
                self._state = self._rule.on_join(self._state, worker)
                self._open_permitted_gates(self._gates)
            if worker not in self._state.active:  # an embedding worker asks for a worker that was lost
                return None
            earlier = self._gates.get(step)
            gate = self._gates[step] = asyncio.get_running_loop().create_future()
            if earlier:
                earlier.set_result(None)
            else:  # a worker's steps start in its order, so not this one before those that wait
                mine = [each for each in self._gates if each[0] == worker]
                self._open_permitted_gates(mine if self._rule.pull_ahead else [step])
            updates = await self._stop_awaiting_paused()
        if updates:
            await self._apply_with_followups(updates)
        if (opening := await gate) is None:
            return None
        source, before = opening
        waited = self._site.now() - came
        wanted, cost = self._shard.decode_requests(wanted, with_dense)
        dense, rows = await self._site.compute(cost, self._shard.read, source, wanted, with_dense, after=before)
        if with_dense:
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
            updates = await self._take_decisions(push.worker, *answer)
            updates += await self._stop_awaiting_paused()
        await self._apply_with_followups(updates)

    async def note_change(self, worker: int, change: str) -> int | None:
        """Take note of a change of a worker; return the next step of one that comes back."""
        async with self._lock:
            self._members = self._members.after(worker, change)
            if change == "comes back":
                return self._rule.on_join(self._state, worker).clocks[worker]
            if change == "dies":
                self._discard_steps_of(worker)
            updates = []
            if change != "pauses":
                updates += await self._take_decisions(worker, *self._rule.on_leave(self._state, worker))
            updates += await self._stop_awaiting_paused()
        await self._apply_with_followups(updates)

    async def save(self) -> dict[str, Any]:
        """The rule's state, the store and the gradients in flight, once no update is under way."""
        await _wait_until_done(self._under_way)
        async with self._lock:
            self._state = self._rule.on_pause(replace(self._state, active=self._state.active | self._members.left_out))
            self._members = self._members.with_all_resuming()
            return await super().save()

    async def load(self, state: dict[str, Any]) -> None:
        async with self._lock:
            await super().load(state)
            self._members = self._members.with_zero_generations()

    async def report(self, end: EvalPoint) -> PartLog:
        await _wait_until_done(self._under_way)
        check_trained(self._rule, self._state, len(self._waiting))
        self.record.ledger["in_flight"] += len(self._waiting)
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = self._shard.final_model()
        return self.record

    def _open_permitted_gates(self, steps: Iterable[Step]) -> None:
        """Let those of these steps start that the rule permits, and those that have started before."""
        steps, state, may_start = list(steps), self._state, self._rule.may_start
        if not any(step in self._started or may_start(state, step[0]) for step in steps):
            return  # as with nearly every push to a barrier: all workers wait, and none may start
        for step in steps:
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

    def _discard_steps_of(self, worker: int) -> None:
        """Count the steps that a dead worker started as lost, and answer its pulls with None."""
        for step in [step for step in self._started if step[0] == worker]:
            del self._started[step]
            self.record.ledger["lost"] += 1
        for step in [step for step in self._gates if step[0] == worker]:
            self._gates.pop(step).set_result(None)

    async def _stop_awaiting_paused(self) -> list[Update]:
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
            updates += await self._take_decisions(worker, *self._rule.on_leave(self._state, worker))
        return updates

    async def _take_decisions(self, worker: int, state: ServerState, decisions: tuple) -> list[Update]:
        """Take the rule's decisions; the updates are under way from now on, and begin before the next request's turn."""
        check_decisions(self._rule, self._state, state, decisions, self._waiting)
        updates: list[Update] = []
        for decision in decisions:
            gradients, rate, before = [], self._lr_factor_after(self._decided), self._decided
            for push in decision.pushes:
                gradients.append(self._waiting.pop(push))
                self._decided += gradients[-1].samples
            if isinstance(decision, Apply):
                decision = decision if rate == 1 else replace(decision, rate=rate * decision.rate)
                done = asyncio.get_running_loop().create_future()
                updates.append(Update(decision, gradients, self._state.step + len(updates), worker, done))
            else:
                self.record.ledger["dropped"] += len(gradients)
                self.record.unused += [(gradient.batch, "dropped") for gradient in gradients]
                self._dropped += self._decided - before
                self._take_snapshots()
        if updates and self._in_order:
            await _wait_until_done(self._under_way)
        self._under_way += updates
        self._state = state
        if not self._under_way:
            self._open_permitted_gates(self._gates)
        return updates

    async def _apply_with_followups(self, updates: list[Update]) -> None:
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
                self._open_permitted_gates(self._gates)
                updates = await self._stop_awaiting_paused()

    def _log(self, update: Update, start: float) -> None:
        record = self.record
        record.add_span("apply", start, self._site.now(), update.step, update.norm)
        record.extra["row gradients decayed"] += update.decayed
        for gradient, weight in zip(update.gradients, update.decision.weights, strict=True):
            self._samples += gradient.samples
            if gradient.void:
                record.ledger[gradient.void] += 1
                if gradient.void == "dropped":
                    record.unused.append((gradient.batch, "dropped"))
                continue
            record.used.append(gradient.batch)
            record.ledger["applied" if weight == 1 else "decayed"] += 1
            if weight != 1:
                record.unused.append((gradient.batch, "decayed"))
            if weight:
                record.staleness.append((start, update.version - gradient.source.version, gradient.batch))
                record.data_staleness.append((start, max(0, update.step - gradient.token)))
        self._take_snapshots()

    def _take_snapshots(self) -> None:
        """Take the snapshots whose place in the stream is reached; samples of dropped gradients count."""
        self.record.snapshots += map(self._snapshot, pop_reached(self._evals, self._samples + self._dropped))

    def _snapshot(self, point: EvalPoint) -> ModelSnapshot:
        return self._shard.snapshot(point, self._site.now(), self._samples)


async def _wait_until_done(updates: Iterable[Update]) -> None:
    if waiting := [update.done for update in updates]:
        await asyncio.wait(waiting)


def server_can_return(plan: Plan, rule: ServerRule, holds: frozenset[str]) -> bool:
    """Whether a server of this rule comes back: it holds nothing but rows that outlive its process."""
    kept = plan.store.shared_memory and plan.store.journal and plan.gradients
    return kept and holds == {"rows"} and not (rule.compensate or rule.cache_steps or plan.server_bag_sizes)


class ReturningServer(ParameterServer):
    """A server of rows in shared memory, which comes back inside a run (Persia, Section 4.2.4).

    Rows in shared memory outlive the server's process. At the end of each turn the server writes everything else that it needs
    into a note next to its rows, and the next process continues from that note. Gradients that the dead process had taken and
    not brought into its rows are lost, and counted. Callers make unanswered calls again: a step that has started keeps its
    token, and a gradient that was taken is not taken twice."""

    noted = "_state", "_members", "_samples", "_dropped", "_decided"

    def __init__(self, site: Site, plan: Plan, rule: ServerRule, number: int, holds: frozenset[str]):
        tables = site.persistent_object("rows", plan.tables)
        super().__init__(site, plan, rule, number, holds, tables)
        self._lock = _NoteWritingLock(self._note_end_of_turn)
        self._notes = RecoveryLog(next(iter(tables.values())).segment.folder)
        kept = self._notes.read()
        self.attached = kept is not None and all(table.attached for table in tables.values())
        """Whether this process found the rows and the note of the one before."""
        if kept is not None:
            self._continue_from_notes(*kept)
        self._note_end_of_turn()

    def _note_end_of_turn(self) -> None:
        log = {each.name: getattr(self.record, each.name) for each in fields(self.record)}
        step = self._state.step
        state = {name: getattr(self, name) for name in self.noted} | {
            # A step whose parameters were read since the last note read them about then.
            "started": [(key, each.token, each.lead, each.version or step) for key, each in self._started.items()],
            "waiting": [(push, gradient.samples) for push, gradient in self._waiting.items()],
            "under way": sum(len(update.gradients) for update in self._under_way),
            "counters": {name: value for name, value in log.items() if isinstance(value, Counter)},
        }
        self._notes.write(state, {name: value for name, value in log.items() if isinstance(value, list)})

    def _continue_from_notes(self, state: dict[str, Any], lists: dict[str, list]) -> None:
        for name in self.noted:
            setattr(self, name, state[name])
        self._started = {step: StepInput(*numbers) for step, *numbers in state["started"]}
        for push, samples in state["waiting"]:
            self._waiting[push] = Gradient(push.worker, push.token, push.batch, samples, void="lost")
        for name, value in (state["counters"] | lists).items():
            setattr(self.record, name, value)
        pop_reached(self._evals, self._samples + self._dropped)
        self._shard.version = self._state.step
        self.record.ledger["lost"] += state["under way"]
        self.record.extra["servers attached again"] += 1
        self.record.extra["gradients lost at servers"] += state["under way"] + len(state["waiting"])


class _NoteWritingLock(asyncio.Lock):
    """Notes what a turn came to before the next one begins; a turn that a death ends is as if it had never begun."""

    def __init__(self, note):
        super().__init__()
        self._note_end_of_turn = note

    async def __aexit__(self, kind, *error) -> None:
        if kind is None:
            self._note_end_of_turn()
        await super().__aexit__(kind, *error)


class RecoveryLog:
    """A state and lists that only grow, in a private folder. A process that is killed leaves the last `write` whole."""

    def __init__(self, folder: Path):
        self._state, self._log = folder / "state", open(folder / "log", "ab", buffering=0)  # noqa: SIM115
        self._lengths: dict[str, int] = {}

    def write(self, state: dict[str, Any], lists: dict[str, list]) -> None:
        grown = {name: each[self._lengths.get(name, 0) :] for name, each in lists.items()}
        if any(grown.values()):
            self._log.write(pickle.dumps(grown))
            self._lengths = {name: len(each) for name, each in lists.items()}
        new = self._state.with_name("new")
        new.write_bytes(pickle.dumps((state, self._log.tell())))
        new.replace(self._state)

    def read(self) -> tuple[dict[str, Any], dict[str, list]] | None:
        """The last state and its lists; None if nothing was written."""
        if not self._state.exists():
            return None
        state, end = pickle.loads(self._state.read_bytes())
        self._log.truncate(end)
        self._log.seek(end)
        lists: dict[str, list] = {}
        with open(self._log.name, "rb") as log:
            while log.tell() < end:
                for name, each in pickle.load(log).items():
                    lists[name] = lists.get(name, []) + each
        self._lengths = {name: len(each) for name, each in lists.items()}
        return state, lists


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of one rule."""

    handles: tuple[Handle, ...]
    holds: frozenset[str]

    def parts_by_name(self) -> dict[str, Handle]:
        """The servers by names that are unique in the run."""
        return {f"{'+'.join(sorted(self.holds))}-server{shard}": handle for shard, handle in enumerate(self.handles)}


def check_cache(rule: ServerRule, plan: Plan) -> None:
    """Refuse a cache where a worker's copy would not be what its gradients are computed from."""
    if not isinstance(rule.cache_steps, int) or rule.cache_steps < 0:
        raise BadOption(f"{rule.name}: cache_steps must be a number of steps, 0 or more, not {rule.cache_steps!r}")
    if rule.cache_steps and (rule.compensate or rule.pull_ahead or plan.embedding_workers or plan.server_bag_sizes):
        raise BadOption(
            f"{rule.name}: its workers train on a cached copy, which goes with none of compensate, pull_ahead, "
            "embedding_workers and store.pooling='server'"
        )


async def open_servers(
    world: World, plan: Plan, rule: ServerRule, holds: Iterable[str], model: ModelState | None = None
) -> Servers:
    """Host one server on each server node, holding "dense", "rows" or both."""
    check_cache(rule, plan)
    holds = frozenset(holds)
    nodes = range(plan.servers)
    back = server_can_return(plan, rule, holds)
    kind = ReturningServer if back else ParameterServer
    hosted = (world.host(kind, plan, rule, number, holds, node=f"server{number}", returns=back) for number in nodes)
    servers = Servers(tuple(await asyncio.gather(*hosted)), holds)
    if model:
        shares = (model.shard(number, plan.placement, holds) for number in nodes)
        await asyncio.gather(*(each.warm_start(*share) for each, share in zip(servers.handles, shares, strict=True)))
    return servers
