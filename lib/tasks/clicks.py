"""Prediction of clicks, real or synthetic, with the models of `lib.tasks.click_models`."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from lib.cluster.spec import Work
from lib.options.checked import Count, Natural, NotNegative, Text
from lib.store.optim import Adam, Optimizer
from lib.tasks import metrics
from lib.tasks.behaviours import BehaviourStream, Catalogue
from lib.tasks.click_models import DIEN, DLRM, FFNN, TABLE, ClickModel, DeepFM, LightFM
from lib.tasks.clicks_stream import FIELD_SHIFT, ClickDistribution, Clicks, ClickStream, HashedClicks, concatenate
from lib.tasks.flat_model import Batch, share_ids
from lib.tasks.layers import use_fixed_moments
from lib.tasks.prepared_datasets import read_clicks
from lib.tasks.workload import Network, TableSpec, Workload, build_with_accepted, dense_parameters, resolve_network

MODELS: dict[str, type[ClickModel]] = {"deepfm": DeepFM, "dlrm": DLRM, "ffnn": FFNN, "dien": DIEN}

_CHUNK = 4096  # samples evaluated at once, which bounds the memory
_NORM_SAMPLES = 4096  # training samples that give the moments of batch normalisation for an evaluation


@dataclass(frozen=True, kw_only=True)
class ClickThrough(ClickDistribution, Workload):
    """Prediction of real clicks, or of synthetic ones that drift over the days (`lib.tasks.clicks_stream`).

    A synthetic pass has `days` equal stretches of samples. A batch has the day of its first sample. As in continual training,
    the evaluation's samples are of the day after the pass.
    """

    name: str = "ctr-synthetic"
    spelled: ClassVar[Mapping[str, str]] = {"model": "network"}
    synthetic_only: ClassVar[frozenset[str]] = frozenset(
        {*ClickDistribution.__dataclass_fields__, "days", "length", "topics", "per_topic", "novelty", "affinity"}
    )

    samples: Count = 400_000
    batch_size: Count = 128
    dense_optimizer: Optimizer = field(default=Adam(lr=0.01))
    row_optimizer: Optimizer = field(default=Adam(lr=0.01))
    network: Network = "deepfm"
    """The model (option `model`): deepfm, dlrm, ffnn, dien, or a class of your own that extends
    `lib.tasks.click_models.ClickModel` (in a file: "my_file.py:MyModel"). Its constructor names what it needs of fields, dim,
    dense_features, hidden and seed."""
    data: Text | None = None
    """Folder of prepared clicks; without it they are synthetic, by `fields` to `world`, for DIEN also `length` to `affinity`."""
    dim: Count = 8
    """Width of an embedding."""
    hidden: tuple[Count, ...] = (128, 64)
    """Widths of the MLP's hidden layers."""
    days: Count = 4
    """Days in one pass."""
    length: Count = 10
    """DIEN: most behaviours of a user."""
    topics: Count = 20
    """DIEN: topics of the items."""
    per_topic: Count = 50
    """DIEN: items of each topic."""
    novelty: NotNegative = 2.0
    """DIEN: weight of a new topic, relative to one past behaviour."""
    affinity: NotNegative = 2.0
    """DIEN: increase of the teacher's logit if all past behaviours have the target's topic."""
    scale: NotNegative = 0.01
    """New rows are uniform in (-scale, scale)."""
    evaluation_samples: Count = 20_000
    """Samples of the evaluation."""

    def __post_init__(self):
        object.__setattr__(self, "network", resolve_network(self.network, MODELS, ClickModel, self.name_in_errors))
        if max(self.vocabularies or (self.vocabulary,)) * self.copies > 1 << FIELD_SHIFT:
            self._reject("copies", f"so few that vocabulary * copies is at most 2^{FIELD_SHIFT}")
        for option in ("vocabularies", "pooling"):
            given = getattr(self, option)
            if given and (self.data or len(given) != self.fields):
                self._reject(
                    option,
                    "left out where data has fields of its own" if self.data else f"{self.fields} numbers, one a field",
                )
        if self.tasks > 1 and not issubclass(self._model_class, FFNN):
            self._reject("tasks", "1 but for ffnn")
        if self.pooling and self._uses_history:
            self._reject("pooling", "left out for dien, which sums nothing")

    def tables(self) -> dict[str, TableSpec]:
        return {TABLE: TableSpec(self._model_class.width(self.dim), self.scale, self._pooling)}

    def model(self, seed: int) -> ClickModel:
        return build_with_accepted(self._model_class, **self._shape, seed=seed)

    def day(self, place: int) -> int:
        return self.clicks.day(place) if self.data else super().day(place)

    def day_begins(self, day: int) -> int:
        return self.clicks.day_begins(day) if self.data else super().day_begins(day)

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        origin = self.clicks
        if self.data:
            return _batch(origin.train(first, size, seed), index=index, day=self.day(first))
        days = [*self.split_by_day(first, size)]
        parts = [origin.draw(many, seed=seed, day=day, first=place) for day, place, many in days]
        return _batch(concatenate(parts), index=index, day=days[0][0])

    def work(self) -> Work:
        """The backward pass costs twice the forward pass; rows and parameters are read, and their gradients written."""
        flops = 3 * self.batch_size * self._model_class.forward_flops(**self._shape)
        rows = self.batch_size * self._ids_per_sample * self._model_class.width(self.dim)
        return Work(flops=flops, bytes=4.0 * 3 * (rows + dense_parameters(self)))

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        return _held_out_data(self, seed, day).batch.ids

    def evaluate(
        self, model: ClickModel, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """auc, logloss, ne and calibration; `auc_2`, ... for further labels. Of synthetic clicks, whose true probabilities are
        known, all of these also as `expected_auc`, ..., and `auc_ceiling`, the largest expected AUC of any scores."""
        held_out = _held_out_data(self, seed, day)
        with use_fixed_moments(model, lambda: [_logits(model, batch, rows) for batch in held_out.settling]):
            logits = _logits(model, held_out.batch, rows)
        ceiling = {} if held_out.truth is None else {"auc_ceiling": held_out.ceiling}
        return metrics.click_metrics(held_out.batch.labels, logits, held_out.truth) | ceiling

    def log_loss_and_label_sums(self, labels: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
        scores = self._model_class.logits(scores).astype(np.float64)
        if self._labels > 1:
            labels, scores = labels[:, 0], scores[:, 0]
        with np.errstate(invalid="ignore"):  # a nan stays one; whether it stops the run is the driver's choice
            loss = np.logaddexp(0, scores) - scores * labels
        return float(loss.sum()), float(labels.sum(dtype=np.float64))

    @property
    def clicks(self) -> Any:
        """The stream of samples."""
        # The workload travels to other processes, so it must not hold an open folder.
        return read_clicks(self.data, behaviours=self._uses_history) if self.data else self._synthetic

    @functools.cached_property
    def _synthetic(self) -> ClickStream | BehaviourStream:
        profile = self.build_stream(ClickStream)
        return (
            self.build_stream(BehaviourStream, profile=profile, catalogue=self.build_stream(Catalogue))
            if self._uses_history
            else profile
        )

    @property
    def _model_class(self) -> type[ClickModel]:
        return MODELS.get(self.network, self.network)

    @property
    def _uses_history(self) -> bool:
        return issubclass(self._model_class, DIEN)

    @property
    def _labels(self) -> int:
        return 1 if self.data else self.tasks

    @property
    def _shape(self) -> dict:
        real = self.clicks if self.data else self
        fields = len(real.fields) if self.data else self.fields
        shape = {"dim": self.dim, "hidden": self.hidden, "fields": fields, "dense_features": real.dense_features}
        shape |= {"tasks": self._labels} if self._labels > 1 else {}
        return shape | ({"length": real.length, "parts": 2} if self._uses_history else {})

    @property
    def _pooling(self) -> tuple[int, ...]:
        """Ids of each field that a sample has."""
        return self.clicks.pooling if self.data else self.pooling

    @property
    def _ids_per_sample(self) -> int:
        """Ids of a sample."""
        shape = self._shape
        return sum(self._pooling or (shape["fields"],)) + (2 * (1 + 2 * shape["length"]) if self._uses_history else 0)


class _HeldOutClicks(NamedTuple):
    batch: Batch
    settling: list[Batch]
    """Training batches that give the moments of batch normalisation."""
    truth: np.ndarray | None
    """The true probabilities of the labels; None: unknown."""
    ceiling: float


@functools.lru_cache(maxsize=16)
def _held_out_data(workload: ClickThrough, seed: int, day: int | None) -> _HeldOutClicks:
    end = workload.samples if day is None else workload.day_begins(day)
    if workload.data:
        clicks, truth, ceiling = workload.clicks.held_out(workload.evaluation_samples, day), None, math.nan
        batch = _batch(clicks, index=0, day=day or 0)
    else:
        day = workload.days if day is None else day
        clicks = workload.clicks.draw(workload.evaluation_samples, seed=seed, day=day, part=f"evaluation {day}")
        truth = 1 / (1 + np.exp(-clicks.logits))
        batch, ceiling = _batch(clicks, index=0, day=day), metrics.click_metrics(truth, clicks.logits)["auc"]
    settling = []
    if workload._model_class.normed:
        starts = range(max(0, end - _NORM_SAMPLES), end, workload.batch_size)
        settling = [workload.draw(seed, first, min(workload.batch_size, end - first), 0) for first in starts]
    _, (batch, *settling) = share_ids([batch, *settling])
    return _HeldOutClicks(batch, settling, truth, ceiling)


def _batch(clicks: Clicks, *, index: int, day: int) -> Batch:
    features = {"dense": clicks.dense, "behaviours": clicks.behaviours}
    return Batch.of(
        index=index,
        day=day,
        size=len(clicks.labels),
        raw={TABLE: clicks.ids},
        features={name: values for name, values in features.items() if values is not None},
        labels=clicks.labels,
    )


def _logits(model: ClickModel, batch: Batch, rows: Mapping[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([model.logits(model(part, rows)).cpu().numpy() for part in batch.parts(_CHUNK)])


@dataclass(frozen=True, kw_only=True)
class LightClicks(ClickThrough):
    """Clicks for a small factorisation machine with a dense network, for thousands of updates in a minute.

    `hidden=[]` leaves the network out: then the model has rows and a bias.
    """

    name: ClassVar[str] = "clicks-light"

    batch_size: Count = 64
    fields: Count = 8
    hidden: tuple[Count, ...] = (16,)
    dense_features: Natural = 0

    def __post_init__(self):
        super().__post_init__()
        if self.network != "deepfm":
            self._reject("network", "left out: its model is a factorisation machine with compiled gradients")
        if len(self.hidden) > 1:
            self._reject("hidden", "one width, or none for rows alone; ctr-synthetic takes more layers")

    def model(self, seed: int) -> LightFM:
        return LightFM(**self._shape, seed=seed)

    @functools.cached_property
    def _synthetic(self) -> HashedClicks:
        return self.build_stream(HashedClicks)
