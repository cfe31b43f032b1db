"""Synthetic clicks, drawn from the logits of a teacher; only the teacher is stored.

The teacher's logit is a bias, a first-order weight for every id, dot products between the low-rank vectors of all pairs of
fields, and a linear part in the dense inputs. If a sample has several ids of a field, the sum of their weights and vectors is
divided by the root of their number, so that all fields matter equally. The weights drift: on day d they are
cos(drift d) a + sin(drift d) b with two independent draws a and b, so their spread does not change. The bias of each day keeps
the base rate. Since the logits are known, so is the best AUC that any model can reach.

A sample may have several labels (Persia's Kwai). The teacher of each further label correlates with the first one's, and the
label is half as frequent as the one before. All labels of a sample use the same random number, so the rarer mostly imply the
commoner.
"""

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numba
import numpy as np
from annotated_types import Gt, Lt
from numba import njit
from numba.types import float64, int64, uint64

from lib.options.checked import Count, Natural, NotNegative
from lib.store.kernels import GOLDEN, mix_bits
from lib.streams import key, stream, uniform
from lib.tasks.sampling import alias_table, pick

FIELD_SHIFT = 48
"""An id is (field << FIELD_SHIFT) | rank, so that one table serves all fields."""

_RANK = (1 << FIELD_SHIFT) - 1
_CORRELATION = 0.8  # of a further label's teacher with the first one's
_PILOT = 16_384  # samples that set a day's bias; its base rate is then off by about 0.002


class Clicks(NamedTuple):
    """A block of samples."""

    ids: np.ndarray
    """int64 (samples, fields), or as many columns a field as it has ids, field by field."""
    dense: np.ndarray
    """float32 (samples, dense_features): uniform, mean 0, variance 1."""
    labels: np.ndarray
    """float32 (samples,), or (samples, tasks) with several labels: 1 is a click."""
    logits: np.ndarray | None = None
    """float64, in the same shape: the teacher's."""
    behaviours: np.ndarray | None = None
    """int64 (samples,): number of past behaviours, if these are among the ids."""
    history: np.ndarray | None = None
    """Of a prepared log: int64 (samples, length, 2), category and brand of the user's latest behaviours, oldest first, as ids of
    those fields; the code 0 after a sample's last behaviour."""


def concatenate(pieces: list[Any]) -> Any:
    """Join pieces of samples, which are named tuples of arrays."""
    if len(pieces) == 1:
        return pieces[0]
    parts = zip(*pieces, strict=True)
    return type(pieces[0])(*(each[0] if each[0] is None else np.concatenate(each) for each in parts))


class Teacher(NamedTuple):
    """The weights of one day."""

    first: np.ndarray
    """(ids of all fields,) first-order weights."""
    factors: np.ndarray
    """(ids of all fields, rank) vectors of the crosses."""
    linear: np.ndarray
    """(dense_features,) weights of the dense inputs."""
    bias: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ClickDistribution:
    """The options of synthetic clicks."""

    fields: Count = 10
    """Number of categorical fields."""
    vocabulary: Count = 2_000
    """Ids of each field."""
    vocabularies: tuple[Count, ...] = ()
    """Ids of each field, if fields differ."""
    pooling: tuple[Count, ...] = ()
    """Ids of each field that a sample has (multi-hot), whose rows are summed; (): one of each."""
    exponent: NotNegative = 1.4
    """Zipf's exponent of the ids."""
    dense_features: Natural = 4
    """Number of numeric inputs; may be 0."""
    rank: Natural = 2
    """Rank of the teacher's crosses between fields; 0 for none."""
    first_order: NotNegative = 1.6
    """Standard deviation of the teacher's first-order part, in logits."""
    cross: NotNegative = 0.2
    """Standard deviation of the teacher's crosses, in logits."""
    linear: NotNegative = 0.8
    """Standard deviation of the teacher's dense part, in logits."""
    drift: NotNegative = 0.03
    """Radians by which the teacher drifts each day."""
    base_rate: Annotated[float, Gt(0), Lt(1)] = 0.25
    """Share of clicks, every day."""
    copies: Count = 1
    """Ids that share one id's weights: the vocabulary grows by this factor, and the teacher's memory does not."""
    tasks: Count = 1
    """FFNN: labels of a synthetic sample, each with an output; the first is the click. Real samples have one label."""
    world: Natural = 0
    """Seed of the teacher, independent of the seed of runs."""


