"""Sync servers: the copy in the middle, a part of it on each, of rules that have one."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np

from lib.cluster.base import Handle, Site, World
from lib.cluster.spec import Work
from lib.drivers.replicas.replica_state import update_centre
from lib.drivers.run.model_state import ModelState
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import EvalPoint, PartLog, Snapshot
from lib.options.checked import checked
from lib.protocols.replica_rule import ReplicaRule
from lib.store.checkpointed import Part
from lib.store.dense import DenseStore
from lib.store.optim import Optimizer
from lib.store.phantom import PhantomDense


def parts(size: int, servers: int) -> list[slice]:
    """Which part of a vector each of them holds."""
    ends = [size * server // servers for server in range(servers + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def _optimizer(rule: ReplicaRule) -> Optimizer | None:
    """What the rule says steps its centre."""
    made = checked(Optimizer | None, rule.exchange.optimizer, rule.name, "optimizer")
    if made:
        made.check_dense()
    return made


class SyncServer(Part):
    """One part of the copy."""

    in_checkpoint = ("_copy", "_samples", "_evals", "record")

    def __init__(self, site: Site, plan: Plan, server: int):
        self._site, self._plan, self._server = site, plan, server
        start = plan.start(site)
        self._part = parts(start.size, plan.protocol.dense.exchange.servers)[server]
        self._optimizer = _optimizer(plan.protocol.dense)
        self._copy = plan.dense_store(start[self._part], optimizer=self._optimizer)
        self._samples = [0] * plan.workers
        self._evals = plan.eval_schedule()
        self.record = PartLog(site.node, [] if plan.trace else None)

    async def inherit(self, values: np.ndarray) -> None:
        self._copy.assign(values[self._part])

    async def exchange(self, rank: int, samples: int, theirs: np.ndarray) -> np.ndarray:
        """The answer to a worker that has trained on so many samples, once the copy has taken its message in."""
        start = self._site.now()
        take = self._stepped if self._optimizer else update_centre
        answer = await self._site.compute(Work(bytes=3 * theirs.nbytes), take, self._plan, self._copy, theirs)
        self.record.span("absorb", start, self._site.now(), rank)
        self._samples[rank] = samples
        self.record.snapshots += map(self._snapshot, self._evals.pop_reached(sum(self._samples)))
        return answer

    async def report(self, end: EvalPoint) -> PartLog:
        self.record.snapshots.append(self._snapshot(end))
        self.record.final = {"centre": self._copy.pull()}
        return self.record

    @staticmethod
    def _stepped(plan: Plan, copy: DenseStore | PhantomDense, gradient: np.ndarray) -> np.ndarray:
        """The copy after a step of its optimiser."""
        copy.apply(gradient)
        return copy.pull() if plan.gradients else gradient

    def _snapshot(self, point: EvalPoint) -> Snapshot:
        return Snapshot(point, self._site.now(), sum(self._samples), {self._server: self._copy.pull()})


async def open_sync_servers(world: World, plan: Plan, model: ModelState | None) -> tuple[Handle, ...]:
    """One on each node "sync0", "sync1", ..."""
    servers = range(plan.protocol.dense.exchange.servers)
    handles = await asyncio.gather(*(world.host(SyncServer, plan, server, node=f"sync{server}") for server in servers))
    if model:
        await asyncio.gather(*(handle.inherit(model.dense["values"]) for handle in handles))
    return tuple(handles)
