"""A device's cache of rows that were updated lately and may not be in the host store yet."""

from __future__ import annotations

import numpy as np
import torch

from lib.store.device.road import uploaded
from lib.store.table.index import NEVER, ids_at, note
from lib.store.table.records import Layout, Records


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
        self._records = Records(Layout(dim=1, columns=0, limited=False), _nowhere, capacity=1024)
        """Of each id the newest update's timestamp, and where its row is."""

    def __len__(self) -> int:
        return sum(map(len, self._updates.values()))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """What `stamps`, `take` and `room` ask for: where the index has each id; -1: nowhere. It holds until the next `evict`."""
        return self._records.find(ids)[0]

    def stamps(self, found: np.ndarray) -> np.ndarray:
        """The cached timestamps of ids that were found; -1: not cached."""
        stamps = self._records.stamps(found)
        return np.where(stamps > self._safe, stamps, NEVER)

    def take(self, found: np.ndarray) -> torch.Tensor:
        """The rows of cached ids that were found."""
        places = self._records.words[found, 0].astype(np.int64)
        return self._rows.index_select(0, uploaded(places, self._rows.device))

    def room(self, ids: np.ndarray, found: np.ndarray, stamp: int) -> torch.Tensor:
        """Where an update is to write its rows, of distinct ids as they were found; they replace older ones. Until they go
        nothing else is written there."""
        first = self._gap(ids.size)
        self._updates[stamp] = range(first, first + ids.size)
        missing = np.flatnonzero(found < 0)
        found[missing] = self._records.add(ids[missing], 0)
        note(self._records.words, self._records.column, found, first, stamp)
        return self._rows[first : first + ids.size]

    def evict(self, safe: int) -> int:
        """Give back the room of updates whose timestamp is at most `safe`; how many rows went."""
        gone = [stamp for stamp in self._updates if stamp <= safe]
        evicted = sum(len(self._updates.pop(stamp)) for stamp in gone)
        self._safe = max(self._safe, safe)
        if self._records.count > 2 * len(self):
            self._forget()
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

    def _forget(self) -> None:
        """Make the index anew without ids that are not cached any more."""
        records = self._records
        stamps = records.stamps(np.arange(records.count))
        cached = np.flatnonzero(stamps > self._safe)
        ids, places = ids_at(records.words, cached, records.column), records.words[cached, 0]
        records.clear()
        slots = records.add(ids, 0)
        records.words[slots, 0], records.words[slots, records.column] = places, stamps[cached]


def _nowhere(ids: np.ndarray) -> np.ndarray:
    """Where a new id's row is, until that is entered."""
    return np.zeros((ids.size, 1), np.float32)
