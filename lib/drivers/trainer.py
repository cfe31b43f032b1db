"""A worker's input and its computation: batch and parameters in, gradients out, with the check that they are finite.

Workers share a pass over the data: each batch goes to exactly one of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from lib.cluster.base import Handle, Meeting, Site, World, nbytes
from lib.cluster.spec import Work
from lib.drivers.plan import Plan, split_batches
from lib.drivers.record import PartLog
from lib.errors import BadOption, NotFinite
from lib.store.checkpoint import Checkpointed, Part
from lib.store.rows import concat, phantom
from lib.tasks.flat_model import Batch, CapturedModel, FlatModel, StepResult


@dataclass(frozen=True, slots=True)
class Computation:
    """A worker's computation of a batch, as a controller hears of it."""

    worker: int
    seconds: float
    """The computation alone: no waiting, no network."""
    samples: int


class WorkQueue(Part):
    """The data list of a parameter server: the worker that asks next takes the next batch, so fast workers take more."""

    in_checkpoint = ("_next",)

    def __init__(self, site: Site, batches: int, seconds: float | None = None):
        """`seconds`: so long after the first batch was taken there are no more."""
        self._site, self._seconds, self._first = site, seconds, None
        self._next, self._batches = 0, batches

    async def take(self, until_batch: int) -> int | None:
        """A batch that no other worker has, out of those before the pause at `until_batch`; None if there is none left."""
        if self._next >= min(until_batch, self._batches):
            return None
        if self._seconds is not None:
            now = self._site.now()
            self._first = now if self._first is None else self._first
            if now >= self._first + self._seconds:
                return None
        self._next += 1
        return self._next - 1


