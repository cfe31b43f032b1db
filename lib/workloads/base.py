"""The contract of a workload."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from lib.cluster.spec import Work
from lib.data.batch import Batch
from lib.errors import BadOption
from lib.options.checked import Checked, Count, Positive, Share
from lib.store.optim import Optimizer

Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What the rows of a table look like."""

    dim: int
    """Width of a row."""
    scale: float
    """A new row is uniform in (-scale, scale)."""
    pooling: tuple[int, ...] = ()
    """How many columns of a batch's places are summed into each of the vectors that the model sees; (): none."""


@dataclass(frozen=True, kw_only=True)
class Workload(Checked, ABC):
    """A model, its data stream, its optimisers and its evaluation.

    Frozen: its fields are its configuration, and everything it makes is a pure function of them and of the arguments.
    """

    name: ClassVar[str]
    """A kind that `named.yaml` gives several names to makes a field of it."""
    epochs: ClassVar[bool] = True
    """Whether its full profile goes through real data again and again, as papers do; a click log is passed once."""
    days: ClassVar[int] = 0
    """A kind that has days makes an option of it: into how many a pass is cut."""

    samples: Count
    """Samples in one pass; the last batch may be smaller."""
    batch_size: Count
    """Samples of a worker's step."""
    dense_optimizer: Optimizer
    """Updates the dense parameters."""
    row_optimizer: Optimizer
    """Updates the tables' rows."""
    lr_milestones: tuple[Share, ...] = ()
    """Shares of the pass after each of which both learning rates are multiplied by `lr_gamma`: epoch 60 of 200 is 0.3."""
    lr_gamma: Positive = 0.1
    """What a learning rate is multiplied by at a milestone."""

    def owner(self) -> str:
        return f"workload {self.name!r}"

    def plan(self, kind: type[Plan], **more: Any) -> Plan:
        """Planted data of that kind; each field of it is the option of its name, or one of `more`."""
        own = {field.name: getattr(self, field.name) for field in fields(kind) if field.name not in more}
        return kind(**own, **more)

    def tables(self) -> dict[str, TableSpec]:
        """Table -> its rows; empty for a workload without sparse features."""
        return {}

    def rate_at(self, sample: float) -> float:
        """What the learning rates are multiplied by at this place of the pass."""
        return self.lr_gamma ** sum(sample >= share * self.samples for share in self.lr_milestones)

    def bags(self) -> dict[str, tuple[int, ...]]:
        """Table -> `TableSpec.pooling`, of those whose rows are pooled."""
        return {name: spec.pooling for name, spec in self.tables().items() if max(spec.pooling, default=1) > 1}

    @abstractmethod
    def model(self, seed: int) -> torch.nn.Module:
        """A fresh model, initialised from the seed alone: `forward(batch, rows) -> scores`, `loss(batch, scores)`."""

    @abstractmethod
    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        """Samples `first`, `first` + 1, ... of the endless stream that belongs to the seed, as batch `index`.

        A stream of days holds the same samples however it is cut into batches, so that protocols with batches of other sizes
        train on the same data; what a batch's samples share (negatives, another order of an epoch) goes with `first`.
        """

    def batch(self, seed: int, index: int, size: int | None = None) -> Batch:
        """The index-th batch of a pass in batches of one size; `size` overrides `size_of(index)`.

        The stream does not end with the pass: later indices go on, with whole batches.
        """
        return self.draw(seed, index * self.batch_size, self.size_of(index) if size is None else size, index)

    @abstractmethod
    def work(self) -> Work:
        """The modelled cost of one training step, forward and backward, on one batch."""

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        """Table -> the unique ids whose rows the evaluation needs."""
        return {}

    @abstractmethod
    def evaluate(
        self, model: torch.nn.Module, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """The metrics of a model that holds its dense parameters, with rows aligned with `evaluation_ids`.

        It gets what a step gets: rows are tensors on the model's device, `model(batch, rows)` takes a batch as `Batch.of` makes
        it, moves it there and pools it, and no gradient is kept (`lib.workloads.contract.judged`).
        On samples that are never trained on: of a stream's `day`, by default the one after the pass."""

    def day(self, place: int) -> int:
        """The day of a sample; days go on after the pass."""
        return place * self._days() // self.samples

    def day_begins(self, day: int) -> int:
        """The first sample of a day."""
        return -(-day * self.samples // self._days())

    def _days(self) -> int:
        if not self.days:
            raise BadOption(f"workload {self.name!r} has no days; click streams and next-item have")
        return self.days

    def observe(self, labels: np.ndarray, scores: np.ndarray) -> tuple[float, float] | None:
        """Sum of the log loss and sum of the labels of a batch of binary labels; None for other workloads."""
        return None

    def batches(self, samples: int | None = None) -> int:
        """Batches in that many samples, or in one pass."""
        return -(-(self.samples if samples is None else samples) // self.batch_size)

    def size_of(self, index: int) -> int:
        """Samples of the index-th batch: short only where the pass ends."""
        left = self.samples - index * self.batch_size
        return left if 0 < left < self.batch_size else self.batch_size


@functools.lru_cache(maxsize=16)
def dense_parameters(workload: Workload) -> int:
    """How many parameters its model has beside the tables."""
    return sum(parameter.numel() for parameter in workload.model(0).parameters())
