"""Where in a worker's step it mixes."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lib.cluster.base import Site
from lib.data.batch import Batch
from lib.drivers.replicas.exchanges import Way
from lib.drivers.replicas.overlap import Overlap
from lib.drivers.replicas.replica_state import Replica
from lib.models.flat import StepResult
from lib.protocols.replica_rule import ReplicaRule


@dataclass(slots=True)
class Count:
    """Steps of those who mix together: of all threads, or of one."""

    begun: int = 0
    done: int = 0
    mixed_at: int = 0
    """Steps done at the last mix."""
    since: float = 0.0
    """When that was, or when training began or went on."""


class Mixing(Protocol):
    """What a step needs of the worker that makes it."""

    site: Site
    rule: ReplicaRule
    replica: Replica
    way: Way
    buckets: list[slice]
    overlapped: bool
    new: bool

    def standing(self) -> AbstractAsyncContextManager[None]: ...

    async def mix(self, count: Count, label: int, asked: asyncio.Task | None = None) -> None: ...

    def mixed(self, count: Count, label: int, start: float) -> None: ...


class NoMix:
    """A step without a mix; a mix does its part before the step, beside the computation, or after the step."""

    overlap: Overlap | None = None
    """Takes parts of the gradient while the rest is being computed."""
    own_gradient = True
    """Whether the worker's own gradient updates its replica."""

    def __init__(self, worker: Mixing, batch: Batch, count: Count):
        self._worker, self._batch, self._count = worker, batch, count
        self.rate = worker.replica.rate()
        """What the step's learning rates are multiplied by."""

    async def before(self) -> None:
        """The step is about to begin."""

    def values(self) -> Any:
        """The parameters that the gradient is computed at."""
        return self._worker.replica.values

    async def computed(self) -> None:
        """The gradient is there, and has changed nothing."""

    async def after(self, result: StepResult | None) -> None:
        """The replica has been updated."""

    def stop(self) -> None:
        """The step will not come to its end."""

    async def _mix(self, asked: asyncio.Task | None = None) -> None:
        async with self._worker.standing():
            await self._worker.mix(self._count, self._batch.index, asked)


class Before(NoMix):
    """What others have is there before the forward pass."""

    async def before(self) -> None:
        await self._mix()


class Beside(NoMix):
    """The gradient is that of the parameters before the mix."""

    async def before(self) -> None:
        self._values = self._worker.replica.pull()
        self._mixing = asyncio.ensure_future(self._worker.mix(self._count, self._batch.index, self._worker.way.ahead()))

    def values(self) -> np.ndarray:
        return self._values

    async def computed(self) -> None:
        await self._mixing

    def stop(self) -> None:
        self._mixing.cancel()


class After(NoMix):
    """The group is asked for when the step begins, by a worker of one thread: others cannot say which step ends next."""

    async def before(self) -> None:
        self._asked = self._worker.way.ahead() if self._worker.rule.worker_threads == 1 else None

    async def after(self, result: StepResult | None) -> None:
        await self._mix(self._asked)


class OfGradients(NoMix):
    """The replica is updated by the group's mean gradient; one that had to be left out counts as zero."""

    own_gradient = False

    async def before(self) -> None:
        self._asked = self._worker.way.ahead()
        if self._worker.new:
            # From its first push on a barrier at the rows' servers counts on this worker, and so must its group: one that
            # takes it in later would wait for others, whom that barrier holds until its next push.
            await self._asked
            self._worker.new = False
        if self._worker.overlapped and len(self._worker.buckets) > 1:
            self.overlap = Overlap(self._worker.site, self._worker.buckets, self._asked)

    async def after(self, result: StepResult | None) -> None:
        worker, label = self._worker, self._batch.index
        mine = result.dense.cpu().numpy() if result else np.zeros(worker.replica.size, np.float32)
        start, mean = await worker.way.mean(label, self._asked, mine, self.overlap)
        await worker.replica.update(mean, label, self.rate)
        worker.mixed(self._count, label, start)

    def stop(self) -> None:
        if self.overlap:
            self.overlap.stop()


PLACES: dict[str, type[NoMix]] = {"before": Before, "beside": Beside, "after": After}
