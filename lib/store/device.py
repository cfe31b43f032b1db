"""Rows and arrays in a device's memory: how they get to it and back, and a cache of rows that were updated lately.

Transfers go through pinned memory, each way on a stream of its own, and nothing waits that need not. On the CPU an array that is
sent is there, in the same memory.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lib.device_array import DeviceArray, upload_array
from lib.errors import BadOption
from lib.store.optim import SGD, Optimizer
from lib.store.rows import Dump, Rows
from lib.store.table import NEVER, Table


@dataclass(frozen=True, slots=True)
class Arrival:
    """What was sent. Hold it until the copy has been used: one stream does not know when another is done."""

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

    def upload(self, send: Callable[[], Any]) -> Arrival:
        """What `send` uploads."""
        with _on(self._up):
            return Arrival(send(), self._up and self._up.record_event())

    def download(self, tensors: Mapping[str, torch.Tensor]) -> Arrival:
        """These tensors on the host, as they will be when the current stream has done what it was asked for so far."""
        if self._device.type == "cpu":
            return Arrival(tensors)
        if self._down:
            self._down.wait_stream(torch.cuda.current_stream(self._device))
        with _on(self._down):
            there = {name: self._copy_to_host(tensor) for name, tensor in tensors.items()}
            return Arrival(there, self._down and self._down.record_event(), tensors)

    def _copy_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._down is not None)
        return host.copy_(tensor, non_blocking=True)


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager:
    return torch.cuda.stream(stream) if stream else nullcontext()


class DeviceTable(Table):
    """A `Table` with its rows, [values | state], on a device; index, ids, timestamps and the order in which rows are evicted are
    on the host, which waits for nothing. Blocks of rows are arrays of the device.

    A `dump` is that of a `Table`, and either kind of table goes on with it. Numbers are torch's, and differ from those of the
    host's kernels by rounding.
    """

    _rows_in_records = False

    def __init__(self, dim: int, optimizer: Optimizer, *, device: torch.device, **options: Any):
        self._device = device
        super().__init__(dim, optimizer, **options)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._rows.nbytes

    def dump(self) -> Dump:
        records = np.asarray(self._rows[: len(self)]).view(np.uint32), self._words[: len(self)]
        return replace(super().dump(), words=np.hstack(records))

    def restore(self, dump: Dump) -> None:
        super().restore(replace(dump, words=dump.words[:, self._numbers :]))
        self._rows[: len(self)] = dump.words[:, : self._numbers].view(np.float32)

    def take(self, slots: Any, width: int | None = None) -> torch.Tensor:
        """The first numbers of the rows in these slots, or all."""
        return self._rows.tensor[:, :width].index_select(0, upload_array(slots, self._device))

    def _read_or_initial_rows(
        self, ids: np.ndarray, width: int, call_number: int = 0
    ) -> tuple[DeviceArray, np.ndarray, np.ndarray]:
        slots, _ = self._find_slots(ids, call_number=call_number)
        block, missing = DeviceArray(self.take(slots.clip(0), width)), np.flatnonzero(slots < 0)
        if missing.size:
            block[missing] = self._initial_rows(ids[missing])[:, :width]
        return block, slots, ids[missing]

    def _step(self, optimizer: Optimizer, slots: np.ndarray, grads: Any, stamp: int) -> None:
        at = upload_array(slots, self._device)
        block = self.take(at)
        optimizer.update(block[:, : self.dim], block[:, self.dim :], upload_array(grads, self._device))
        self._rows.tensor.index_copy_(0, at, block)
        self._words.view(np.int32)[slots, 0] = stamp

    def _replace(self, slots: np.ndarray, block: Any, stamps: Any, newer: bool) -> None:
        if newer:
            raise BadOption("rows on a device are written whatever their timestamps are: a host store compares those")
        self._rows.tensor.index_copy_(0, *(upload_array(array, self._device) for array in (slots, block)))
        self._words.view(np.int32)[slots, 0] = stamps

    def _sum_count(self, positions: np.ndarray, grads: Any, weights: np.ndarray, count: int) -> tuple[Any, np.ndarray]:
        """Sums are by sorted positions, so that no order of a device's threads decides their bits."""
        at, each, grads = (upload_array(array, self._device) for array in (positions, weights[:, None], grads))
        sums = torch.ops.aten.embedding_dense_backward(each * grads, at, count, -1, False)
        return DeviceArray(sums), np.bincount(positions, minlength=count)

    def _resize(self, capacity: int) -> None:
        rows = DeviceArray(torch.empty((capacity, self._numbers), device=self._device))
        rows[: len(self)] = self._rows[: len(self)] if len(self) else 0
        super()._resize(capacity)
        self._rows = rows


class Cache:
    """Rows that were updated lately and may not be in the host store yet: the newest by id, with its update's timestamp. Rows
    lie on the device, the index on the host, which never waits for the device: timestamps are the host's own.

    An update's rows lie side by side and go together when all of them are safe to evict, so an id may be there several times; the
    index knows the newest. A step writes them where they are to lie, so that caching copies nothing.
    """

    def __init__(self, width: int, device: torch.device):
        self._rows = torch.empty((0, width), device=device)
        self._updates: dict[int, range] = {}
        """Timestamp -> where the rows of that update are."""
        self._safe = NEVER
        self._index = Table(1, SGD(lr=1.0), seed=0, scale=0.0)
        """Of each id the newest update's timestamp, and the bits of its row's place as a value."""

    def __len__(self) -> int:
        return sum(map(len, self._updates.values()))

    def places_and_stamps(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each id's newest row and its timestamp, -1 where it is not cached; places hold until updates are
        released."""
        slots, _ = self._index._find_slots(ids)  # once, for both
        stamps = self._index._stamps(slots)
        return self._index._rows.view(np.int32)[slots, 0], np.where(stamps > self._safe, stamps, NEVER)

    def take(self, places: np.ndarray) -> torch.Tensor:
        """The rows at these places."""
        return self._rows.index_select(0, upload_array(places, self._rows.device))

    def reserve_view(self, ids: np.ndarray, stamp: int) -> torch.Tensor:
        """The place in which an update is to write its rows, of distinct ids; they replace older ones. Nothing else is written
        there until the update is evicted."""
        first = self._make_room(ids.size)
        self._updates[stamp] = range(first, first + ids.size)
        places = np.arange(first, first + ids.size, dtype=np.int32).view(np.float32)
        state, stamps = np.empty((ids.size, 0), np.float32), np.full(ids.size, stamp)
        self._index.write(Rows(ids, places[:, None], state, stamps), newer=False)
        return self._rows[first : first + ids.size]

    def release_updates(self, safe: int) -> int:
        """Give back the room of updates whose timestamp is at most `safe`; how many rows went."""
        gone = [stamp for stamp in self._updates if stamp <= safe]
        evicted = sum(len(self._updates.pop(stamp)) for stamp in gone)
        self._safe = max(self._safe, safe)
        if len(self._index) > 2 * len(self):
            rows = self._index.export()
            cached = rows.stamps > self._safe
            self._index.load(Rows(rows.ids[cached], rows.values[cached], rows.state[cached], rows.stamps[cached]))
        return evicted

    def _make_room(self, size: int) -> int:
        """The first place with so much room, made at the end if there is none."""
        first = 0
        for taken in sorted(self._updates.values(), key=lambda taken: taken.start):
            if first + size <= taken.start:
                return first
            first = taken.stop
        if missing := max(0, first + size - len(self._rows)):
            more = self._rows.new_empty((max(missing, len(self._rows)), self._rows.shape[1]))
            self._rows = torch.cat([self._rows, more])
        return first
