"""Stores without numbers, for runs that only measure time: their arrays have the right size and no content.

A phantom is one zero, seen at every place: it has the shape and the bytes of the array that it stands for and takes no memory, so
a message with it takes as long. Ids are real, since the rows decide how many bytes a model has.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from lib.store.optim import Optimizer
from lib.store.rows import Rows, union

_zero = functools.cache(lambda dtype: np.zeros(1, dtype))


def phantom(*shape: int, kind: type = np.float32) -> np.ndarray:
    """An array of zeros, not to be written to."""
    dtype = np.dtype(kind)
    return np.ndarray(shape, dtype, _zero(dtype), 0, (0,) * len(shape))


def concat(parts: Sequence[np.ndarray], places: Sequence[np.ndarray | slice] | None = None) -> np.ndarray:
    """The parts' rows in one array, one part after another, or each part's at its `places`; of phantoms a phantom."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    if len(parts) == 1:
        return parts[0]
    if all(map(is_phantom, parts)):
        return phantom(*shape, kind=parts[0].dtype)
    if places is None:
        return np.concatenate(parts)
    whole = np.empty_like(parts[0], shape=shape)
    for place, part in zip(places, parts, strict=True):
        whole[place] = part
    return whole


def select(rows: np.ndarray, part: np.ndarray | slice) -> np.ndarray:
    """Some of the rows; of a phantom a phantom."""
    if is_phantom(rows) and not isinstance(part, slice):  # whose view is one
        return phantom(np.count_nonzero(part) if part.dtype == bool else part.size, *rows.shape[1:], kind=rows.dtype)
    return rows[part]


def is_phantom(array: np.ndarray) -> bool:
    return not any(array.strides) and array.size != 1


class PhantomDense:
    """A `lib.store.dense.DenseStore`, but for its values."""

    def __init__(self, size: int, optimizer: Optimizer):
        optimizer.check_dense()
        self.optimizer, self.values = optimizer, phantom(size)
        self._state: tuple[str, ...] = ()
        """Names of the optimiser's tensors; empty before the first step."""

    def __len__(self) -> int:
        return self.values.size

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.export().values())

    def pull(self) -> np.ndarray:
        return self.values

    def seen(self) -> tuple[np.ndarray, int]:
        return self.values, 0

    still = seen

    def apply(self, grad: np.ndarray, rate: float = 1.0) -> None:
        self._state = self._state or tuple(self.optimizer.first_dense(torch.zeros(1)))

    def assign(self, vector: np.ndarray) -> None:
        """There are no values to be replaced."""

    def state(self, names: Sequence[str]) -> np.ndarray:
        return phantom(len(self) * len({*names} & {*self.optimizer.parts}))

    def export(self) -> dict[str, np.ndarray]:
        return {"values": self.values, **{name: phantom() if name == "step" else self.values for name in self._state}}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._state = tuple(name for name in arrays if name != "values")

    dump, restore = export, load


class PhantomTable:
    """A `Table`, but for its values: it knows which ids it has met."""

    def __init__(self, dim: int, optimizer: Optimizer):
        self.dim, self.optimizer = dim, optimizer
        self._met: list[np.ndarray] = []

    def __len__(self) -> int:
        return self.ids().size

    def pull(self, ids: np.ndarray) -> np.ndarray:
        self._met.append(ids)
        return phantom(ids.size, self.dim)

    def peek(self, ids: np.ndarray) -> np.ndarray:
        return phantom(ids.size, self.dim)

    def push(
        self, ids: np.ndarray, grads: np.ndarray, stamp: int, *, distinct: bool = False, rate: float = 1.0
    ) -> None:
        """These rows were pulled before."""

    def assign(self, ids: np.ndarray, values: np.ndarray) -> None:
        self._met.append(ids)

    def stamps(self, ids: np.ndarray) -> np.ndarray:
        return phantom(ids.size, kind=np.int64)

    def read(self, ids: np.ndarray, *, order: None = None) -> Rows:
        self._met.append(ids)
        return self._rows(ids)

    def write(self, rows: Rows, *, newer: bool = True, order: None = None) -> None:
        self._met.append(rows.ids)

    def ids(self) -> np.ndarray:
        if len(self._met) != 1:
            self._met = [union(self._met)]
        return self._met[0]

    def export(self) -> Rows:
        return self._rows(self.ids())

    def load(self, rows: Rows) -> None:
        self._met = [rows.ids]

    dump, restore = export, load

    def _rows(self, ids: np.ndarray) -> Rows:
        n, columns = ids.size, self.optimizer.columns(self.dim)
        return Rows(ids, phantom(n, self.dim), phantom(n, columns), phantom(n, kind=np.int64))
