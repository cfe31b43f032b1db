"""A device's cache of rows that were updated lately and may not be in the host store yet."""

from __future__ import annotations

import numpy as np
import torch

from lib.store.device.transfers import uploaded
from lib.store.optim import SGD
from lib.store.rows import Rows
from lib.store.table import NEVER, Table


class Cache:
    """Newest rows by id with the timestamp of their update. Rows lie on the device, the index on the host, which never waits
    for the device: timestamps are the host's own.

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

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each id's newest row and its timestamp, -1 where it is not cached; places hold until the next `evict`."""
        stamps = self._index.stamps(ids)
        return self._index.peek(ids).view(np.int32)[:, 0], np.where(stamps > self._safe, stamps, NEVER)

    def take(self, places: np.ndarray) -> torch.Tensor:
        """The rows at these places."""
        return self._rows.index_select(0, uploaded(places, self._rows.device))

    def room(self, ids: np.ndarray, stamp: int) -> torch.Tensor:
        """The place in which an update is to write its rows, of distinct ids; they replace older ones. Nothing else is written
        there until the update is evicted."""
        first = self._gap(ids.size)
        self._updates[stamp] = range(first, first + ids.size)
        places = np.arange(first, first + ids.size, dtype=np.int32).view(np.float32)
        state, stamps = np.empty((ids.size, 0), np.float32), np.full(ids.size, stamp)
        self._index.write(Rows(ids, places[:, None], state, stamps), newer=False)
        return self._rows[first : first + ids.size]

    def evict(self, safe: int) -> int:
        """Give back the room of updates whose timestamp is at most `safe`; how many rows went."""
        gone = [stamp for stamp in self._updates if stamp <= safe]
        evicted = sum(len(self._updates.pop(stamp)) for stamp in gone)
        self._safe = max(self._safe, safe)
        if len(self._index) > 2 * len(self):
            rows = self._index.export()
            cached = rows.stamps > self._safe
            self._index.load(Rows(rows.ids[cached], rows.values[cached], rows.state[cached], rows.stamps[cached]))
        return evicted

    def _gap(self, size: int) -> int:
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
