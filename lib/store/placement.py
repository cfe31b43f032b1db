"""Which server holds which parameters: equal slices of the dense vector, rows by a placement.

A placement is a pure function (table, id) -> shard. Those of the papers:

- "uniform": the ids of every feature group are shuffled over all servers (Persia, Section 4.2.3), so that no fashion among the
  groups can congest one of them;
- "hashed": one hash for all ids says where each is, as even as chance is (Persia, Section 4.2.2);
- "by-group": a feature group lives on one server, the straightforward design that congests (the same section);
- "by-cost": feature groups are packed on servers by what their look-ups cost in a profiling pass, and a group that is too
  large for one server is cut into pieces (ShadowSync, Section 3.1). The cost is counted in bytes, so that every node comes to
  the same placement.

A feature group is a table, or with `shift` the ids of a table that agree in the bits above it.
"""

import heapq
import math
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lib.errors import BadOption
from lib.store.rows import Rows, whole

_ODD = np.uint64(0x9E3779B97F4A7C15)
_SCRAMBLED = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)
"""Of splitmix64's finaliser (Steele et al., 2014): shifts and factors."""


@dataclass(frozen=True, kw_only=True)
class Placement(ABC):
    """Which of `shards` servers owns a row."""

    shards: int
    """Number of servers."""

    def __post_init__(self):
        whole(self.shards, f"{type(self).__name__}.shards", 1)

    @abstractmethod
    def owner(self, table: str, ids: np.ndarray) -> np.ndarray:
        """The shard of each id, int64[n]."""

    @abstractmethod
    def loads(self, costs: Mapping[str, float]) -> np.ndarray:
        """What each shard has to do if the groups cost so much, and the ids of a group that several have are alike."""

    def split(self, table: str, ids: np.ndarray) -> list[np.ndarray | slice]:
        """For each shard, an index into `ids` of what it owns, in the order of `ids`."""
        if self.shards == 1:
            return [slice(None)]
        owner = self.owner(table, ids)
        return [np.flatnonzero(owner == shard) for shard in range(self.shards)]


@dataclass(frozen=True, kw_only=True)
class Uniform(Placement):
    """Every group's ids are shuffled evenly over all servers."""

    def owner(self, table: str, ids: np.ndarray) -> np.ndarray:
        return _spread(ids, self.shards)

    def loads(self, costs: Mapping[str, float]) -> np.ndarray:
        return np.full(self.shards, sum(costs.values()) / self.shards)


@dataclass(frozen=True, kw_only=True)
class Hashed(Uniform):
    """Each id where a hash that knows no neighbours says."""

    def owner(self, table: str, ids: np.ndarray) -> np.ndarray:
        mixed = ids.view(np.uint64)
        for shift, odd in _SCRAMBLED:
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(odd)
        return _spread(mixed.view(np.int64), self.shards)


@dataclass(frozen=True, kw_only=True)
class ByGroup(Placement):
    """Each feature group belongs to one server, or to a few among which its ids are shuffled."""

    owners: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Group, "table" or "table/number", -> its servers; a group that is not named here goes where its name's hash says."""
    shift: int | None = None
    """The bits of an id above this one are its group's number; None: a table is one group."""

    def __post_init__(self):
        super().__post_init__()
        for group, shards in self.owners.items():
            if not shards or not all(0 <= shard < self.shards for shard in shards):
                raise BadOption(f"group {group!r} is placed on {shards}, and there are shards 0 to {self.shards - 1}")

    def owner(self, table: str, ids: np.ndarray) -> np.ndarray:
        owner = np.empty(ids.size, np.int64)
        for group, mine in _groups(table, ids, self.shift):
            shards = np.array(self._servers(group), np.int64)
            owner[mine] = shards[_spread(ids[mine], len(shards))]
        return owner

    def loads(self, costs: Mapping[str, float]) -> np.ndarray:
        loads = np.zeros(self.shards)
        for group, cost in costs.items():
            servers = self._servers(group)
            np.add.at(loads, list(servers), cost / len(servers))  # a server may have two pieces of a group
        return loads

    def _servers(self, group: str) -> tuple[int, ...]:
        return self.owners.get(group) or (zlib.crc32(group.encode()) % self.shards,)


