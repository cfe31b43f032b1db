"""How a batch asks for its ids: three forms that say the same, with unlike numbers of bytes (Persia, Section 4.2.3).

- "distinct": each id once, int64; the worker keeps to itself where in the batch it stands;
- "entries": what stands at each place of the batch, int64, as systems send it that do not compress;
- "samples": each id once, with the samples that have it as uint16: lossless, as Persia sends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lib.store.kernels import unique

Form = Literal["distinct", "entries", "samples"]
NARROW = 65_535
"""A batch of at most so many samples has uint16 indices; a larger one has uint32."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleIndex:
    """{id: the samples that have it}. A sample that has an id twice stands there twice."""

    ids: np.ndarray
    """int64[u], distinct."""
    counts: np.ndarray
    """uint16 or uint32[u], places of each id."""
    samples: np.ndarray
    """uint16 or uint32[n], the ids' samples one after another, ascending inside an id."""

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.counts.nbytes + self.samples.nbytes


def encode(form: Form, ids: np.ndarray, where: np.ndarray, mine: np.ndarray | slice) -> Any:
    """The message that asks for `ids[mine]`; `where` has for each place of the batch, samples first, its id's position."""
    wanted = ids[mine]
    if form == "distinct":
        return wanted
    positions = where.ravel()
    entries = np.arange(positions.size)
    if wanted.size < ids.size:
        rank = np.full(ids.size, -1)
        rank[mine] = np.arange(wanted.size)
        positions = rank[positions]
        entries = np.flatnonzero(positions >= 0)
        positions = positions[entries]
    if form == "entries":
        return wanted[positions]
    batch = where.shape[0]
    counts = np.bincount(positions, minlength=wanted.size)
    order = np.argsort(_narrow(positions, wanted.size), kind="stable")
    samples = entries[order] // max(1, where.size // max(1, batch))
    return SampleIndex(wanted, _narrow(counts, counts.max(initial=0)), _narrow(samples, batch))


def decode(form: Form, message: Any) -> np.ndarray:
    """The distinct ids, in the order in which `encode` had them."""
    if form == "samples":
        return message.ids
    return unique(message)[0] if form == "entries" else message


def _narrow(numbers: np.ndarray, most: int) -> np.ndarray:
    return numbers.astype(np.uint16 if most <= NARROW else np.uint32)
