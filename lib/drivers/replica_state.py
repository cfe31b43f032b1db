"""One worker's own parameters: dense vector and optimiser, what its rule remembers, and rows where no server has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import numpy as np

from lib.cluster.base import Site
from lib.cluster.spec import Work
from lib.drivers.plan import Plan
from lib.drivers.record import Record
from lib.protocols.mixing import Background, Mix
from lib.store.blank import BlankDense
from lib.store.dense import DenseStore
from lib.store.rows import Rows


class Gate:
    """Up to so many at once, or one alone; in the order of asking."""

    def __init__(self, permits: int):
        self._permits = permits
        self.shared = asyncio.Semaphore(permits)
        self._lone = asyncio.Lock()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._lone:
            held = 0
            try:
                while held < self._permits:
                    await self.shared.acquire()
                    held += 1
                yield
            finally:
                for _ in range(held):
                    self.shared.release()


class Replica:
    """Guaranteed: a mix and a local update never both start from the same values."""

    def __init__(self, site: Site, plan: Plan, record: Record, rows: bool):
        """`rows`: they are here, and not on servers."""
        self._site, self._plan, self._rule, self._record = site, plan, plan.protocol.dense, record
        start = plan.start(site)
        self.size = start.size
        self._dense = plan.dense_store(start, site.device)
        self._memory = self._rule.init(start)
        self.tables = plan.tables() if rows else {}
        self._gate = Gate(self._rule.worker_threads)
        # A shadow thread's merges are beside the cores that train.
        self._modelled = not isinstance(self._rule.when, Background)
        self.steps = self.samples = 0

    @property
    def values(self) -> Any:
        """The live vector."""
        return self._dense.values

    def pull(self) -> np.ndarray:
        """A copy of the vector."""
        return self._dense.pull()

    def model(self) -> np.ndarray:
        """The dense parameters that it stands for."""
        return self._rule.stands_for(self._memory, self._dense.pull())

    async def update(self, gradient: Any, batch: int) -> None:
        """One local step of the optimiser."""
        async with self._gate.shared:
            start = self._site.now()
            await self._site.compute(Work(bytes=3 * self._dense.nbytes), self._dense.apply, gradient)
            self._record.span("apply", start, self._site.now(), batch)

    def message(self, round: int) -> np.ndarray:
        """What it sends in a mix."""
        return self._rule.send(self._memory, self._dense.pull(), round)

    async def merge(self, mix: Mix) -> None:
        async with self._gate.alone():
            work = Work(bytes=3 * mix.theirs.nbytes) if self._modelled else None
            await self._site.compute(work, self._merge, mix)

    async def absorb(self, theirs: np.ndarray) -> np.ndarray:
        """Take in another worker's message, beside the cores that train; the answer."""
        async with self._gate.alone():
            return await self._site.compute(None, absorb, self._plan, self._dense, theirs)

    def inherit(self, dense: dict[str, np.ndarray], rows: dict[str, Rows]) -> None:
        """Begin with what another protocol has trained."""
        self._dense.load(dense)
        self._memory = self._rule.init(dense["values"])
        for name, table in self.tables.items():
            table.load(rows[name])

    async def copy(self) -> dict[str, Any]:
        """What another worker starts from."""
        async with self._gate.alone():
            return deepcopy(self.save())

    def save(self) -> dict[str, Any]:
        return {
            "dense": self._dense.export(),
            "tables": {name: table.dump() for name, table in self.tables.items()},
            "memory": self._memory,
            "steps": self.steps,
            "samples": self.samples,
        }

    def load(self, state: dict[str, Any]) -> None:
        self._dense.load(state["dense"])
        for name, table in self.tables.items():
            table.restore(state["tables"][name])
        self._memory, self.steps, self.samples = state["memory"], state["steps"], state["samples"]

    def final(self) -> dict[str, Any]:
        return {
            "replica": self._dense.export(),
            "replica rows": {name: table.export() for name, table in self.tables.items()},
        }

    def _merge(self, mix: Mix) -> None:
        if not self._plan.gradients:
            return
        self._memory, merged = self._rule.merge(self._memory, self._dense.pull(), mix)
        self._dense.assign(merged)


def absorb(plan: Plan, dense: DenseStore | BlankDense, theirs: np.ndarray) -> np.ndarray:
    """Change a copy by what a worker brought; what the worker is told."""
    if not plan.gradients:
        return theirs
    changed, answer = plan.protocol.dense.absorb(dense.pull(), theirs)
    dense.assign(changed)
    return answer