class OwnBatches(Checkpointed):
    """Batches that belong to one worker, `stride` apart from the first on: every so-many-th of the pass, or a stretch of it.

    A pause at `until_batch` lets each worker come `until_batch / workers` batches far, so that all make as many steps.
    """

    in_checkpoint = ("_next",)

    def __init__(self, first: int, size: int, stride: int, workers: int):
        self._first, self._size, self._stride, self._workers, self._next = first, size, stride, workers, 0

    async def take(self, until_batch: int) -> int | None:
        """As a queue's."""
        if self._next >= min(self._size, until_batch // self._workers):
            return None
        self._next += 1
        return self._first + (self._next - 1) * self._stride

    def resume_after(self, steps: int, last_taken: int = -1) -> None:
        """Go on as if so many batches had been taken, and all up to `last_taken`, which is one of them or -1."""
        self._next = min(max(steps, (last_taken - self._first) // self._stride + 1), self._size)


def own_batches(kind: str, rank: int, workers: int, batches: int, parts: Sequence[float] = ()) -> OwnBatches:
    """A worker's batches: a stretch of the "stream", or every `workers`-th one."""
    if kind == "stream":
        # Equal stretches one by one: thousands of workers would each make the list of all.
        first, end = (round(batches * each / workers) for each in (rank, rank + 1))
        first, size = split_batches(batches, workers, parts)[rank] if parts else (first, end - first)
        return OwnBatches(first, size, 1, workers)
    return OwnBatches(rank, len(range(rank, batches, workers)), workers, workers)


class Trainer:
    """Makes batches and gradients on one node."""

    def __init__(self, site: Site, plan: Plan, rank: int, record: PartLog, threads: int = 1):
        """`threads`: computations at the same time."""
        self._site, self._plan, self._rank, self.record = site, plan, rank, record
        bags = {} if plan.pooled_bag_sizes else plan.workload.bags()
        kind = CapturedModel if plan.captured else FlatModel
        self._models = [
            site.shared_object(f"model {thread}", lambda: kind(plan.workload.model(plan.seed), site.device, bags))
            for thread in range(threads)
        ]
        """Those that are free now."""
        self.model = self._models[0]
        if self.model.running and plan.protocol.dense.statistics is None:
            raise BadOption(
                f"{plan.protocol.dense.name}: the model's running statistics ({self.model.running[0]!r}) would be no "
                "part of what is exchanged and evaluated; replicas of ds-sync, all-reduce or hybrid have them, and "
                "lib.tasks.layers.BatchNorm does without"
            )
        self._whole = plan.workload.work()
        self._compute = self._call_model if plan.gradients else self._phantom_step
        self._blank = torch.zeros(1).expand(self.model.size)
        self.latest: Computation | None = None
        """The last computation, until it is noted."""

    async def step(
        self, batch: Batch, dense: Any, rows: dict[str, Any], early: OverlappedMean | None = None
    ) -> StepResult | None:
        """The batch's gradients at these parameters; None where they are not finite and the run may skip them.

        `early` gets the dense gradient's buckets before the rest is computed.
        """
        start, batch = self._site.now(), self._plan.renumber_sums(batch) if self._plan.pooled_bag_sizes else batch
        if early:
            step = self._compute, "step", batch, dense, rows, early.buckets
            result = await self._site.compute_in_stages(self._cost(batch), early.shares, early.provide_bucket, *step)
        else:
            result = await self._site.compute(self._cost(batch), self._compute, "step", batch, dense, rows)
        end = self._note_computation(batch, start, result)
        return result if self.accept_result(batch, end, result.loss, result.scores, result.sound) else None

    async def launch(self, batch: Batch, dense: Any, rows: dict[str, Any]) -> StepResult:
        """`step` for a batch and rows that are on the device, whose results stay there until they are noted."""
        start = self._site.now()
        result = await self._site.launch(self._cost(batch), self._compute, "launch", batch, dense, rows)
        self._note_computation(batch, start, result)
        return result

    def accept_result(self, batch: Batch, end: float, loss: float, scores: Any, sound: bool) -> bool:
        """What came of a batch whose computing ended then; whether its gradients are finite, and to be used."""
        if not sound:
            if self._plan.on_nan == "stop":
                raise NotFinite(
                    f"loss {loss} or its gradient is not finite at batch {batch.index} (day {batch.day}) on worker "
                    f"{self._rank}; a smaller learning rate may help, or on_nan='skip' to leave such batches out"
                )
            self.record.extra["not finite"] += 1
            return False
        seen = self._plan.workload.log_loss_and_label_sums(batch.labels, scores) if batch.labels is not None else None
        logloss, positives = seen if seen is not None else (math.nan, math.nan)
        self.record.steps.append((end, batch.index, batch.size, loss, logloss, positives))
        return True

    def _cost(self, batch: Batch) -> Work:
        """The modelled cost of a step: the last batch of a pass may be short."""
        workload = self._plan.workload
        return self._whole if batch.size == workload.batch_size else replace(workload, batch_size=batch.size).work()

    def _note_computation(self, batch: Batch, start: float, result: StepResult) -> float:
        end = self._site.now()
        self._site.note_batch_done(batch.size)
        self.latest = Computation(self._rank, end - start, batch.size)
        self.record.add_span("compute", start, end, batch.index)
        self.record.ledger["issued"] += 1
        self.record.taken.append(batch.index)
        if self._plan.captured:
            self.record.extra["steps captured"] += result.captured
        return end

    def _phantom_step(self, method: str, batch: Batch, dense: Any, _: Any, buckets=(), on_bucket=None) -> StepResult:
        """What a timing run has for gradients."""
        for number, bucket in enumerate(buckets):
            on_bucket(number, phantom(bucket.stop - bucket.start))
        rows = {name: phantom(ids.size, self._plan.dims[name]) for name, ids in batch.ids.items()}
        return StepResult(loss=math.nan, dense=self._blank, rows=rows, scores=None, sound=True)

    def _call_model(self, method: str, batch: Batch, dense: Any, rows: dict[str, Any], *buckets: Any) -> Any:
        """The answer of a model's method."""
        model = self._models.pop()
        try:
            model.load(dense)
            return getattr(model, method)(batch, rows, *buckets)
        finally:
            self._models.append(model)


class BatchSource(Checkpointed):
    """One worker's batches, and how long it waited for them; where parameters are pulled ahead, how long the pulls did."""

    in_checkpoint = ("_own",)

    def __init__(
        self,
        site: Site,
        plan: Plan,
        rank: int,
        data_service: DataService,
        trainer: Trainer,
        made: Callable[[int], Awaitable[Batch]] | None = None,
    ):
        """`made`: the maker of the batches, if it is neither the worker nor a reader."""
        self._site, self._plan, self._trainer = site, plan, trainer
        self._make = made or data_service.batch_maker(site, plan, trainer.record)
        self._own = None
        if data_service.queue:
            self._queue = data_service.queue.bind(site)
            self._take = self._report_and_take if plan.watch else self._queue.take
        else:
            self._own = own_batches(plan.effective_feed, rank, plan.workers, plan.batches, plan.partitions)
            self._take = self._own.take

    async def batches(self, until_batch: int, tasks: asyncio.TaskGroup) -> AsyncIterator[Batch]:
        """All batches before `until_batch` that fall to this worker, in the order in which they are taken.

        Up to `Plan.ahead` of them are made before the worker asks for them, side by side, while it does other things. No other
        worker gets what is made ahead: with a queue, a slow worker's last batches are as many more as it makes ahead.
        """
        if self._plan.ahead:
            ready: asyncio.Queue[asyncio.Task | None] = asyncio.Queue(self._plan.ahead)

            async def fill() -> None:
                while (index := await self._take(until_batch)) is not None:
                    await ready.put(tasks.create_task(self._make(index), name=f"making batch {index}"))
                await ready.put(None)

            tasks.create_task(fill(), name="making batches ahead")
        while True:
            asked = self._site.now()
            if self._plan.ahead:
                making = await ready.get()
            else:
                index = await self._take(until_batch)
                making = None if index is None else self._make(index)
            if making is None:
                return
            batch = await making
            self._trainer.record.extra["input seconds"] += self._site.now() - asked
            yield batch

    def resume_after(self, steps: int, last_taken: int) -> None:
        """Go on as if so many of its own batches had been taken, and all up to `last_taken`; a queue knows no steps."""
        if self._own:
            self._own.resume_after(steps, last_taken)

    async def _report_and_take(self, until_batch: int) -> int | None:
        """Take a batch and tell the queue what the last computation took."""
        step, self._trainer.latest = self._trainer.latest, None
        return await self._queue.take(until_batch, step)


class Reader(Part):
    """A node of the reader service: it makes the batches that workers ask it for, and remembers nothing of them."""

    def __init__(self, site: Site, plan: Plan):
        self._site, self._plan = site, plan

    async def batch(self, index: int) -> Batch:
        return await self._plan.make_batch(self._site, index)


@dataclass(frozen=True, slots=True)
class DataService:
    """What workers are given to get their batches from: a queue, and readers (ShadowSync, Section 3.1)."""

    queue: Handle | None
    """Which batch is whose, where they share one; None: each knows its own."""
    readers: tuple[Handle, ...]
    """Who makes them, in turn; (): each worker its own."""

    def batch_maker(self, site: Site, plan: Plan, record: PartLog) -> Callable[[int], Awaitable[Batch]]:
        """A function that makes the batches for a node: on the readers in turn, else on the node itself."""
        if not self.readers:
            return partial(plan.make_batch, site)
        readers = [reader.bind(site) for reader in self.readers]

        async def read(index: int) -> Batch:
            batch = await readers[index % len(readers)].batch(index)
            record.bytes["batches"] += nbytes(batch)
            return batch

        return read

    def parts_by_name(self) -> dict[str, Handle]:
        """The parts by names that no others of the run has."""
        readers = {f"reader{number}": reader for number, reader in enumerate(self.readers)}
        return {"queue": self.queue, **readers} if self.queue else readers


async def open_data_service(world: World, plan: Plan) -> DataService:
    """The queue that the plan's workers share, if they share one, and readers on nodes "reader0", "reader1", ..."""
    queue = None
    if plan.watch:
        queue = await world.host(plan.watch.batch_queue_type, plan.batches, plan.watch, node="master")
    elif plan.effective_feed == "queue":
        queue = await world.host(WorkQueue, plan.batches, plan.seconds, node="master")
    hosted = (world.host(Reader, plan, node=f"reader{number}") for number in range(plan.readers))
    return DataService(queue, tuple(await asyncio.gather(*hosted)))


FORWARD = 1 / 3
"""Share of a step that is over before backward begins: backward takes about twice as long as forward."""


class OverlappedMean:
    """One step's gradient, averaged in buckets, each as soon as backward has it, while the rest is still being computed.

    All members of the group average the buckets in the same order."""

    def __init__(self, site: Site, buckets: list[slice], meeting: Awaitable[Meeting | None]):
        self._site, self.buckets, self._meeting = site, buckets, meeting
        sizes = [bucket.stop - bucket.start for bucket in buckets]
        self.shares = [FORWARD + (1 - FORWARD) * done / sum(sizes) for done in accumulate(sizes)]
        """Which share of the step's work is done when each bucket is ready; backward's work goes with the parameters."""
        self._parts = [asyncio.get_running_loop().create_future() for _ in buckets]
        self._means = asyncio.ensure_future(self._average())
        # A dead worker does not wait for its mean, so its error is dropped.
        self._means.add_done_callback(lambda means: means.cancelled() or means.exception())

    async def mean_again(self, met: Meeting, mine: np.ndarray) -> np.ndarray:
        """The whole gradient's mean in the same buckets, among the members that are left of the group."""
        group = asyncio.get_running_loop().create_future()
        group.set_result(met)
        repeated = OverlappedMean(self._site, self.buckets, group)
        for number, bucket in enumerate(self.buckets):
            repeated.provide_bucket(number, mine[bucket])
        return await repeated.mean()

    def provide_bucket(self, bucket: int, part: np.ndarray) -> None:
        if not self._parts[bucket].done():
            self._parts[bucket].set_result(part)

    async def mean(self) -> np.ndarray | None:
        """The members' mean gradient; None where there is no group."""
        return await self._means

    def cancel(self) -> None:
        """The step will not come to its end."""
        self._means.cancel()

    async def _average(self) -> np.ndarray | None:
        started: list[asyncio.Task] = []
        try:
            for number, part in enumerate(self._parts):
                mine, met = await part, await self._meeting
                if met is None:
                    return None
                bucket = replace(met, key=f"{met.key}, bucket {number}")
                started.append(asyncio.ensure_future(self._site.mean(bucket, mine)))
            means = await asyncio.gather(*started)
        finally:
            for task in started:
                task.cancel()
        return concat(means, self.buckets)
