"""A device's cache of rows that were updated lately and may not be in the host store yet."""

from __future__ import annotations

import numpy as np
import torch

from lib.store.device.road import uploaded
from lib.store.table.index import ids_at
from lib.store.table.records import Layout, Records


class Cache:
    """Newest rows by id with the timestamp of their update. Rows lie on the device, the index on the host, which never waits
    for the device: timestamps are the host's own.

    A row that is safe to evict may stay for a while: memory is given back when at least half of it is safe, so the size
    is at most twice what is needed.
    """

    def __init__(self, width: int, device: torch.device):
        self._rows = torch.empty((0, width), device=device)
        self._records = Records(Layout(dim=0, columns=0, limited=False), _nothing, capacity=1024)

    def __len__(self) -> int:
        return self._records.count

    def stamps(self, ids: np.ndarray) -> np.ndarray:
        """The cached timestamp of each id; -1: not cached."""
        return self._records.stamps(self._records.find(ids)[0])

    def take(self, ids: np.ndarray) -> torch.Tensor:
        """The rows of cached ids."""
        return self._rows.index_select(0, self._at(self._records.find(ids)[0]))

    def put(self, ids: np.ndarray, rows: torch.Tensor, stamp: int) -> None:
        """Rows of distinct ids as one update left them; they replace older ones."""
        slots = self._records.admit(ids, 0)
        self._records.words[slots, self._records.column] = stamp
        if missing := self._records.capacity - len(self._rows):
            self._rows = torch.cat([self._rows, self._rows.new_empty((missing, self._rows.shape[1]))])
        self._rows.index_copy_(0, self._at(slots), rows)

    def evict(self, safe: int) -> int:
        """Give back rows whose timestamp is at most `safe`; how many went."""
        records = self._records
        stamps = records.stamps(np.arange(records.count))
        needed = np.flatnonzero(stamps > safe)
        evicted = records.count - needed.size
        if 2 * needed.size > records.count or not evicted:
            return 0
        ids = ids_at(records.words, needed, records.column)
        records.clear()
        slots = records.admit(ids, 0)
        records.words[slots, records.column] = stamps[needed]
        self._rows.index_copy_(0, self._at(slots), self._rows.index_select(0, self._at(needed)))
        return evicted

    def _at(self, slots: np.ndarray) -> torch.Tensor:
        return uploaded(slots, self._rows.device)


def _nothing(ids: np.ndarray) -> np.ndarray:
    """Of a record here only its stamp and id count."""
    return np.empty((ids.size, 0), np.float32)
