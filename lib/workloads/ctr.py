"""Synthetic click-through data with a planted teacher, for DeepFM and DLRM."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from lib import metrics
from lib.cluster.spec import Work
from lib.data.batch import Batch
from lib.data.clicks import Clicks, ClickStream
from lib.models.ctr import DLRM, TABLE, ClickModel, DeepFM
from lib.models.flat import tensor
from lib.store.optim import Adam, Optimizer
from lib.workloads.base import TableSpec, Workload

MODELS: dict[str, type[ClickModel]] = {"deepfm": DeepFM, "dlrm": DLRM}

_CHUNK = 4096  # samples evaluated at once, which bounds the memory


@dataclass(frozen=True, kw_only=True)
class SyntheticClicks(Workload):
    """Clicks of a teacher that turns slowly from day to day; see lib.data.clicks.

    Days: the pass is cut into `days` equal stretches of samples, in order, and a batch belongs to the day of its first
    sample, wholly. So a day holds whole batches, and with more days than batches some hold none. The evaluation's
    samples are of the day after the last, as in continual training, and of no training batch.
    """

    name: ClassVar[str] = "ctr-synthetic"
    spelled: ClassVar[Mapping[str, str]] = {"model": "network"}

    samples: int = 400_000
    batch_size: int = 128
    dense_optimizer: Optimizer = field(default=Adam(lr=0.01))
    row_optimizer: Optimizer = field(default=Adam(lr=0.01))
    network: str = "deepfm"
    """The model (option `model`): deepfm or dlrm."""
    dim: int = 8
    """Width of an embedding."""
    hidden: tuple[int, ...] = (128, 64)
    """Widths of the MLP's hidden layers."""
    fields: int = 10
    """Number of categorical fields."""
    vocabulary: int = 2_000
    """Ids of each field."""
    exponent: float = 1.4
    """Zipf's exponent of the ids."""
    dense_features: int = 4
    """Number of numeric inputs; may be 0."""
    rank: int = 2
    """Rank of the teacher's crosses between fields; 0 for none."""
    first_order: float = 1.6
    """Standard deviation of the teacher's first-order part, in logits."""
    cross: float = 0.2
    """Standard deviation of the teacher's crosses, in logits."""
    linear: float = 0.8
    """Standard deviation of the teacher's dense part, in logits."""
    days: int = 4
    """Days in one pass."""
    drift: float = 0.03
    """Radians by which the teacher turns each day."""
    base_rate: float = 0.25
    """Share of clicks, every day."""
    scale: float = 0.01
    """New rows are uniform in (-scale, scale)."""
    evaluation_samples: int = 20_000
    """Samples of the evaluation."""
    world: int = 0
    """Seed of the teacher, apart from the runs' seed."""

    def __post_init__(self):
        if isinstance(self.hidden, list):  # as JSON and the command line spell it
            object.__setattr__(self, "hidden", tuple(self.hidden))
        super().__post_init__()
        self._one_of("network", MODELS)
        self._at_least(1, "dim", "fields", "vocabulary", "days", "evaluation_samples")
        self._at_least(0, "dense_features", "rank")
        self._not_negative("exponent", "first_order", "cross", "linear", "drift", "scale")
        if not isinstance(self.hidden, tuple) or not all(isinstance(w, int) and w > 0 for w in self.hidden):
            self._reject("hidden", "positive widths, such as (64, 32)")
        if not 0 < self.base_rate < 1:
            self._reject("base_rate", "a share between 0 and 1")

    def tables(self) -> dict[str, TableSpec]:
        return {TABLE: TableSpec(MODELS[self.network].width(self.dim), self.scale)}

    def model(self, seed: int) -> ClickModel:
        return MODELS[self.network](**self._shape, seed=seed)

    def day(self, index: int) -> int:
        """The day of a batch; days go on after the pass."""
        return index * self.batch_size * self.days // self.samples

    def batch(self, seed: int, index: int, size: int | None = None) -> Batch:
        size = self.size_of(index) if size is None else size
        day = self.day(index)
        return _batch(self.clicks.draw(size, seed=seed, day=day, index=index), index=index, day=day)

    def work(self) -> Work:
        """The backward pass costs twice the forward pass; rows and parameters are read, and their gradients written."""
        flops = 3 * self.batch_size * MODELS[self.network].flops(**self._shape)
        rows = self.batch_size * self.fields * MODELS[self.network].width(self.dim)
        return Work(flops=flops, bytes=4.0 * 3 * (rows + _parameters(self)))

    def evaluation_ids(self, seed: int) -> dict[str, np.ndarray]:
        return {TABLE: _evaluation(self, seed).batch.ids[TABLE]}

    def evaluate(self, model: ClickModel, rows: Mapping[str, np.ndarray], seed: int) -> dict[str, float]:
        """auc, logloss, ne, calibration; and `auc_ceiling`, the AUC of the planted truth on the same samples."""
        held_out = _evaluation(self, seed)
        logits = _logits(model, held_out.batch, rows)
        return metrics.clicks(held_out.batch.labels, logits) | {"auc_ceiling": held_out.ceiling}

    def observe(self, labels: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
        scores = scores.astype(np.float64)
        with np.errstate(invalid="ignore"):  # a nan stays one; whether it stops the run is the driver's choice
            loss = np.logaddexp(0, scores) - scores * labels
        return float(loss.sum()), float(labels.sum(dtype=np.float64))

    @functools.cached_property
    def clicks(self) -> ClickStream:
        """The distribution of the samples."""
        return ClickStream(**{name: getattr(self, name) for name in ClickStream.__dataclass_fields__})

    @property
    def _shape(self) -> dict:
        return {name: getattr(self, name) for name in ("fields", "dim", "dense_features", "hidden")}


class _Evaluation(NamedTuple):
    batch: Batch
    ceiling: float


@functools.lru_cache(maxsize=4)
def _evaluation(workload: SyntheticClicks, seed: int) -> _Evaluation:
    day = workload.days
    clicks = workload.clicks.draw(workload.evaluation_samples, seed=seed, day=day, index="evaluation")
    return _Evaluation(_batch(clicks, index=0, day=day), metrics.auc(clicks.labels, clicks.logits))


@functools.lru_cache(maxsize=8)
def _parameters(workload: SyntheticClicks) -> int:
    return sum(parameter.numel() for parameter in workload.model(0).parameters())


def _batch(clicks: Clicks, *, index: int, day: int) -> Batch:
    return Batch.of(
        index=index,
        day=day,
        size=len(clicks.labels),
        raw={TABLE: clicks.ids},
        features={"dense": clicks.dense},
        labels=clicks.labels,
    )


@torch.inference_mode()
def _logits(model: ClickModel, batch: Batch, rows: Mapping[str, np.ndarray]) -> np.ndarray:
    device = next(model.parameters()).device
    block = {TABLE: tensor(rows[TABLE]).to(device)}
    logits = []
    for start in range(0, batch.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        chunk = Batch(
            index=0,
            size=len(batch.labels[part]),
            ids={},
            where={TABLE: batch.where[TABLE][part]},
            features={"dense": batch.features["dense"][part]},
        )
        logits.append(model(chunk.to(device), block).cpu().numpy())
    return np.concatenate(logits)
