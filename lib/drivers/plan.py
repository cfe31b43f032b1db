"""What is to be trained: everything a part needs to know, on whatever node it stands."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch

from lib.cluster.base import Site
from lib.drivers.checkpoints import Attempt, CheckpointFolder
from lib.drivers.record import EvalPoint, Finished
from lib.errors import BadOption
from lib.protocols.rule import Pair, Rule
from lib.store.dense import DenseStore, PhantomDense
from lib.store.optim import Optimizer
from lib.store.rows import PhantomTable, Placement, look_up_costs, phantom
from lib.store.spec import CPU, Fp32, RowStore
from lib.store.table import Table
from lib.tasks.clicks_stream import FIELD_SHIFT
from lib.tasks.flat_model import Batch, FlatModel, IdOnlyBatches, phantom_batches
from lib.tasks.workload import Workload, draw_batch, fresh_model

PROFILED = 8
"""Batches that a placement by cost looks at."""


def split_batches(batches: int, workers: int, parts: Sequence[float] = ()) -> list[tuple[int, int]]:
    """First batch and length of each worker's stretch, in proportion to `parts`; empty parts are equal ones."""
    parts = parts or (1.0,) * workers
    if len(parts) != workers or min(parts) < 0 or not sum(parts) > 0:
        raise BadOption(f"partitions: {parts!r}; expected a share of 0 or more for each of the {workers} workers")
    ends = [round(batches * end / sum(parts)) for end in accumulate(parts)]
    return [(first, end - first) for first, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run, apart from the cluster."""

    workload: Workload
    protocol: Rule | Pair
    workers: int
    servers: int
    seed: int
    gradients: bool = True
    """False: a timing run, whose parts hold and send arrays without content."""
    eval_at: tuple[float, ...] = ()
    """Samples after which the model is evaluated on the way; at the end it always is."""
    on_nan: Literal["stop", "skip"]
    trace: bool
    accesses: bool = False
    """Whether a pipeline notes who read and wrote which row in which version."""
    feed: Literal["rule", "split", "stream", "queue"] = "rule"
    """How workers share the batches."""
    partitions: tuple[float, ...] = ()
    """Relative lengths of the workers' stretches of a stream."""
    ahead: int = 0
    """Batches that are made for a worker before it needs them."""
    readers: int = 0
    """Nodes that make the batches; 0: the workers do."""
    embedding_workers: int = 0
    """Nodes between workers and servers that hold the batches' ids; 0: none."""
    checkpoints: CheckpointFolder | None = None
    """When the run is saved on the way."""
    attempt: Attempt = field(default_factory=Attempt)
    first: int = 0
    """The sample of the stream that it begins with."""
    end_sample: int | None = None
    """The sample before which it ends; None: the pass's end."""
    seconds: float | None = None
    """The workers take no batch after so long."""
    watch: Any = None
    """The `lib.training.controller.ControllerState` of a choice that may end it; None: there is none."""
    store: RowStore = field(default_factory=RowStore)
    """How rows are kept."""
    captured: bool = False
    """Whether steps are replayed from CUDA graphs where batches' shapes repeat."""
    daily: bool = False
    """Whether a model is evaluated on the day after the one that it has come to, and not on the day after the pass."""
    stage: int = 0
    """Which part of the run it is, where protocols follow one another."""

    @functools.cached_property
    def samples(self) -> int:
        return (self.workload.samples if self.end_sample is None else self.end_sample) - self.first

    @property
    def may_end_early(self) -> bool:
        """Whether it may end before its last sample."""
        return self.seconds is not None or self.watch is not None

    @property
    def effective_feed(self) -> str:
        """The feed that is meant: the rule's own where nothing else was asked for."""
        if self.may_end_early:
            return "queue"  # what was taken when it ends is the stream's beginning
        return self.protocol.data if self.feed == "rule" else self.feed

    @property
    def batches(self) -> int:
        return self.workload.batches(self.samples)

    @property
    def end_batch(self) -> int:
        """The mark at which the data ends: workers take stretches in rounds, of which the longest has most."""
        if self.effective_feed == "queue" or self.protocol.dense.family == "pipeline":
            return self.batches
        return self.workers * max(size for _, size in split_batches(self.batches, self.workers, self.partitions))

    def lr_factor_after(self, samples: float) -> float:
        """What the learning rates are multiplied by once so many samples of this plan have been trained on."""
        return self.workload.lr_factor_at(self.first + samples)

    def size_of(self, index: int) -> int:
        """Samples of the index-th batch."""
        return min(self.workload.batch_size, self.samples - index * self.workload.batch_size)

    def batch(self, index: int) -> Batch:
        """The index-th batch of this plan."""
        done, size = index * self.workload.batch_size, self.size_of(index)
        if not self.gradients:
            return self._phantom_batches.batch(self.first + done, size, index)
        return draw_batch(self.workload, self.seed, self.first + done, size, index, self.dims.keys())

    def make_batch(self, site: Site, index: int) -> Awaitable[Batch]:
        """The index-th batch, made on that node."""
        return site.prepare(self.size_of(index), self.batch, index)

    @functools.cached_property
    def _phantom_batches(self) -> IdOnlyBatches:
        places = self.store.ids != "distinct" or bool(self.pooled_bag_sizes)
        return phantom_batches(self.workload, self.seed, places)

    @functools.cached_property
    def dims(self) -> dict[str, int]:
        """Table -> the width of its rows."""
        return {name: spec.dim for name, spec in self.workload.tables().items()}

    @functools.cached_property
    def server_bag_sizes(self) -> dict[str, tuple[int, ...]]:
        """The workload's bags, where servers sum them."""
        return self.workload.bags() if self.store.pooling == "server" else {}

    @functools.cached_property
    def pooled_bag_sizes(self) -> dict[str, tuple[int, ...]]:
        """The workload's bags, where servers or embedding workers sum them, so that workers that compute see sums."""
        return self.workload.bags() if self.embedding_workers else self.server_bag_sizes

    @property
    def without_server_compression(self) -> Plan:
        """The plan of those behind the embedding workers: what travels to workers is compressed, and not what travels between
        these and the servers (Persia, Section 4.2.3)."""
        if not self.embedding_workers:
            return self
        return replace(self, store=replace(self.store, rows=Fp32(), gradients=Fp32()))

    def renumber_sums(self, batch: Batch) -> Batch:
        """A batch as a worker's model sees it: of what others have summed, each sum is an id of its own."""
        ids, where = dict(batch.ids), dict(batch.where)
        for table, bag in self.pooled_bag_sizes.items():
            ids[table] = np.arange(len(where[table]) * len(bag))
            where[table] = ids[table].reshape(-1, len(bag))
        return replace(batch, ids=ids, where=where)

    @functools.cached_property
    def eval_points(self) -> list[EvalPoint]:
        """The points on the way; the end itself is no such point."""
        return [*map(self.eval_point, self.eval_at)]

    def eval_point(self, samples: float) -> EvalPoint:
        """The point after so many samples of the plan."""
        return EvalPoint(samples, self.workload.day(self.first + samples - 1) + 1 if self.daily else None)

    @functools.cached_property
    def evaluation_ids_by_day(self) -> dict[int | None, dict[str, np.ndarray]]:
        """Day -> table -> the unique ids whose rows its evaluation needs, of each that the model may be evaluated on."""
        if not self.gradients:
            return {None: {name: np.empty(0, np.int64) for name in self.dims}}
        places = (*self.eval_at, self.samples, *([0] if self.may_end_early else []))  # it may end before it has begun
        days = {self.eval_point(each).day for each in places}
        return {day: self.workload.evaluation_ids(self.seed, day) for day in days}

    def initial_parameters(self, site: Site) -> np.ndarray:
        """The dense parameters and running statistics before training: the same on every node, made once for all parts."""

        def made() -> np.ndarray:
            if not self.gradients:
                return phantom(FlatModel(self.workload.model(self.seed)).vector.numel())
            start = fresh_model(self.workload, self.seed).vector.numpy()
            start.flags.writeable = False
            return start

        return site.shared_object("start", made)

    def dense_store(
        self, start: np.ndarray, device="cpu", trained: int | None = None, optimizer: Optimizer | None = None
    ) -> DenseStore | PhantomDense:
        """Of what begins like that; the optimiser, by default the workload's, steps the first `trained` values, or all."""
        optimizer = optimizer or self.workload.dense_optimizer
        if not self.gradients:
            return PhantomDense(start.size, optimizer)
        return DenseStore(start, optimizer, device=device, trained=trained)

    def tables(self, segment: str | None = None, device: torch.device = CPU) -> dict[str, Table | PhantomTable]:
        """Empty tables: a row appears when its id is first met, from (seed, id) alone; the rest as in `RowStore.table`."""
        if not self.gradients:
            rows = self.workload.row_optimizer
            return {name: PhantomTable(dim, rows) for name, dim in self.dims.items()}
        rows, options = self.workload.row_optimizer, {"seed": self.seed, "segment": segment, "device": device}
        return {
            name: self.store.table(name, spec.dim, rows, scale=spec.scale, **options)
            for name, spec in self.workload.tables().items()
        }

    def row_device(self, device: Any) -> torch.device:
        """Where a part on a device keeps its rows: on that device, or on the host if rows outlive the process, are encoded, or
        are summed."""
        kept = self.store.shared_memory or self.store.mapped or self.store.pooling == "server" or self.embedding_workers
        coded = not type(self.store.rows) is type(self.store.gradients) is Fp32
        return CPU if kept or coded or self.protocol.dense.family == "pipeline" else torch.device(device)

    @functools.cached_property
    def placement(self) -> Placement:
        """Which server has which row, the same on every node."""
        return self.store.place(self.servers, shift=FIELD_SHIFT, costs=self._look_up_costs)

    def _look_up_costs(self) -> dict[str, float]:
        first = (self.batch(index) for index in range(min(PROFILED, self.batches)))
        looked_up = ({table: self._row_reads(batch, table) for table in batch.ids} for batch in first)
        return look_up_costs(looked_up, self.dims, shift=FIELD_SHIFT)

    def _row_reads(self, batch: Batch, table: str) -> np.ndarray:
        """A row is read for every entry where servers sum them, and once a batch where they send it."""
        ids = batch.ids[table]
        return ids[batch.where[table].ravel()] if table in self.server_bag_sizes else ids


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a run, where protocols follow one another: what was planned, and what became of it."""

    plan: Plan
    finished: Finished
