"""Many small tables in place of one, each with a lock of its own, as in Persia's server (Section 4.2.2): threads that call at
once meet only where they want the same sub-map.

Guaranteed: what `Table` guarantees, but for two things. A call is atomic in each sub-map, not over all of them: it goes through
them in ascending order and holds one lock at a time. And a limit is shared out evenly, so rows are evicted in each sub-map's
order of use, which is the whole's only by and large. Without a limit, contents are those of one table, whatever the number of
maps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit
from numba.types import int64

from lib.errors import BadOption
from lib.store.inputs import floats_of, ids_of, whole
from lib.store.optim import Optimizer
from lib.store.rows import Rows
from lib.store.table.kernels import _INTS, _NEW_INTS, _OPTIONS, mix
from lib.store.table.table import Table

_SALT = np.uint64(0x8EBC6AF09C88C6E3)


@njit(_NEW_INTS(_INTS, int64), **_OPTIONS)
def owners(ids, maps):
    """The sub-map of each id; the hash has nothing to do with that of the tables' indices."""
    found = np.empty(ids.size, np.int64)
    for i in range(ids.size):
        found[i] = np.int64(((mix(np.uint64(ids[i]) ^ _SALT) >> np.uint64(32)) * np.uint64(maps)) >> np.uint64(32))
    return found


class SubMaps:
    """A table in `maps` parts, with `Table`'s options; `max_rows` and `max_bytes` are for all parts together."""

    def __init__(self, dim: int, optimizer: Optimizer, *, maps: int = 16, capacity: int = 1024, **options: Any):
        self.maps = whole(maps, "maps", 1)
        for limit in ("max_rows", "max_bytes"):
            if options.get(limit) is not None:
                if whole(options[limit], limit, 1) < maps:
                    raise BadOption(f"{limit} must be at least the number of maps, {maps}, not {options[limit]}")
                options[limit] //= maps
        share = -(-whole(capacity, "capacity", 1) // maps)
        self.tables = [Table(dim, optimizer, capacity=share, **options) for _ in range(maps)]
        self.dim, self.optimizer = dim, optimizer

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.tables)

    @property
    def lost(self) -> int:
        return sum(table.lost for table in self.tables)

    @property
    def evicted(self) -> int:
        return sum(table.evicted for table in self.tables)

    def pull(self, ids: Any) -> np.ndarray:
        """`Table.pull`."""
        ids = ids_of(ids)
        values = np.empty((ids.size, self.dim), np.float32)
        for table, mine in self._split(ids):
            values[mine] = table.pull(ids[mine])
        return values

    def peek(self, ids: Any) -> np.ndarray:
        """`Table.peek`."""
        ids = ids_of(ids)
        values = np.empty((ids.size, self.dim), np.float32)
        for table, mine in self._split(ids):
            values[mine] = table.peek(ids[mine])
        return values

    def push(self, ids: Any, grads: Any, stamp: int) -> None:
        """`Table.push`."""
        ids = ids_of(ids)
        grads = floats_of(grads, (ids.size, self.dim), "grads")
        for table, mine in self._split(ids):
            table.push(ids[mine], grads[mine], stamp)

    def stamps(self, ids: Any) -> np.ndarray:
        """`Table.stamps`."""
        ids = ids_of(ids)
        found = np.empty(ids.size, np.int64)
        for table, mine in self._split(ids):
            found[mine] = table.stamps(ids[mine])
        return found

    def evict(self, ids: Any) -> int:
        """`Table.evict`."""
        ids = ids_of(ids)
        return sum(table.evict(ids[mine]) for table, mine in self._split(ids))

    def export(self) -> Rows:
        """The whole content, sorted by id."""
        parts = [table.export() for table in self.tables]
        names = ("ids", "values", "state", "stamps")
        whole_ = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        order = np.argsort(whole_["ids"])
        return Rows(*(whole_[name][order] for name in names))

    def load(self, rows: Rows) -> None:
        """Replace the whole content."""
        for number, table in enumerate(self.tables):
            mine = np.flatnonzero(owners(ids_of(rows.ids, "rows.ids"), self.maps) == number)
            table.load(Rows(rows.ids[mine], rows.values[mine], rows.state[mine], rows.stamps[mine]))

    def _split(self, ids: np.ndarray) -> Iterator[tuple[Table, np.ndarray]]:
        owner = owners(ids, self.maps)
        order = np.argsort(owner, kind="stable")
        ends = np.searchsorted(owner[order], np.arange(self.maps + 1))
        for number, table in enumerate(self.tables):
            if ends[number] < ends[number + 1]:
                yield table, order[ends[number] : ends[number + 1]]