class ClickStream(ClickDistribution):
    """A distribution of clicks; `draw` samples it. Equal streams draw equal samples."""

    def draw(self, size: int, *, seed: int, day: int, first: int = 0, part: object = "train") -> Clicks:
        """Draw samples of a day, from place `first` on of the endless stream (seed, part)."""
        truths = (teacher(self, day, task) for task in range(self.tasks))
        clicks, *others = (self._sample(truth, size, seed, first, part) for truth in truths)
        if others:
            drawn = [clicks, *others]
            labels, logits = (np.stack([getattr(each, name) for each in drawn], 1) for name in ("labels", "logits"))
            clicks = clicks._replace(labels=labels, logits=logits)
        if self.copies > 1:
            rank, field = clicks.ids & _RANK, clicks.ids & ~_RANK
            copy = uniform(seed, "copies", part, first=first, shape=clicks.ids.shape) * self.copies
            clicks = clicks._replace(ids=field | (rank * self.copies + copy.astype(np.int64)))
        return clicks

    def _sample(self, truth: Teacher, size: int, seed: int, first: int, part: object) -> Clicks:
        rows, pooling, columns = self._sample_layout
        numbers = self._uniform(seed, part, first, (size, columns))
        return Clicks(*_fill_samples(numbers, *_alias_tables(self.sizes, self.exponent), rows, pooling, *truth))

    def _uniform(self, seed: int, part: object, first: int, shape: tuple[int, int]) -> np.ndarray:
        """The uniform random numbers that decide each sample."""
        return uniform(seed, "clicks", part, first=first, shape=shape)

    @functools.cached_property
    def _sample_layout(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Where each field's ids begin in the weights, the ids of a sample in each field, and the random numbers of a sample."""
        pooling = np.array(self.pooling or (1,) * self.fields)
        return np.cumsum([0, *self.sizes[:-1]]), pooling, int(pooling.sum()) + self.dense_features + 1

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Ids of each field."""
        return self.vocabularies or (self.vocabulary,) * self.fields


@functools.lru_cache(maxsize=4)
def _alias_tables(sizes: tuple[int, ...], exponent: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The alias tables, concatenated, and where each field's begins and ends; fields of one size share a table."""
    distinct = list(dict.fromkeys(sizes))
    tables = [alias_table(size, exponent) for size in distinct]
    keep, alias = (np.concatenate([getattr(table, name) for table in tables]) for name in ("keep", "alias"))
    begins = dict(zip(distinct, np.cumsum([0, *distinct[:-1]]).tolist(), strict=True))
    return keep, alias, np.array([(begins[size], begins[size] + size) for size in sizes])


@functools.lru_cache(maxsize=16)
def teacher(clicks: ClickStream, day: int, task: int = 0) -> Teacher:
    """The teacher of one label on a day."""
    angle = clicks.drift * day
    poles = zip(_drift_endpoint(clicks, "a", task), _drift_endpoint(clicks, "b", task), strict=True)
    truth = Teacher(*(a * math.cos(angle) + b * math.sin(angle) for a, b in poles))
    logits = clicks._sample(truth, _PILOT, clicks.world, 0, "pilot").logits
    return truth._replace(bias=bias_for_rate(logits, clicks.base_rate / 2**task))


@functools.lru_cache(maxsize=8)
def _drift_endpoint(clicks: ClickStream, name: str, task: int) -> Teacher:
    """One of the two draws between which the teacher drifts."""
    generator = stream(clicks.world, "teacher", *([name, task] if task else [name]))
    rows, pairs = sum(clicks.sizes), clicks.fields * (clicks.fields - 1) / 2
    # The variance of one cross, a dot product of two independent vectors, is rank * scale^4; the pairs' variances add up.
    scale = math.sqrt(clicks.cross / math.sqrt(max(1.0, pairs * clicks.rank)))
    own = Teacher(
        first=generator.standard_normal(rows) * (clicks.first_order / math.sqrt(clicks.fields)),
        factors=generator.standard_normal((rows, clicks.rank)) * scale,
        linear=generator.standard_normal(clicks.dense_features)
        * (clicks.linear / math.sqrt(clicks.dense_features or 1)),
    )
    if not task:
        return own
    others = zip(own, _drift_endpoint(clicks, name, 0), strict=True)
    return Teacher(*(_CORRELATION * first + math.sqrt(1 - _CORRELATION**2) * mine for mine, first in others))


def bias_for_rate(logits: np.ndarray, rate: float) -> float:
    """Find the bias at which the mean probability is `rate`, by bisection."""
    low, high = -30.0 - logits.max(), 30.0 - logits.min()
    for _ in range(50):
        middle = (low + high) / 2
        if np.mean(1 / (1 + np.exp(-(logits + middle)))) < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@numba.njit(cache=True, nogil=True)
def _fill_samples(uniform, keep, alias, tables, rows, pooling, first, factors, linear, bias):
    size, columns = uniform.shape
    rank, numeric, slots = factors.shape[1], len(linear), pooling.sum()
    ids = np.empty((size, slots), np.int64)
    dense = np.empty((size, numeric), np.float32)
    labels = np.empty(size, np.float32)
    logits = np.empty(size)
    total, pooled = np.empty(rank), np.empty(rank)
    for n in range(size):
        logit, squares, slot = bias, 0.0, 0
        total[:] = 0
        for f in range(len(pooling)):
            start, end = tables[f]
            share = 1 / math.sqrt(pooling[f])
            pooled[:] = 0
            for _ in range(pooling[f]):
                place = pick(uniform[n, slot], keep[start:end], alias[start:end])
                ids[n, slot] = (f << FIELD_SHIFT) | place
                slot += 1
                row = rows[f] + place
                logit += share * first[row]
                for k in range(rank):
                    pooled[k] += share * factors[row, k]
            for k in range(rank):
                total[k] += pooled[k]
                squares += pooled[k] ** 2
        for k in range(rank):
            logit += 0.5 * total[k] ** 2
        logit -= 0.5 * squares
        for k in range(numeric):
            value = (2 * uniform[n, slots + k] - 1) * math.sqrt(3.0)
            dense[n, k] = value
            logit += linear[k] * value
        logits[n] = logit
        labels[n] = uniform[n, columns - 1] < 1 / (1 + math.exp(-logit))
    return ids, dense, labels, logits


class HashedClicks(ClickStream):
    """The same distribution with other samples: random numbers are hashes (splitmix64) of their places, which is 5x faster."""

    def _uniform(self, seed: int, part: object, first: int, shape: tuple[int, int]) -> np.ndarray:
        return _uniform_numbers(_key(seed, part), first * shape[1], *shape)


@functools.lru_cache(maxsize=64)
def _key(seed: int, part: object) -> np.uint64:
    return np.uint64(key(seed, "hashed clicks", part) & (1 << 64) - 1)


@njit(float64[:, ::1](uint64, int64, int64, int64), nogil=True, cache=True)
def _uniform_numbers(key, place, samples, columns):
    """Numbers in [0, 1) with 53 bits, from a place of the stream on."""
    numbers = np.empty((samples, columns))
    state = key + np.uint64(place) * GOLDEN
    for n in range(samples):
        for column in range(columns):
            state += GOLDEN
            numbers[n, column] = (mix_bits(state) >> np.uint64(11)) * 2.0**-53
    return numbers