def packed(costs: Mapping[str, float], shards: int, *, shift: int | None = None) -> ByGroup:
    """Feature groups packed by cost: the largest that is left goes to the server with the least to do.

    A group that costs more than a server's fair share is cut into equal pieces of at most that share. Guarantee (Graham 1969):
    of the pieces that are packed, the busiest server has at most 4/3 - 1/(3 shards) times the least possible.
    """
    whole(shards, "shards", 1)
    if bad := [group for group, cost in costs.items() if not (cost >= 0 and math.isfinite(cost))]:
        raise BadOption(f"the cost of group {bad[0]!r} must be finite and 0 or more, not {costs[bad[0]]}")
    share = sum(costs.values()) / shards
    pieces = []
    for group, cost in costs.items():
        count = min(shards, max(1, math.ceil(cost / share * (1 - 1e-12)))) if share else 1
        pieces += [(cost / count, group)] * count
    idle = [(0.0, shard) for shard in range(shards)]
    owners: dict[str, list[int]] = {group: [] for group in costs}
    for cost, group in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
        load, shard = heapq.heappop(idle)
        owners[group].append(shard)
        heapq.heappush(idle, (load + cost, shard))
    return ByGroup(shards=shards, owners={group: tuple(sorted(each)) for group, each in owners.items()}, shift=shift)


def look_up_costs(
    batches: Iterable[Mapping[str, np.ndarray]], widths: Mapping[str, int], *, shift: int | None = None
) -> dict[str, float]:
    """Bytes that the look-ups of each feature group take over some batches (table -> ids) of rows with so many numbers."""
    costs: Counter[str] = Counter()
    for batch in batches:
        for table, ids in batch.items():
            for group, mine in _groups(table, ids, shift):
                costs[group] += 4 * widths[table] * ids[mine].size
    return dict(costs)


def dense_slice(size: int, shards: int, shard: int) -> slice:
    """What a shard has of a dense vector of that size."""
    return slice(size * shard // shards, size * (shard + 1) // shards)


def place_rows(parts: Sequence[Rows], table: str, placement: Placement) -> list[Rows]:
    """The rows of any number of shards over the placement's, each sorted by id."""
    rows = [np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "values", "state", "stamps")]
    order = np.argsort(rows[0], kind="stable")
    ids = rows[0][order]
    if ids.size and (ids[1:] == ids[:-1]).any():
        twice = ids[1:][ids[1:] == ids[:-1]][0]
        raise BadOption(f"table {table!r}: id {twice} is in more than one shard")
    return [Rows(*(array[order[mine]] for array in rows)) for mine in placement.split(table, ids)]


def place_dense(parts: Sequence[Mapping[str, np.ndarray]], shards: int) -> list[dict[str, np.ndarray]]:
    """What `DenseStore.export` gave on any number of shards, in their order, as it would be on `shards` of them."""
    size = sum(part["values"].size for part in parts)
    joined = {
        name: first if first.ndim == 0 else np.concatenate([part[name] for part in parts])
        for name, first in parts[0].items()
    }
    return [
        {name: array if array.ndim == 0 else array[dense_slice(size, shards, shard)] for name, array in joined.items()}
        for shard in range(shards)
    ]


def _groups(table: str, ids: np.ndarray, shift: int | None) -> Iterator[tuple[str, np.ndarray | slice]]:
    """Each feature group among the ids, with what indexes its own."""
    if shift is None:
        yield table, slice(None)
        return
    numbers, where = np.unique(ids >> shift, return_inverse=True)
    for position, number in enumerate(numbers):
        yield f"{table}/{number}", np.flatnonzero(where == position)


def _spread(ids: np.ndarray, shards: int) -> np.ndarray:
    """By the highest bits of a multiplicative hash, in which all bits of an id take part: neighbouring ids spread evenly, and so
    do the first ids of many fields."""
    mixed = (ids.view(np.uint64) * _ODD) >> np.uint64(32)
    return ((mixed * np.uint64(shards)) >> np.uint64(32)).astype(np.int64)
