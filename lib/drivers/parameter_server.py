"""Parameter servers: the part that holds one server's share of the parameters and follows a server rule."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Site, World
from lib.cluster.spec import Work
from lib.drivers.model_state import ModelState
from lib.drivers.plan import Plan
from lib.drivers.record import Marks, Record, Snapshot
from lib.protocols.server_rule import Apply, Drop, Push, ServerRule
from lib.store.placement import Partition, Uniform
from lib.store.rows import Rows
from lib.store.table.kernels import combine


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a worker gets before a step."""

    token: int
    waited: float
    """Seconds at the gate."""
    dense: np.ndarray | None
    rows: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a worker sends after a step; without arrays where the batch was skipped."""

    push: Push
    samples: int
    dense: np.ndarray | None
    rows: dict[str, tuple[np.ndarray, np.ndarray]]
    """Table -> ids and their rows' gradients."""
    void: bool = False


class ParameterServer:
    """One server's share of the parameters, its rule's state and the gradients that wait for their update."""

    def __init__(self, site: Site, plan: Plan, rule: ServerRule, shard: int, holds: frozenset[str]):
        self._site, self._plan, self._rule, self._shard = site, plan, rule, shard
        self._state = rule.init(plan.workers)
        self._waiting: dict[Push, Gradient] = {}
        self._under_way: Counter[int] = Counter()
        """Steps that each worker has started and not pushed."""
        self._losses: Counter[int] = Counter()
        self._turn = asyncio.Condition()
        start = plan.start(site) if "dense" in holds else np.empty(0, np.float32)
        self._partition = Partition(start.size, Uniform(shards=plan.servers))
        self._dense = plan.dense_store(start[self._partition.slice(shard)]) if "dense" in holds else None
        self._tables = plan.tables() if "rows" in holds else {}
        self._marks = Marks(plan.marks)
        self._samples = 0
        ids = plan.evaluation_ids()
        owned = {table: self._partition.split(table, ids[table])[shard] for table in self._tables}
        self._evaluated = {table: (positions, ids[table][positions]) for table, positions in owned.items()}
        self.record = Record(site.node, [] if plan.trace else None)

    async def inherit(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with what another protocol has trained."""
        if self._dense:
            self._dense.load(dense)
        for name, table in self._tables.items():
            table.load(rows[name])

    async def pull(self, worker: int, ids: dict[str, np.ndarray]) -> Pulled | None:
        """The parameters, once the rule lets the worker start, with the token of its step."""
        asked, incarnation = self._site.now(), self._losses[worker]
        async with self._turn:
            await self._turn.wait_for(
                lambda: self._losses[worker] > incarnation or self._rule.may_start(self._state, worker)
            )
            if self._losses[worker] > incarnation:
                return None  # whoever asked is dead
            self._state, token = self._rule.on_start(self._state, worker)
            self._under_way[worker] += 1
            self.record.ledger["started"] += 1
        waited = self._site.now() - asked
        dense, rows = await self._site.compute(self._reading(ids), self._read, ids)
        return Pulled(token, waited, dense, rows)

    async def push(self, gradient: Gradient) -> None:
        async with self._turn:
            worker = gradient.push.worker
            if not self._under_way[worker]:  # it was taken for lost, and so was this
                return
            self._under_way[worker] -= 1
            self._waiting[gradient.push] = gradient
            await self._carry_out(*self._rule.on_push(self._state, gradient.push))

    async def leave(self, worker: int, lost: bool = False) -> None:
        """A worker has come to the end of its data, or is lost with all that it has started."""
        async with self._turn:
            if lost:
                self._losses[worker] += 1
                self.record.ledger["lost"] += self._under_way.pop(worker, 0)
            await self._carry_out(*self._rule.on_leave(self._state, worker))

    async def join(self, worker: int) -> int:
        """A worker that was lost is there again; the step that is its next."""
        async with self._turn:
            self._state = self._rule.on_join(self._state, worker)
            self._turn.notify_all()
            return self._state.clocks[worker]

    async def save(self) -> dict[str, Any]:
        """Everything between two calls; the rule's state and its gradients in flight are one cut, since updates end at once."""
        return {
            "rule": self._state,
            "waiting": list(self._waiting.values()),
            "dense": self._dense.export() if self._dense else None,
            "tables": {name: table.dump() for name, table in self._tables.items()},
            "samples": self._samples,
            "record": self.record,
        }

    async def load(self, state: dict[str, Any]) -> None:
        self._state = state["rule"]
        self._waiting = {gradient.push: gradient for gradient in state["waiting"]}
        if self._dense:
            self._dense.load(state["dense"])
        for name, table in self._tables.items():
            table.restore(state["tables"][name])
        self._samples = state["samples"]
        self._marks.skip(self._samples)
        self.record.become(state["record"])

    async def report(self) -> Record:
        self.record.ledger["in_flight"] += len(self._waiting)
        self.record.snapshots.append(self._snapshot())
        dense = {"dense": {self._shard: self._dense.export()}} if self._dense else {}
        self.record.final = {**dense, "rows": {name: table.export() for name, table in self._tables.items()}}
        return self.record

    async def _carry_out(self, state, decisions) -> None:
        """The rule's state moves on when its updates are in the store, so that a gate never opens too early."""
        for decision in decisions:
            if isinstance(decision, Drop):
                for push in decision.pushes:
                    del self._waiting[push]
                self.record.ledger["dropped"] += len(decision.pushes)
            else:
                await self._apply(decision)
        self._state = state
        self._turn.notify_all()

    async def _apply(self, decision: Apply) -> None:
        start, step = self._site.now(), self._state.step
        gradients = [self._waiting.pop(push) for push in decision.pushes]
        self._account(decision, gradients, step)
        # Sums run in the order of the batches: the set of gradients decides the bits, not the order of their arrival.
        order = sorted(range(len(gradients)), key=lambda k: gradients[k].push.batch)
        weighted = [(gradients[k], decision.weights[k]) for k in order if not gradients[k].void]
        if weighted:
            work = Work(bytes=sum(_size(gradient) for gradient, _ in weighted))
            await self._site.compute(work, self._update, weighted, decision.divisor, step)
        self.record.span("apply", start, self._site.now(), step)
        self._samples += sum(gradient.samples for gradient in gradients)
        if self._marks.crossed(self._samples):
            self.record.snapshots.append(self._snapshot())

    def _account(self, decision: Apply, gradients: list[Gradient], step: int) -> None:
        for gradient, weight in zip(gradients, decision.weights, strict=True):
            if gradient.void:
                self.record.ledger["dropped"] += 1
                continue
            self.record.ledger["applied" if weight == 1 else "decayed"] += 1
            if weight:
                self.record.staleness.append((self._site.now(), max(0, step - gradient.push.token)))

    def _update(self, weighted: list[tuple[Gradient, float]], divisor: float, step: int) -> None:
        if not self._plan.gradients:
            if self._dense is not None:
                self._dense.apply(weighted[0][0].dense)
            return
        if self._dense is not None and any(weight for _, weight in weighted):
            mean = _mean([(gradient.dense, weight) for gradient, weight in weighted], divisor)
            self.record.norms[step] = float(np.linalg.norm(mean))
            self._dense.apply(mean)
        for name in self._tables:
            self._update_rows(
                name, [(gradient, weight) for gradient, weight in weighted if name in gradient.rows], divisor, step
            )

    def _update_rows(self, name: str, weighted: list[tuple[Gradient, float]], divisor: float, step: int) -> None:
        table = self._tables[name]
        blocks = [gradient.rows[name] for gradient, _ in weighted]
        if len(blocks) == 1 and divisor == 1 and weighted[0][1] == 1:
            table.push(*blocks[0], step + 1)
            return
        weights = [self._row_weights(table, gradient, name, weight) for gradient, weight in weighted]
        ids, grads, weights = (
            np.concatenate(parts) for parts in ([b[0] for b in blocks], [b[1] for b in blocks], weights)
        )
        distinct, sums, met = combine(ids, grads, weights)
        sums /= met[:, None].astype(np.float32) if self._rule.rows_divided_by == "met" else np.float32(divisor)
        if not weights.all():
            self.record.extra["row gradients decayed"] += int((weights < 1).sum())
            alive = np.isin(distinct, ids[weights > 0])
            distinct, sums = distinct[alive], sums[alive]
        table.push(distinct, sums, step + 1)

    def _row_weights(self, table, gradient: Gradient, name: str, weight: float) -> np.ndarray:
        ids = gradient.rows[name][0]
        weights = self._rule.row_weights(gradient.push.token, table.stamps(ids))
        return np.full(ids.size, weight, np.float32) if weights is None else weights

    def _reading(self, ids: dict[str, np.ndarray]) -> Work:
        dense = self._dense.nbytes if self._dense else 0
        return Work(bytes=2 * (dense + sum(4 * self._tables[name].dim * ids[name].size for name in self._tables)))

    def _read(self, ids: dict[str, np.ndarray]) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
        dense = self._dense.pull() if self._dense else None
        return dense, {name: table.pull(ids[name]) for name, table in self._tables.items()}

    def _snapshot(self) -> Snapshot:
        dense = {self._shard: self._dense.pull()} if self._dense else {}
        rows = {name: (positions, self._tables[name].peek(ids)) for name, (positions, ids) in self._evaluated.items()}
        return Snapshot(self._site.now(), self._samples, dense, rows)


def _mean(weighted: list[tuple[np.ndarray, float]], divisor: float) -> np.ndarray:
    if len(weighted) == 1 and weighted[0][1] == divisor:
        return weighted[0][0]
    total = np.zeros_like(weighted[0][0])
    for dense, weight in weighted:
        if weight:
            total += dense if weight == 1 else np.float32(weight) * dense
    total /= np.float32(divisor)
    return total


def _size(gradient: Gradient) -> int:
    dense = 0 if gradient.dense is None else gradient.dense.nbytes
    return 3 * (
        dense + sum(grads.nbytes for _, grads in gradient.rows.values())
    )  # read, sum, and write where it belongs


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of one rule, as `open_servers` put them up."""

    handles: tuple[Handle, ...]
    holds: frozenset[str]

    def named(self) -> dict[str, Handle]:
        """The servers by names that no others of the run has."""
        return {f"{'+'.join(sorted(self.holds))}-server{shard}": handle for shard, handle in enumerate(self.handles)}


async def open_servers(
    world: World, plan: Plan, rule: ServerRule, holds: Iterable[str], model: ModelState | None = None
) -> Servers:
    """One server on each server node, holding "dense", "rows" or both."""
    holds = frozenset(holds)
    nodes = range(plan.servers)
    hosted = (world.host(ParameterServer, plan, rule, shard, holds, node=f"server{shard}") for shard in nodes)
    servers = Servers(tuple(await asyncio.gather(*hosted)), holds)
    if model:
        placement = Uniform(shards=plan.servers)
        await asyncio.gather(
            *(servers.handles[shard].inherit(*model.shard(shard, placement, holds)) for shard in nodes)
        )
    return servers
