"""OAC's cache with its index on the device: no round trip to the host is needed (Waleffe and Mohoney, Section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.errors import LockstepError
from lib.store.device.ways import Ways


class DeviceCache:
    """The newest rows by id with the timestamp of their update, in memory of a fixed size.

    A row whose timestamp is safe to evict is gone with `evict`; the others stay, whatever comes. So a set of ways may be full of
    rows that must not go: what finds no place then is counted, and `check` raises, since validation could miss a conflict.
    """

    def __init__(self, width: int, capacity: int, device: torch.device | str):
        self._ways = Ways(capacity, device)
        self._rows = torch.zeros((self._ways.capacity + 1, width), device=device)
        self._stamps = torch.full((self._ways.capacity + 1,), -1, device=device)

    def __len__(self) -> int:
        """Waits for the device."""
        return int(self._ways.used.sum())

    def stamps(self, ids: Tensor) -> Tensor:
        """The cached timestamp of each id; -1: not cached."""
        return self._stamps[self._ways.find(ids)]

    def validate(self, ids: Tensor, rows: Tensor, stamps: Tensor) -> tuple[Tensor, Tensor]:
        """The rows as they are to be computed with, and which of them were read before their last update."""
        slots = self._ways.find(ids)
        stale = self._stamps[slots] > stamps
        return torch.where(stale[:, None], self._rows[slots], rows), stale

    def put(self, ids: Tensor, rows: Tensor, stamp: int) -> None:
        """Rows of distinct ids as one update left them; they replace older ones."""
        slots, _ = self._ways.place(ids, self._stamps, self._ways.used)
        self._rows[slots] = rows
        self._stamps.index_fill_(0, slots, stamp)
        self._stamps[self._ways.capacity].fill_(-1)

    def evict(self, safe: int | Tensor) -> None:
        """Give back the rows whose timestamp is at most `safe`."""
        self._ways.used &= self._stamps > safe
        self._stamps.masked_fill_(~self._ways.used, -1)

    def check(self) -> None:
        """An error if a row found no place since the cache was made; waits for the device."""
        if unplaced := int(self._ways.unplaced):
            raise LockstepError(
                f"{unplaced} updated rows found no place in a cache of {self._ways.capacity}: "
                "it needs more room, or fewer batches in flight"
            )
