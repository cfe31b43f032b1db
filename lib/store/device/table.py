"""A table of fixed size on a device, by torch's operations: what `Table` gives, as long as every set of ways has room.

Guaranteed, whatever the device: an id's first row is `Table`'s, bit for bit; one step of the optimiser per distinct id and push;
a gradient changes the row of its own id or none; the row that goes is the one of its set that training looked up longest ago, and
rows of the call under way stay. Counts are tensors of the device, since to read them is to wait for it; `ways.py` says
what else that takes. On the CPU the sum of an id's gradients runs in the order of the batch; on CUDA the order is torch's affair.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lib.store.device.ways import Ways, first_rows, summed
from lib.store.inputs import number, whole
from lib.store.optim import Optimizer
from lib.store.table.index import NEVER


class DeviceTable:
    """Rows of `dim` float32 numbers, found by any int64 id; ids, rows and gradients are tensors of the device."""

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer,
        *,
        seed: int,
        capacity: int,
        device: torch.device | str,
        scale: float = 0.01,
    ):
        self.dim, self.optimizer = whole(dim, "dim", 1), optimizer
        self.seed, self.scale = whole(seed, "seed"), number(scale, "scale")
        self._ways = Ways(capacity, device)
        slots = self._ways.capacity + 1
        self._rows = torch.zeros((slots, self.dim + optimizer.columns(self.dim)), device=device)
        self._stamps = torch.full((slots,), NEVER, device=device)
        self._touches = torch.zeros(slots, dtype=torch.int64, device=device)
        self._first_state = torch.from_numpy(optimizer.first_state(1, self.dim)).to(device)
        self._calls = 0
        self.lost = torch.zeros((), dtype=torch.int64, device=device)
        """Distinct ids of pushes that found no place, on the device."""

    @property
    def capacity(self) -> int:
        return self._ways.capacity

    @property
    def evicted(self) -> Tensor:
        """How many rows made room for others so far, on the device."""
        return self._ways.evicted

    def __len__(self) -> int:
        """Waits for the device."""
        return int(self._ways.used.sum())

    def pull(self, ids: Tensor) -> Tensor:
        """Copies of the rows, float32[n, dim]; unknown ids are admitted. One that finds no place has its first row."""
        slots, new = self._admitted(ids, look_up=True)
        homeless = (slots == self.capacity) & new
        return torch.where(homeless[:, None], self._first(ids), self._rows[slots, : self.dim])

    def peek(self, ids: Tensor) -> Tensor:
        """What `pull` would give, without admitting anything."""
        slots = self._ways.find(ids)
        return torch.where((slots == self.capacity)[:, None], self._first(ids), self._rows[slots, : self.dim])

    def push(self, ids: Tensor, grads: Tensor, stamp: int) -> None:
        """One optimiser step per distinct id, whose stamp becomes `stamp`; unknown ids are admitted first, or lost."""
        slots, _ = self._admitted(ids, look_up=False)
        sums, first = summed(ids, grads)
        self.lost += (first & (slots == self.capacity)).sum()
        mine = torch.where(first, slots, self.capacity)
        block = self._rows[mine]
        self.optimizer.update(block[:, : self.dim], block[:, self.dim :], sums)
        self._rows[mine] = block
        self._stamps.index_fill_(0, mine, stamp)

    def stamps(self, ids: Tensor) -> Tensor:
        """Timestamps of the last updates, int64[n]; -1 for an id that is unknown or was never updated."""
        slots = self._ways.find(ids)
        return torch.where(slots == self.capacity, NEVER, self._stamps[slots])

    def _admitted(self, ids: Tensor, look_up: bool) -> tuple[Tensor, Tensor]:
        """The slots of ids, and which had none; their rows are there as they start."""
        self._calls += 1
        stays = torch.zeros_like(self._ways.used)
        stays.index_fill_(0, self._ways.find(ids), True)
        slots, new = self._ways.place(ids, self._touches, stays)
        fresh = torch.where(new, slots, self.capacity)
        self._rows[fresh] = torch.cat([self._first(ids), self._first_state.expand(ids.numel(), -1)], dim=1)
        self._stamps.index_fill_(0, fresh, NEVER)
        self._touches.index_fill_(0, slots if look_up else fresh, self._calls)
        return slots, new

    def _first(self, ids: Tensor) -> Tensor:
        return first_rows(ids, self.seed, self.dim, self.scale)
