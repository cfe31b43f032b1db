"""A tensor on a device under numpy's names, so that rules and drivers do one arithmetic wherever parameters lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from lib.errors import BadOption

NAMES = {
    "concatenate": torch.cat,
    "copy": torch.clone,
    "empty_like": lambda array, shape: array.new_empty(shape),
    "norm": torch.linalg.vector_norm,
    "power": torch.pow,
    "shape": lambda array: tuple(array.shape),
    "split": lambda array, parts: array.chunk(parts),
}
"""Functions that torch calls otherwise."""


def upload_array(array: Any, device: torch.device) -> torch.Tensor:
    """The array on a device, for what its current stream does next; the host goes on at once."""
    array = array.tensor if isinstance(array, DeviceArray) else array
    if isinstance(array, torch.Tensor) and array.device.type != "cpu":
        return array.to(device)
    tensor = torch.as_tensor(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def to_native(tensor: torch.Tensor) -> Any:
    """A tensor's array on the CPU, of the same memory; on a device a `DeviceArray`."""
    return tensor.detach().numpy() if tensor.device.type == "cpu" else DeviceArray(tensor.detach())


class DeviceArray(NDArrayOperatorsMixin):
    """numpy's operators, indexing and functions on a device's tensor; nothing leaves the device and the host waits for nothing.

    Other arguments of a numpy call, arrays or numbers, are brought to the device. Where the host asks for content
    (`np.asarray`, `float`, `bool`) it waits. A pickled one is numpy's array again.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    shape = property(lambda self: tuple(self.tensor.shape))
    size = property(lambda self: self.tensor.numel())
    nbytes = property(lambda self: self.tensor.nbytes)
    strides = property(lambda self: self.tensor.stride())
    dtype = property(lambda self: np.dtype(str(self.tensor.dtype).removeprefix("torch.")))

    def __len__(self) -> int:
        return len(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __getitem__(self, at: Any) -> DeviceArray:
        return DeviceArray(self.tensor[self._to_tensors(at)])

    def __setitem__(self, at: Any, values: Any) -> None:
        self.tensor[self._to_tensors(at)] = self._to_tensors(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.tensor.cpu().numpy(), dtype)

    def __reduce__(self) -> tuple:
        return np.asarray, (np.asarray(self),)

    def copy(self) -> DeviceArray:
        return DeviceArray(self.tensor.clone())

    def reshape(self, *shape: Any) -> DeviceArray:
        return DeviceArray(self.tensor.reshape(*shape))

    def astype(self, kind: Any) -> DeviceArray:
        return DeviceArray(self.tensor.to(getattr(torch, np.dtype(kind).name)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if method != "__call__" or options:
            raise BadOption(f"numpy's {ufunc.__name__} is not there with options, or as {method}, on a device")
        inner = [self._to_tensors(each) for each in inputs]
        if (
            ufunc is not np.power
        ):  # of two numbers torch takes none, and one next to a tensor as a tensor of no dimension
            inner = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in inner]
        made = _torch_function(ufunc.__name__)(*inner)
        if out:
            out[0][...] = DeviceArray(made)
            return out[0]
        return DeviceArray(made)

    def __array_function__(self, function: Any, types: Any, args: tuple, options: dict) -> Any:
        return _wrap(_torch_function(function.__name__)(*self._to_tensors(args), **options))

    def _to_tensors(self, value: Any) -> Any:
        if isinstance(value, DeviceArray):
            return value.tensor
        if isinstance(value, np.ndarray):
            return upload_array(value if value.flags.writeable else value.copy(), self.tensor.device)
        return type(value)(map(self._to_tensors, value)) if type(value) in (tuple, list) else value


def _torch_function(name: str) -> Any:
    if found := NAMES.get(name) or getattr(torch, name, None):
        return found
    raise BadOption(f"numpy's {name} is not there for arrays on a device; use another form, or device='cpu'")


def _wrap(made: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return DeviceArray(made)
    return (
        [_wrap(each) for each in made]
        if isinstance(made, tuple) and made and isinstance(made[0], torch.Tensor)
        else made
    )
