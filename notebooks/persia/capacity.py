"""Criteo-Syn: clicks over as many ids as the paper's capacities need, of which no teacher could hold a truth.

Ranks are Zipf-distributed over the whole space, by the inverse of the distribution function for real numbers. Labels are coins:
only time is asked here.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lib import Adagrad, Batch
from lib.options.checked import Count, Positive
from lib.store.optim import Optimizer
from lib.streams import uniform
from lib.tasks.click_models import TABLE
from lib.tasks.clicks import ClickThrough
from lib.tasks.clicks_stream import FIELD_SHIFT
from lib.tasks.workload import Network
from notebooks.persia.tasks import speed_job

DIM = 128
"""Numbers of a row in the paper: parameters to an id."""

WIDTH = 2432
"""Of the first hidden layer: with rows of 128 the others' 4,096 would have twice the 12 million that Table 1 gives all tasks."""

CAPACITIES = {f"{tera:g} T": tera * 1e12 for tera in (6.25, 12.5, 25, 50, 100)}


@dataclass(frozen=True, kw_only=True)
class CoinFlips(ClickThrough):
    """Persia's Criteo-Syn1 to 5, by their parameters; the registry's `criteo-syn` has a teacher, and ids that share it."""

    name: ClassVar[str] = "criteo-syn-coins"

    parameters: Positive = 6.25e12
    """Of all rows that there could be, 128 to a row."""
    network: Network = "ffnn"
    fields: Count = 26
    vocabulary: Count = 1
    rank: int = 0
    exponent: float = 1.05
    dim: Count = 16
    dense_features: int = 13
    batch_size: Count = 4096
    samples: Count = 4_096_000
    days: Count = 1
    evaluation_samples: Count = 100
    row_optimizer: Optimizer = field(default=Adagrad(lr=0.05, rowwise=True))

    def __post_init__(self):
        super().__post_init__()
        if self.exponent == 1 or self.each > 1 << FIELD_SHIFT:
            self._reject("parameters", f"at most 2^{FIELD_SHIFT} ids a field, of an exponent that is not 1")

    @property
    def each(self) -> int:
        """Ids of a field."""
        return int(self.parameters / DIM / self.fields)

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        chances = uniform(seed, "criteo-syn", first=first, shape=(size, self.fields + self.dense_features + 1))
        power = 1 - self.exponent
        ranks = ((self.each**power - 1) * chances[:, : self.fields] + 1) ** (1 / power) - 1
        ids = ids_of(np.minimum(ranks.astype(np.int64), self.each - 1), np.arange(self.fields))
        dense = chances[:, self.fields : -1].astype(np.float32)
        labels = (chances[:, -1] < self.base_rate).astype(np.float32)
        return Batch.of(index=index, raw={TABLE: ids}, size=size, features={"dense": dense}, labels=labels)


def ids_of(ranks: np.ndarray, fields: np.ndarray) -> np.ndarray:
    """The ids of these ranks of these fields."""
    return (fields.astype(np.int64) << FIELD_SHIFT) | ranks


def job(capacity: str, protocol: str, seed: int, **shape: int) -> dict:
    """A timing run on the paper's eight machines of eight GPUs each."""
    made = speed_job("criteo-syn", protocol, 8, seed, **shape)
    kept = {name: getattr(made["workload"], name) for name in ("hidden", "dim", "batch_size", "samples", "world")}
    return made | {"workload": CoinFlips(parameters=CAPACITIES[capacity], **kept)}
