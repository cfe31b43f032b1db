"""Dense parameters: one flat vector with torch.optim's semantics on it, and behind them what no gradient moves."""

import threading
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from lib.device_array import DeviceArray, to_native, upload_array
from lib.errors import BadOption
from lib.store.optim import Optimizer
from lib.store.rows import floats_of, phantom


class DenseStore:
    """A float32 vector on a device; every call is atomic for threads, except that `values` is live."""

    def __init__(
        self,
        start: np.ndarray | torch.Tensor,
        optimizer: Optimizer,
        *,
        device: torch.device | str = "cpu",
        trained: int | None = None,
    ):
        """`start` is copied; the optimiser steps the first `trained` of its values, or all."""
        self.optimizer = optimizer
        self._lock, self._writes = threading.Lock(), 0
        if start.ndim != 1:
            raise BadOption(f"start must be one-dimensional, not of shape {tuple(start.shape)}")
        self._size = start.shape[0]
        self._trained = self._size if trained is None else trained
        self._device = torch.device(device)
        self.values = self._checked(start, "start", self._size).to(device, copy=True)
        """The live vector on its device: later steps show in it."""
        self._stepped = self.values[: self._trained]
        self._state: dict[str, torch.Tensor] = {}
        """The optimiser's; empty before the first step."""
        optimizer.check_dense()

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Bytes of the vector and of the optimiser's state."""
        return self.values.nbytes + sum(map(attrgetter("nbytes"), self._state.values()))

    def pull(self) -> Any:
        """A copy of the vector, where it lies."""
        return self.copy_with_version()[0]

    def copy_with_version(self, before: tuple[Any, int] | None = None) -> tuple[Any, int]:
        """A copy of the vector, and how often it had been written to; the one from `before`, if it is still that."""
        with self._lock:
            if before is not None and before[1] == self._writes:
                return before
            return to_native(self.values.clone()), self._writes

    def apply(self, grad: Any, rate: float = 1.0, *, sound: torch.Tensor | None = None) -> None:
        """One optimiser step, with `rate` times the learning rate; the gradient is only read.

        `sound` is true or false on the vector's device, which the host need not know: then nothing changes if it is false.
        """
        grad = self._tensor(grad, "grad", self._trained)
        with self._lock:
            self._state = self._state or self.optimizer.initial_dense_state(self._stepped)
            before = {} if sound is None else {name: tensor.clone() for name, tensor in self._tensors().items()}
            self.optimizer.step(self._stepped, self._state, grad, rate)
            self._writes += 1
            for name, tensor in () if sound is None else self._tensors().items():
                if tensor.device == sound.device:  # Adagrad's steps are counted on the host; no value depends on them
                    tensor.copy_(torch.where(sound, tensor, before[name]))

    def view_with_version(self) -> tuple[Any, int]:
        """The same without a copy: for a caller that knows that nothing is written until it is done."""
        with self._lock:
            return to_native(self.values), self._writes

    def shift_statistics(self, change: Any) -> None:
        """Move what no gradient moves by so much."""
        change = self._tensor(change, "change", self._size - self._trained)
        with self._lock:
            self.values[self._trained :].add_(change)
            self._writes += 1

    def assign(self, vector: Any) -> None:
        """Replace the vector and keep the optimiser's state."""
        vector = self._tensor(vector, "vector", self._size)
        with self._lock:
            self.values.copy_(vector)
            self._writes += 1

    def state(self, names: Sequence[str]) -> Any:
        """A copy of these of the optimiser's tensors, end to end; before its first step they are what it begins with."""
        with self._lock:
            state = (self._state or self.optimizer.initial_dense_state(self._stepped)) if names else {}
            return to_native(torch.cat([self.values[:0], *(state[name] for name in names if name in state)]))

    def set_state(self, names: Sequence[str], state: Any) -> None:
        """Replace these of the optimiser's tensors."""
        with self._lock:
            self._state = self._state or self.optimizer.initial_dense_state(self._stepped)
            known = [name for name in names if name in self._state]
            for name, part in zip(known, np.split(state, max(len(known), 1)), strict=False):
                self._state[name].copy_(self._tensor(part, name, self._trained))

    def merge_and_count_others(self, before: Any, version: int, after: Any) -> int:
        """Go from `before`, as `copy_with_version`, to `after`, and keep what others have written since; how many did."""
        with self._lock:
            since, self._writes = self._writes - version, self._writes + 1
            if since:
                self.values.add_(self._tensor(after - before, "after", self._size))
            else:
                self.values.copy_(self._tensor(after, "after", self._size))
            return since

    def export(self) -> dict[str, np.ndarray]:
        """Copies of "values" and of the optimiser's tensors by torch's names; Adam has none before its first step."""
        with self._lock:
            return {name: tensor.to("cpu", copy=True).numpy() for name, tensor in self._tensors().items()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the vector and the optimiser's state by what `export` gave."""
        first = self.optimizer.initial_dense_state(self._stepped)
        names, expected = set(arrays) - {"values"}, set(first)
        if "values" not in arrays or names not in (set(), expected):
            raise BadOption(
                f"a dense store with {self.optimizer.name} loads values, {', '.join(sorted(expected)) or 'no state'}; "
                f"got {', '.join(sorted(arrays)) or 'nothing'}"
            )
        shapes = {"values": (self._size,), "step": ()}
        shapes = {name: shapes.get(name, (self._trained,)) for name in arrays}
        state = {name: torch.tensor(floats_of(arrays[name], shapes[name], name)) for name in arrays}
        values = state.pop("values")
        with self._lock:
            self.values.copy_(values)
            self._writes += 1
            self._state = {name: tensor.to(first[name].device) for name, tensor in state.items()}

    dump, restore = export, load

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {"values": self.values, **self._state}

    def _tensor(self, vector: Any, name: str, size: int) -> torch.Tensor:
        """On the vector's device."""
        return upload_array(self._checked(vector, name, size), self._device)

    def _checked(self, vector: Any, name: str, size: int) -> torch.Tensor:
        vector = vector.tensor if isinstance(vector, DeviceArray) else vector
        if isinstance(vector, torch.Tensor):
            vector = vector.detach()
            if vector.dtype == torch.float32 and vector.shape == (size,):
                return vector.contiguous()  # torch's fused optimisers read a strided gradient as if it were dense
            vector = vector.cpu()
        array = floats_of(vector, (size,), name)
        return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch warns of read-only memory


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

    def copy_with_version(self) -> tuple[np.ndarray, int]:
        return self.values, 0

    view_with_version = copy_with_version

    def apply(self, grad: np.ndarray, rate: float = 1.0) -> None:
        self._state = self._state or tuple(self.optimizer.initial_dense_state(torch.zeros(1)))

    def assign(self, vector: np.ndarray) -> None:
        """There are no values to be replaced."""

    def state(self, names: Sequence[str]) -> np.ndarray:
        return phantom(len(self) * len({*names} & {*self.optimizer.parts}))

    def export(self) -> dict[str, np.ndarray]:
        return {"values": self.values, **{name: phantom() if name == "step" else self.values for name in self._state}}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._state = tuple(name for name in arrays if name != "values")

    dump, restore = export, load
