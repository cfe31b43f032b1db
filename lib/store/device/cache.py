"""A device's cache of rows that were updated lately and may not be in the host store yet."""

from __future__ import annotations

import numpy as np
import torch

from lib.store.table import kernels


class Cache:
    """Newest rows by id with the timestamp of their update. Rows lie on the device, the index on the host.

    A row that is safe to evict may stay for a while: memory is given back when at least half of it is safe, so the size
    is at most twice what is needed.
    """

    def __init__(self, width: int, device: torch.device):
        self._rows = torch.empty((0, width), device=device)
        self._ids = np.empty(0, np.int64)
        self._stamps = np.empty(0, np.int64)
        self._count = 0
        self._rebuild(0, 1024)

    def __len__(self) -> int:
        return self._count

    def stamps(self, ids: np.ndarray) -> np.ndarray:
        """The cached timestamp of each id; -1: not cached."""
        slots, missing = kernels.find(self._index, ids)
        if missing == ids.size:
            return np.full(ids.size, -1)
        return np.where(slots >= 0, self._stamps[slots], -1)

    def take(self, ids: np.ndarray) -> torch.Tensor:
        """The rows of cached ids."""
        return self._rows[torch.from_numpy(kernels.find(self._index, ids)[0]).to(self._rows.device)]

    def put(self, ids: np.ndarray, rows: torch.Tensor, stamp: int) -> None:
        """Rows of distinct ids as one update left them; they replace older ones."""
        slots, missing = kernels.find(self._index, ids)
        if missing:
            if self._count + missing > self._ids.size:
                self._rebuild(self._count, 2 * (self._count + missing))
            new = slots < 0
            slots[new] = np.arange(self._count, self._count + missing)
            kernels.insert(self._index, ids[new], self._count)
            self._ids[slots[new]] = ids[new]
            self._count += missing
        self._stamps[slots] = stamp
        self._rows[torch.from_numpy(slots).to(self._rows.device)] = rows

    def evict(self, safe: int) -> int:
        """Give back rows whose timestamp is at most `safe`; how many went."""
        needed = np.flatnonzero(self._stamps[: self._count] > safe)
        evicted = self._count - needed.size
        if 2 * needed.size > self._count or not evicted:
            return 0
        self._ids[: needed.size] = self._ids[needed]
        self._stamps[: needed.size] = self._stamps[needed]
        self._rows[: needed.size] = self._rows[torch.from_numpy(needed).to(self._rows.device)]
        self._rebuild(needed.size, self._ids.size)
        return evicted

    def _rebuild(self, count: int, capacity: int) -> None:
        """An index of the first `count` entries, with room for `capacity`."""
        if capacity > self._ids.size:
            extra = capacity - self._ids.size
            self._ids = np.concatenate([self._ids, np.zeros(extra, np.int64)])
            self._stamps = np.concatenate([self._stamps, np.zeros(extra, np.int64)])
            self._rows = torch.cat([self._rows, self._rows.new_zeros((extra, self._rows.shape[1]))])
        self._count = count
        self._index = np.full((1 << (2 * capacity - 1).bit_length(), 2), -1, np.int64)
        kernels.insert(self._index, self._ids[:count], 0)
