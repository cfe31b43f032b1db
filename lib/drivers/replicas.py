"""Copies of the parameters: a worker's own, and those of the sync servers.

A replica has a dense vector and optimiser, what its rule remembers, and rows where no server has them."""

import asyncio
import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np

from lib.cluster.base import Handle, Site, World
from lib.cluster.spec import Work
from lib.drivers.model_state import ModelState
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint, ModelSnapshot, PartLog, pop_reached
from lib.drivers.rule_checks import check_pair, explain_refused_writes, readonly, without_views
from lib.options.checked import checked
from lib.protocols import statistics
from lib.protocols.mixing import Background, Loop, Mean, Mix
from lib.store.checkpoint import Checkpointed, Part
from lib.store.dense import DenseStore, PhantomDense
from lib.store.optim import Optimizer
from lib.store.rows import Rows, concat, dense_slice, phantom


class Replica(Checkpointed):
    """A worker's copy of the model. Updates and mixes do not block each other: each is atomic, and a mix adds its change of the
    state that it was computed from. Guaranteed: no mix undoes a concurrent local update, and no update undoes a mix.

    Its vector is that of `FlatModel`. The rule sees the parameters; what a mix makes of the running statistics behind them is one
    word of the rule's."""

    in_checkpoint = ("_dense", "tables", "_memory", "_mixed", "steps", "samples")

    def __init__(self, site: Site, plan: Plan, record: PartLog, parameters: int, rows: bool):
        """`rows`: they are here, and not on servers."""
        self._site, self._plan, self._rule, self._record = site, plan, plan.protocol.dense, record
        start = plan.initial_parameters(site)
        self.size, self._running = parameters, start.size - parameters
        self._dense = plan.dense_store(start, site.device, parameters)
        self._memory = self._rule.init(readonly(self._dense.pull()[: self.size]))
        self.tables = plan.tables(device=plan.row_device(site.device)) if rows else {}
        # A shadow thread's merges take no time of the cores that train.
        self._modelled = not isinstance(self._rule.when, Background)
        self._together = self._rule.exchange.together
        loop = isinstance(self._rule.when, Loop) and not self._rule.when.overlap
        self._stands = loop and isinstance(self._rule.exchange, Mean)
        """Nothing is written between a message and its merge, and the message is not kept."""
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
        return _concatenate(self._rule.as_model(self._memory, readonly(mine[: self.size])), mine[self.size :])

    def distance_since_mix(self) -> float | None:
        """How far its parameters are from what the last mix made of them; None: no rule needs it."""
        if self._mixed is None or not self._plan.gradients:
            return None if self._mixed is None else math.inf
        return float(np.linalg.norm((self._dense.pull() - self._mixed)[: self.size]))

    def rate(self) -> float:
        """What the learning rates of its next step are multiplied by: as far in the pass as if all made as many steps as it."""
        return self._plan.lr_factor_after(self.steps * self._plan.workers * self._plan.workload.batch_size)

    async def update(self, gradient: Any, batch: int, rate: float) -> None:
        """One local step of the optimiser."""
        start = self._site.now()
        await self._site.compute(Work(bytes=3 * self._dense.nbytes), self._dense.apply, gradient, rate)
        self._record.add_span("apply", start, self._site.now(), batch)
        self._record.ledger["held"] += 1

    def add_batch_statistics(self, change: Any) -> None:
        """Move the running statistics as the forward pass of a batch moved them."""
        self._dense.shift_statistics(change)

    def statistics_to_average(self) -> np.ndarray:
        """What it sends of its running statistics where gradients are averaged."""
        own = self._dense.pull()[self.size :] if self._running else np.empty(0, np.float32)
        return statistics.statistics_to_average(own, self._rule.statistics or "none")

    def set_mean_statistics(self, theirs: np.ndarray) -> None:
        """Take the mean of all workers' running statistics."""
        if self._plan.gradients:
            own = self._dense.pull()[self.size :]
            self._dense.shift_statistics(statistics.statistics_after_mix(own, theirs, self._rule.statistics) - own)

    def copy_with_counts(self) -> tuple[np.ndarray, int, int]:
        """What a message may be made of later: the vector, how often it was written to, and gradients of its own in it."""
        return *self._dense.copy_with_version(), self._record.ledger["held"]

    def message(self, round: int, seen: tuple[np.ndarray, int, int] | None = None) -> np.ndarray:
        """What it sends in a mix, of the replica as it is or as it was seen."""
        if seen is None:
            now = self._dense.view_with_version() if self._stands else self._dense.copy_with_version()
            seen = *now, self._record.ledger["held"]
        mine, writes, self._included[round] = seen
        if self._together:  # no other message is made before this one is merged
            self._sent = mine, writes
        with explain_refused_writes(self._rule, "send"):
            sent = self._rule.send(self._memory, readonly(mine[: self.size]), round)
        if not self._plan.gradients:
            sent = phantom(*sent.shape, kind=sent.dtype)
        running = statistics.statistics_to_average(mine[self.size :], self._rule.statistics)
        names = self._rule.averaged_state(round)
        return _concatenate(sent, running, self._dense.state(names)) if names else _concatenate(sent, running)

    async def merge(self, mix: Mix) -> None:
        work = Work(bytes=3 * mix.theirs.nbytes) if self._modelled else None
        await self._site.compute(work, self._merge, mix)
        included = self._included.pop(mix.round, 0)
        if len(mix.members) != 1:  # in a group of one, no other replica has them
            self._mark_held_by_others(included)

    async def answer_peer(self, theirs: np.ndarray) -> np.ndarray:
        """Take in another worker's message, without time of the cores that train, and return the answer."""
        held = self._record.ledger["held"]
        answer = await self._site.compute(None, update_centre, self._plan, self._dense, theirs)
        self._mark_held_by_others(held)
        return answer

    def _mark_held_by_others(self, up_to: int) -> None:
        """Raise to `up_to` the count of its gradients that other replicas have too: they are not lost with this one."""
        self._record.ledger["heard"] = max(self._record.ledger["heard"], up_to)

    def warm_start(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with what another protocol has trained."""
        self._dense.load(dense)
        self._memory = self._rule.init(readonly(self._dense.pull()[: self.size]))
        self._mixed = self._dense.pull() if self._rule.should_mix else None
        for name, table in self.tables.items():
            table.load(rows[name])

    def take_over(self, copy: dict[str, Any]) -> None:
        """Be the replica of a worker that was lost and is there again, with what another `copy` holds."""
        self.restore({**copy, "samples": 0})
        self._memory = self._rule.memory_on_rejoin(self._memory, readonly(self._dense.pull()[: self.size]))

    def final_model(self) -> dict[str, Any]:
        return {
            "replica": self._dense.export(),
            "replica rows": {name: table.export() for name, table in self.tables.items()},
        }

    def _merge(self, mix: Mix) -> None:
        if not self._plan.gradients:
            return
        with self._merging:
            mine, writes = self._dense.copy_with_version(self._sent)
            self._sent = None
            with explain_refused_writes(self._rule, "merge"):
                merged = self._merge_by_rule(mine, mix)
            if updated := self._dense.merge_and_count_others(mine, writes, merged):
                self._record.extra["updates during a merge"] += updated
            if self._mixed is not None:
                self._mixed = merged.copy()

    def _merge_by_rule(self, mine: np.ndarray, mix: Mix) -> np.ndarray:
        """The rule's merge of the parameters, and what a word of the rule's makes of the running statistics behind them. The rule
        may keep what it is given no longer than this."""
        brought = 0 if self._rule.statistics == "none" else self._running
        names = self._rule.averaged_state(mix.round)
        if state := self._dense.state(names).size if names else 0:
            self._dense.set_state(names, mix.theirs[-state:])
        sent, theirs = (readonly(array[: array.size - brought - state]) for array in (mix.sent, mix.theirs))
        given = replace(mix, sent=sent, theirs=theirs)
        self._memory, merged = check_pair(
            self._rule,
            "merge",
            "memory and replica",
            self._rule.merge(self._memory, readonly(mine[: self.size]), given),
        )
        self._memory = without_views(self._memory, mine)
        if not self._running:
            return merged
        running = mix.theirs[theirs.size : theirs.size + brought]
        return _concatenate(merged, statistics.statistics_after_mix(mine[self.size :], running, self._rule.statistics))


def _concatenate(parameters: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """As one array of the parameters' type."""
    kind = parameters.dtype
    return concat([parameters, *(each if each.dtype == kind else each.astype(kind) for each in others if each.size)])


def update_centre(plan: Plan, centre: DenseStore | PhantomDense, message: np.ndarray) -> np.ndarray:
    """Change a centre by a worker's message, or by a step of the sync servers' optimiser; the answer to the worker."""
    rule = plan.protocol.dense
    if getattr(rule.exchange, "optimizer", None):
        centre.apply(message)
        return centre.pull() if plan.gradients else message
    if not plan.gradients:
        return message
    mine, writes = centre.copy_with_version()
    with explain_refused_writes(rule, "update_centre"):
        answer = rule.update_centre(readonly(mine), readonly(message))
    changed, answer = check_pair(rule, "update_centre", "centre and answer", answer)
    centre.merge_and_count_others(mine, writes, changed)
    return answer


class CentreServer(Part):
    """A part of the copy in the middle, of rules that have one."""

    in_checkpoint = ("_copy", "_samples", "_evals", "record")

    def __init__(self, site: Site, plan: Plan, server: int):
        self._site, self._plan, self._server = site, plan, server
        start = plan.initial_parameters(site)
        rule = plan.protocol.dense
        self._part = dense_slice(start.size, rule.exchange.servers, server)
        optimizer = checked(Optimizer | None, rule.exchange.optimizer, rule.name, "optimizer")
        if optimizer:
            optimizer.check_dense()
        self._copy = plan.dense_store(start[self._part], site.device, optimizer=optimizer)
        self._samples = [0] * plan.workers
        self._evals = [*plan.eval_points]
        self.record = PartLog(site.node, [] if plan.trace else None)

    async def warm_start(self, values: np.ndarray) -> None:
        self._copy.assign(values[self._part])

    async def update_centre(self, rank: int, samples: int, theirs: np.ndarray) -> np.ndarray:
        """The answer to a worker that has trained on so many samples, once the copy has taken its message in."""
        start = self._site.now()
        work = Work(bytes=3 * theirs.nbytes)
        answer = await self._site.compute(work, update_centre, self._plan, self._copy, theirs)
        self.record.add_span("absorb", start, self._site.now(), rank)
        self._samples[rank] = samples
        self.record.snapshots += map(self._snapshot, pop_reached(self._evals, sum(self._samples)))
        return answer

    async def report(self, end: EvalPoint) -> PartLog:
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = {"centre": np.asarray(self._copy.pull())}
        return self.record

    def _snapshot(self, point: EvalPoint) -> ModelSnapshot:
        return ModelSnapshot(point, self._site.now(), sum(self._samples), {self._server: np.asarray(self._copy.pull())})


async def open_sync_servers(world: World, plan: Plan, model: ModelState | None) -> tuple[Handle, ...]:
    """One on each node "sync0", "sync1", ..."""
    servers = range(plan.protocol.dense.exchange.servers)
    hosted = (world.host(CentreServer, plan, server, node=f"sync{server}") for server in servers)
    handles = await asyncio.gather(*hosted)
    if model:
        await asyncio.gather(*(handle.warm_start(model.dense["values"]) for handle in handles))
    return tuple(handles)
