"""Click rows with a planted truth, as raw logs have them: fields of very unequal sizes, empty fields, counts as inputs.

A row's logit is the day's bias, a weight for each value (an empty field is a value too), the dot products between the
low-rank vectors of all pairs of values, and a linear part in log(1 + count). All weights turn by `drift` radians a day.
The labels are drawn from the logits, which are functions of what the row shows: so no model can rank better than they do,
and `ceiling` is the best AUC there is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib.paths import write_atomic, write_text_atomic
from lib.streams import stream
from lib.tasks import metrics
from lib.tasks.sampling import alias_table

EMPTY = 0
"""The rank of an empty field; the values' ranks begin at 1."""
NO_COUNT = -(2**31)

_PILOT = 8192
_RANK = 4


class Sample(NamedTuple):
    """Rows of one day."""

    ranks: np.ndarray
    """int64 (rows, fields)."""
    counts: np.ndarray
    """int64 (rows, counts); NO_COUNT where the field is empty."""
    logits: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The distribution. Equal plans draw equal samples."""

    values: tuple[int, ...]
    """How many values each field has."""
    empty: tuple[float, ...]
    """The share of rows in which each field is empty."""
    counts: tuple[float, ...] = ()
    """The share of rows in which each count is empty."""
    exponent: float = 1.1
    """Zipf's exponent of the values."""
    first: float = 0.9
    """Standard deviation of the weights' sum in the logit, over values drawn uniformly."""
    cross: float = 0.3
    """The same of the dot products."""
    linear: float = 0.5
    """The same of the counts' part."""
    drift: float = 0.03
    rate: float = 0.25
    """Share of clicks, every day."""
    world: int = 0
    """Seed of the truth, apart from the samples'."""

    def draw(self, rows: int, *, seed: int, day: int) -> Sample:
        """The rows of a day."""
        sample = self._draw(rows, self._weights(day), self._bias(day), stream(seed, "rows", day))
        return sample

    def _bias(self, day: int) -> float:
        logits = self._draw(_PILOT, self._weights(day), 0.0, stream(self.world, "pilot", day)).logits
        low, high = -30.0, 30.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if np.mean(_sigmoid(logits + middle)) > self.rate else (middle, high)
        return (low + high) / 2

    def _weights(self, day: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a, b = (self._pole(name) for name in "ab")
        return tuple(x * math.cos(self.drift * day) + y * math.sin(self.drift * day) for x, y in zip(a, b, strict=True))

    def _pole(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        generator = stream(self.world, "truth", name)
        fields, places = len(self.values), sum(self.values) + len(self.values)
        pairs = max(1, fields * (fields - 1) / 2)
        return (
            generator.standard_normal(places) * (self.first / math.sqrt(fields)),
            generator.standard_normal((places, _RANK)) * math.sqrt(self.cross / math.sqrt(pairs * _RANK)),
            generator.standard_normal(len(self.counts)) * (self.linear / math.sqrt(len(self.counts) or 1)),
        )

    def _draw(self, rows: int, weights: tuple, bias: float, generator: np.random.Generator) -> Sample:
        first, factors, linear = weights
        ranks = np.empty((rows, len(self.values)), np.int64)
        for field, (table, empty) in enumerate(zip(self._tables, self.empty, strict=True)):
            place = generator.random(rows) * len(table.keep)
            column = place.astype(np.int64)
            rank = np.where(place - column < table.keep[column], column, table.alias[column])
            ranks[:, field] = np.where(generator.random(rows) < empty, EMPTY, rank + 1)
        at = ranks + self._offsets
        total = factors[at[:, 0]].copy()
        squares = np.einsum("nk,nk->n", total, total)
        for field in range(1, len(self.values)):
            vectors = factors[at[:, field]]
            total += vectors
            squares += np.einsum("nk,nk->n", vectors, vectors)
        logits = bias + first[at].sum(1) + 0.5 * (np.einsum("nk,nk->n", total, total) - squares)
        counts = np.floor(np.exp(1.5 + 1.5 * generator.standard_normal((rows, len(self.counts))))).astype(np.int64)
        logits += ((np.log1p(counts) - 1.8) / 1.3 * (hidden := generator.random(counts.shape) >= self.counts)) @ linear
        labels = (generator.random(rows) < _sigmoid(logits)).astype(np.uint8)
        return Sample(ranks, np.where(hidden, counts, NO_COUNT), logits, labels)

    @cached_property
    def _tables(self) -> list[Any]:
        return [alias_table(size, self.exponent) for size in self.values]

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(np.array(self.values[:-1]) + 1)))


def ceiling(labels: np.ndarray, logits: np.ndarray, days: np.ndarray) -> dict[str, Any]:
    """What the truth itself reaches on the rows that it made."""
    whole = metrics.clicks(labels, logits)
    by_day = [metrics.auc(labels[days == day], logits[days == day]) for day in range(int(days.max()) + 1)]
    return {"rows": len(labels), "rate": float(labels.mean()), "auc_ceiling": whole["auc"]} | {
        "auc_ceiling_of_days": by_day,
        "logloss_ceiling": whole["logloss"],
    }


def save(raw: Path, facts: dict[str, Any], logits: np.ndarray | None = None) -> dict[str, Any]:
    """Writes truth.json, and the rows' true logits in the order of the files, beside the raw files."""
    write_text_atomic(raw / "truth.json", json.dumps(facts, indent=1) + "\n")
    if logits is not None:
        write_atomic(raw / "truth.npy", lambda path: np.save(path, logits.astype(np.float32)))
    return facts


def scaled(sizes: Sequence[int], rows: int, full: int) -> tuple[int, ...]:
    """A data set's field sizes for fewer rows: small fields stay, large ones shrink with the rows."""
    return tuple(max(min(size, 50), int(size * min(1.0, rows / full))) for size in sizes)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))
