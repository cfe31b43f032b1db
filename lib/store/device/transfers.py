"""Arrays between the host and a device: through pinned memory, each way on a stream of its own, and nobody waits who need not.

On the CPU there is no way to go: what is sent is there, in the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def uploaded(array: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """The array on a device, for what its current stream does next; the host goes on at once."""
    if isinstance(array, torch.Tensor) and array.device.type != "cpu":
        return array.to(device)
    tensor = torch.as_tensor(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What was sent. It is to be held until whoever uses it is done: a stream knows nothing of another's."""

    what: Any
    _event: torch.cuda.Event | None = None
    _source: Any = None
    """Memory of the device that must not be used again before."""

    def on_device(self) -> Any:
        """For the current stream, which goes on when it is there."""
        if self._event:
            torch.cuda.current_stream().wait_event(self._event)
        return self.what

    def on_host(self) -> Any:
        """For the host, which waits until it is there."""
        if self._event:
            self._event.synchronize()
        return self.what


class Transfers:
    """Both ways between the host and one device."""

    def __init__(self, device: torch.device):
        self._device = device
        self._up, self._down = (torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(2))

    def up(self, send: Callable[[], Any]) -> Arrival:
        """What `send` uploads."""
        with _on(self._up):
            return Arrival(send(), self._up and self._up.record_event())

    def down(self, tensors: Mapping[str, torch.Tensor]) -> Arrival:
        """These tensors on the host, as they will be when the current stream has done what it was asked for so far."""
        if self._device.type == "cpu":
            return Arrival(tensors)
        if self._down:
            self._down.wait_stream(torch.cuda.current_stream(self._device))
        with _on(self._down):
            there = {name: self._copy(tensor) for name, tensor in tensors.items()}
            return Arrival(there, self._down and self._down.record_event(), tensors)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._down is not None)
        return host.copy_(tensor, non_blocking=True)


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager:
    return torch.cuda.stream(stream) if stream else nullcontext()
