"""Pooling where the rows are: a server sums the rows of each bag that it holds, the trainer adds the servers' parts.

A bag is the ids of one sample in one feature group. ShadowSync (Section 3.1) pools on the embedding server, so that one row a
bag travels and not one an id. Guaranteed: joined parts equal the pool over the whole, however the ids are split, up to the
rounding of float32 sums taken in another order (exactly, where every sum is exact).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit, types
from numba.types import float32, int64

from lib.errors import BadOption
from lib.store.inputs import ids_of

Kind = Literal["sum", "mean"]

_INTS = types.Array(int64, 1, "C", readonly=True)
_BLOCK = types.Array(float32, 2, "C", readonly=True)


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """The ids of many samples, entry by entry."""

    ids: np.ndarray
    """int64[n]."""
    bags: np.ndarray
    """int64[n], the bag that each entry belongs to."""
    count: int
    """Number of bags; some may be empty."""

    def __post_init__(self):
        if self.bags.shape != self.ids.shape:
            raise BadOption(f"bags must name one bag for each of the {self.ids.size} ids, not {self.bags.shape}")
        if self.bags.size and not 0 <= self.bags.min() <= self.bags.max() < self.count:
            raise BadOption(f"bags must lie in [0, {self.count}), not in [{self.bags.min()}, {self.bags.max()}]")

    @classmethod
    def of(cls, ids, offsets) -> Bags:
        """As torch.nn.EmbeddingBag takes them: bag k starts at `offsets[k]`."""
        ids, offsets = ids_of(ids), ids_of(offsets, "offsets")
        sizes = np.diff(np.append(offsets, ids.size))
        if offsets.size and (offsets[0] != 0 or sizes.min() < 0):
            raise BadOption("offsets must start at 0, rise, and end within the ids")
        return cls(ids, np.repeat(np.arange(offsets.size), sizes), offsets.size)

    def take(self, entries: np.ndarray | slice) -> Bags:
        """Some of the entries, as one server gets them; the bags stay numbered as they are."""
        return Bags(np.ascontiguousarray(self.ids[entries]), np.ascontiguousarray(self.bags[entries]), self.count)


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """One server's part of a pool."""

    sums: np.ndarray
    """float32[bags, dim]."""
    counts: np.ndarray
    """int32[bags], entries that were summed; a mean needs the total."""

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes + self.counts.nbytes


def pool(rows: np.ndarray, bags: Bags) -> Partial:
    """The part of whoever holds these rows, one for each entry of `bags`, float32[n, dim]."""
    if rows.shape[:1] != bags.ids.shape:
        raise BadOption(f"rows must be one for each of the {bags.ids.size} entries, not of shape {rows.shape}")
    return Partial(*_sums(rows, bags.bags, bags.count))


def join(parts: Sequence[Partial], kind: Kind = "sum") -> np.ndarray:
    """The pool over all entries, float32[bags, dim]; parts are added in their order, an empty bag is 0."""
    if kind not in ("sum", "mean"):
        raise BadOption(f"pooling must be 'sum' or 'mean', not {kind!r}")
    total = parts[0].sums.copy()
    for part in parts[1:]:
        total += part.sums
    if kind == "mean":
        total /= _at_least_one(parts)[:, None]
    return total


def spread(grads: np.ndarray, bags: Bags, parts: Sequence[Partial] = (), kind: Kind = "sum") -> np.ndarray:
    """The gradient of each entry of `bags` from the pool's, float32[n, dim]; a mean asks for all its parts' counts."""
    if kind == "mean":
        grads = grads / _at_least_one(parts)[:, None]
    return grads[bags.bags]


def _at_least_one(parts: Sequence[Partial]) -> np.ndarray:
    return np.maximum(1, sum(part.counts for part in parts)).astype(np.float32)


@njit(
    types.Tuple((float32[:, ::1], types.int32[::1]))(_BLOCK, _INTS, int64),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _sums(rows, bags, count):
    sums = np.zeros((count, rows.shape[1]), np.float32)
    counts = np.zeros(count, np.int32)
    for i in range(bags.size):
        total, row = sums[bags[i]], rows[i]
        for d in range(rows.shape[1]):
            total[d] += row[d]
        counts[bags[i]] += 1
    return sums, counts
