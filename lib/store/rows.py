"""Rows of a table as they travel and rest: with everything that belongs to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Copies of rows; entry i of every array belongs to `ids[i]`."""

    ids: np.ndarray
    """int64[n]."""
    values: np.ndarray
    """float32[n, dim], what a look-up gives."""
    state: np.ndarray
    """float32[n, columns], the optimiser's state."""
    stamps: np.ndarray
    """int64[n], timestamp of the last update, -1 for none."""

    def __len__(self) -> int:
        return self.ids.size

    @property
    def nbytes(self) -> int:
        """Bytes of all four arrays."""
        return self.ids.nbytes + self.values.nbytes + self.state.nbytes + self.stamps.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """Everything that a table holds, as its records lie in memory: nothing is sorted, so that it costs no more than a copy."""

    weightless: ClassVar[tuple[str, ...]] = ("index",)
    """Whoever gets the records can make the index, whose size follows the table's past."""
    words: np.ndarray
    """uint32[n, width], the records."""
    index: np.ndarray
    """uint32[m], where each id's record is: to find it anew would cost as much as reading the rows."""
    numbers: tuple[int, int, int]
    """Calls, lost, evicted."""
