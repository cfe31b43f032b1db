"""Which ids get a row, and which rows go when a table is full. Options of a table; the defaults keep everything for ever."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit, types
from numba.types import boolean, int64, uint16, uint64

from lib.store.inputs import number, whole
from lib.store.table.index import _WORDS
from lib.store.table.kernels import _INTS, _OPTIONS, mix

_SALTS = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)


@dataclass(frozen=True, kw_only=True)
class Admission(ABC):
    """Whether an id that a training look-up met, and that has no row, gets one."""

    def memory(self) -> np.ndarray:
        """What the policy remembers of ids without a row."""
        return np.zeros(0, np.uint16)

    @abstractmethod
    def chosen(self, ids: np.ndarray, memory: np.ndarray, seed: int, now: int) -> np.ndarray:
        """For each of these distinct ids, whether it gets a row now; `now` is the number of the call."""


@dataclass(frozen=True, kw_only=True)
class Always(Admission):
    """Every id, when it is met first."""

    def chosen(self, ids: np.ndarray, memory: np.ndarray, seed: int, now: int) -> np.ndarray:
        return np.ones(ids.size, bool)


@dataclass(frozen=True, kw_only=True)
class Probability(Admission):
    """By chance, each time that a call meets the id; the draw is a function of seed, id and call alone."""

    share: float
    """Chance of each meeting."""

    def __post_init__(self) -> None:
        number(self.share, "Probability.share", above=True, below=1.0 + 1e-12)

    def chosen(self, ids: np.ndarray, memory: np.ndarray, seed: int, now: int) -> np.ndarray:
        return _drawn(ids, np.uint64(seed % 2**64), np.uint64(now), np.uint64(min(self.share * 2.0**53, 2.0**53)))


@dataclass(frozen=True, kw_only=True)
class Counter(Admission):
    """At the n-th call that meets the id, counted in a sketch: other ids may make it earlier, nothing makes it later."""

    times: int
    """Meetings, the one that admits included."""
    cells: int = 2**20
    """Size of the sketch, two bytes each; several times the ids that are met without being admitted makes errors rare."""

    def __post_init__(self) -> None:
        whole(self.times, "Counter.times", 1)
        whole(self.cells, "Counter.cells", 2)

    def memory(self) -> np.ndarray:
        return np.zeros(self.cells, np.uint16)

    def chosen(self, ids: np.ndarray, memory: np.ndarray, seed: int, now: int) -> np.ndarray:
        return _counted(ids, memory, min(self.times, 2**16 - 1))


@dataclass(frozen=True, kw_only=True)
class Eviction(ABC):
    """Which row goes: the one with the least key; among equals the one with the least id."""

    rising: ClassVar[bool] = False
    """Whether a key only changes to one larger than any so far, so that an order once found stays (`victims.py`)."""

    @abstractmethod
    def keys(self, words: np.ndarray, slots: np.ndarray | slice, column: int, dim: int) -> np.ndarray:
        """The keys of these records; `column` is where the stamp lies."""


@dataclass(frozen=True, kw_only=True)
class LRU(Eviction):
    """The row that training looked up longest ago. Rows of one call are equally recent."""

    rising: ClassVar[bool] = True

    def keys(self, words: np.ndarray, slots: np.ndarray | slice, column: int, dim: int) -> np.ndarray:
        return words[slots, column + 3]


@dataclass(frozen=True, kw_only=True)
class Age(Eviction):
    """The row that was updated longest ago; those that never were go first."""

    limit: int | None = None
    """`Table.sweep` evicts rows whose last update is more than this many stamps ago, whether the table is full or not."""

    def __post_init__(self) -> None:
        if self.limit is not None:
            whole(self.limit, "Age.limit", 0)

    def keys(self, words: np.ndarray, slots: np.ndarray | slice, column: int, dim: int) -> np.ndarray:
        return words[slots, column].astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class L2(Eviction):
    """The row with the shortest vector."""

    limit: float | None = None
    """`Table.sweep` evicts rows whose vector is shorter, whether the table is full or not."""

    def __post_init__(self) -> None:
        if self.limit is not None:
            number(self.limit, "L2.limit")

    def keys(self, words: np.ndarray, slots: np.ndarray | slice, column: int, dim: int) -> np.ndarray:
        which = np.arange(*slots.indices(len(words))) if isinstance(slots, slice) else slots
        return _squared(words, which.astype(np.int64, copy=False), dim)


@njit(boolean[::1](_INTS, uint64, uint64, uint64), **_OPTIONS)
def _drawn(ids, seed, now, below):
    chosen, key = np.empty(ids.size, np.bool_), mix(mix(seed ^ _SALTS[0]) + now)
    for i in range(ids.size):
        chosen[i] = mix(key ^ np.uint64(ids[i])) >> np.uint64(11) < below
    return chosen


@njit(boolean[::1](_INTS, uint16[::1], int64), **_OPTIONS)
def _counted(ids, cells, times):
    """A count-min sketch of two hashes with conservative update: only the smaller count of an id grows."""
    chosen, size = np.empty(ids.size, np.bool_), np.uint64(cells.size)
    for i in range(ids.size):
        first = mix(np.uint64(ids[i]) ^ _SALTS[0]) % size
        second = mix(np.uint64(ids[i]) ^ _SALTS[1]) % size
        met = min(cells[first], cells[second]) + 1
        if met <= 0xFFFF:
            cells[first], cells[second] = max(cells[first], met), max(cells[second], met)
        chosen[i] = met >= times
    return chosen


@njit(types.float32[::1](_WORDS, _INTS, int64), **_OPTIONS)
def _squared(words, slots, dim):
    rows, found = words.view(np.float32), np.zeros(slots.size, np.float32)
    for i in range(slots.size):
        for d in range(np.uint64(dim)):
            value = rows[np.uint64(slots[i]), d]
            found[i] += value * value
    return found
