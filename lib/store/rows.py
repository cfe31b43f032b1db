"""Rows of tables: what the store accepts as ids and numbers, which server has which rows, and arrays without content.

Lossless conversions of ids and numbers are made; anything else is an error that names the argument.

A placement is a pure function (table, id) -> shard. Those of the papers:

- "uniform": the ids of every feature group are shuffled over all servers (Persia, Section 4.2.3), so that no fashion among the
  groups can congest one of them;
- "hashed": one hash for all ids says where each is, as even as chance is (Persia, Section 4.2.2);
- "by-group": a feature group lives on one server, the straightforward design that congests (the same section);
- "by-cost": feature groups are packed on servers by what their look-ups cost in a profiling pass, and a group that is too
  large for one server is cut into pieces (ShadowSync, Section 3.1). The cost is counted in bytes, so that every node comes to
  the same placement.

A feature group is a table, or with `shift` the ids of a table that agree in the bits above it. Dense parameters go to servers in
equal slices.

A timing run has phantoms for arrays. A phantom is one zero, seen at every place: it has the shape and the bytes of the array that
it stands for and takes no memory, so a message with it takes as long.
"""

from __future__ import annotations

import functools
import heapq
import math
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from lib.device_array import DeviceArray
from lib.errors import BadOption
from lib.store.optim import Optimizer


def ids_of(ids: Any, name: str = "ids") -> np.ndarray:
    """A contiguous int64 vector with the same numbers."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise BadOption(f"{name} must be one-dimensional, not of shape {array.shape}")
    if array.dtype != np.int64:
        if array.size and not np.can_cast(array.dtype, np.int64) and not _fits_int64(array):
            raise BadOption(f"{name} must be integers that fit int64, not {array.dtype}")
        array = array.astype(np.int64)
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy()


def floats_of(array: Any, shape: tuple[int, ...], name: str, *, contiguous: bool = True) -> np.ndarray:
    """A float32 array of that shape with the same numbers, one on a device where it is; by default a `contiguous` one."""
    if isinstance(array, DeviceArray) and array.shape == shape and array.dtype == np.float32:
        return array
    array = np.asarray(array)
    if array.shape != shape:
        raise BadOption(f"{name} must be of shape {shape}, not {array.shape}")
    if array.dtype != np.float32:
        if array.size and not np.can_cast(array.dtype, np.float32):
            raise BadOption(f"{name} must be float32, not {array.dtype}: convert it where the lost digits are visible")
        array = array.astype(np.float32)
    return array if not contiguous or (array.flags.c_contiguous and array.flags.aligned) else array.copy()


def whole(value: Any, name: str, least: int | None = None) -> int:
    """An integer, at least as large as `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise BadOption(f"{name} must be an integer{bound}, not {value!r}")
    return int(value)


def _fits_int64(array: np.ndarray) -> bool:
    return array.dtype.kind == "u" and int(array.max()) <= np.iinfo(np.int64).max


def union(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The distinct ids of several arrays, sorted. Numpy hashes them, which takes ten times as long where each array is sorted, as
    a table's ids are."""
    ids = np.concatenate([np.empty(0, np.int64), *parts])
    ids.sort(kind="stable")
    first = np.ones(ids.size, bool)
    np.not_equal(ids[1:], ids[:-1], out=first[1:])
    return ids[first]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Copies of rows; entry i of every array belongs to `ids[i]`."""

    ids: np.ndarray
    """int64[n]."""
    values: np.ndarray
    """float32[n, dim], what a look-up gives."""
    state: np.ndarray
    """float32[n, columns], the optimiser's state."""
    stamps: np.ndarray
    """int64[n], timestamp of the last update, -1 for none."""

    def __len__(self) -> int:
        return self.ids.size

    @classmethod
    def of(cls, ids: np.ndarray, block: np.ndarray, dim: int, stamps: np.ndarray) -> Rows:
        """Rows whose values and state are the two parts of a block: nothing is copied."""
        return cls(ids, block[:, :dim], block[:, dim:], stamps)

    @property
    def block(self) -> np.ndarray:
        """float32[n, dim + columns], a copy of values and state."""
        return np.hstack([self.values, self.state])

    @property
    def fingerprints(self) -> np.ndarray:
        """int64[n], a hash of each row's values and state, to the bit: unlike rows have unlike ones, but for one pair in 2^64."""
        return np.fromiter(map(xxh3_64_intdigest, self.block), np.uint64, len(self)).view(np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all four arrays."""
        return self.ids.nbytes + self.values.nbytes + self.state.nbytes + self.stamps.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """All that decides a table's future, as its records lie in memory: unsorted, so that it costs no more than a copy."""

    words: np.ndarray
    """uint32[n, width], the records."""
    numbers: tuple[int, int, int, int]
    """Calls, lost, evicted, accesses in their order."""


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
    def shard_of(self, table: str, ids: np.ndarray) -> np.ndarray:
        """The shard of each id, int64[n]."""

    @abstractmethod
    def shard_loads(self, costs: Mapping[str, float]) -> np.ndarray:
        """What each shard has to do if the groups cost so much, and the ids of a group that several have are alike."""

    def split(self, table: str, ids: np.ndarray) -> list[np.ndarray | slice]:
        """For each shard, an index into `ids` of what it owns, in the order of `ids`."""
        if self.shards == 1:
            return [slice(None)]
        owner = self.shard_of(table, ids)
        return [np.flatnonzero(owner == shard) for shard in range(self.shards)]


@dataclass(frozen=True, kw_only=True)
class Uniform(Placement):
    """Every group's ids are shuffled evenly over all servers."""

    def shard_of(self, table: str, ids: np.ndarray) -> np.ndarray:
        return _hash_to_shards(ids, self.shards)

    def shard_loads(self, costs: Mapping[str, float]) -> np.ndarray:
        return np.full(self.shards, sum(costs.values()) / self.shards)


@dataclass(frozen=True, kw_only=True)
class Hashed(Uniform):
    """Each id where a hash that knows no neighbours says."""

    def shard_of(self, table: str, ids: np.ndarray) -> np.ndarray:
        mixed = ids.view(np.uint64)
        for shift, odd in _SCRAMBLED:
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(odd)
        return _hash_to_shards(mixed.view(np.int64), self.shards)


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

    def shard_of(self, table: str, ids: np.ndarray) -> np.ndarray:
        owner = np.empty(ids.size, np.int64)
        for group, mine in _groups(table, ids, self.shift):
            shards = np.array(self._servers(group), np.int64)
            owner[mine] = shards[_hash_to_shards(ids[mine], len(shards))]
        return owner

    def shard_loads(self, costs: Mapping[str, float]) -> np.ndarray:
        loads = np.zeros(self.shards)
        for group, cost in costs.items():
            servers = self._servers(group)
            np.add.at(loads, list(servers), cost / len(servers))  # a server may have two pieces of a group
        return loads

    def _servers(self, group: str) -> tuple[int, ...]:
        return self.owners.get(group) or (zlib.crc32(group.encode()) % self.shards,)


def pack_groups(costs: Mapping[str, float], shards: int, *, shift: int | None = None) -> ByGroup:
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


def reshard_dense(parts: Sequence[Mapping[str, np.ndarray]], shards: int) -> list[dict[str, np.ndarray]]:
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


def _hash_to_shards(ids: np.ndarray, shards: int) -> np.ndarray:
    """By the highest bits of a multiplicative hash, in which all bits of an id take part: neighbouring ids spread evenly, and so
    do the first ids of many fields."""
    mixed = (ids.view(np.uint64) * _ODD) >> np.uint64(32)
    return ((mixed * np.uint64(shards)) >> np.uint64(32)).astype(np.int64)


_zero = functools.cache(lambda dtype: np.zeros(1, dtype))


def phantom(*shape: int, kind: type = np.float32) -> np.ndarray:
    """An array of zeros, not to be written to."""
    dtype = np.dtype(kind)
    return np.ndarray(shape, dtype, _zero(dtype), 0, (0,) * len(shape))


def concat(parts: Sequence[np.ndarray], places: Sequence[np.ndarray | slice] | None = None) -> np.ndarray:
    """The parts' rows in one array, one part after another, or each part's at its `places`; of phantoms a phantom."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    if len(parts) == 1:
        return parts[0]
    if all(map(is_phantom, parts)):
        return phantom(*shape, kind=parts[0].dtype)
    if places is None:
        return np.concatenate(parts)
    whole = np.empty_like(parts[0], shape=shape)
    for place, part in zip(places, parts, strict=True):
        whole[place] = part
    return whole


def select(rows: np.ndarray, part: np.ndarray | slice) -> np.ndarray:
    """Some of the rows; of a phantom a phantom."""
    if is_phantom(rows) and not isinstance(part, slice):  # whose view is one
        return phantom(np.count_nonzero(part) if part.dtype == bool else part.size, *rows.shape[1:], kind=rows.dtype)
    return rows[part]


def is_phantom(array: np.ndarray) -> bool:
    return not any(array.strides) and array.size != 1


class PhantomTable:
    """A `Table`, but for its values: it knows which ids it has met."""

    def __init__(self, dim: int, optimizer: Optimizer):
        self.dim, self.optimizer = dim, optimizer
        self._met: list[np.ndarray] = []

    def __len__(self) -> int:
        return self.ids().size

    def pull(self, ids: np.ndarray) -> np.ndarray:
        self._met.append(ids)
        return phantom(ids.size, self.dim)

    def peek(self, ids: np.ndarray) -> np.ndarray:
        return phantom(ids.size, self.dim)

    def push(
        self, ids: np.ndarray, grads: np.ndarray, stamp: int, *, distinct: bool = False, rate: float = 1.0
    ) -> None:
        """These rows were pulled before."""

    def assign(self, ids: np.ndarray, values: np.ndarray) -> None:
        self._met.append(ids)

    def stamps(self, ids: np.ndarray) -> np.ndarray:
        return phantom(ids.size, kind=np.int64)

    def read(self, ids: np.ndarray, *, order_out: None = None) -> Rows:
        self._met.append(ids)
        return self._rows(ids)

    def write(self, rows: Rows, *, newer: bool = True, order_out: None = None) -> None:
        self._met.append(rows.ids)

    def ids(self) -> np.ndarray:
        if len(self._met) != 1:
            self._met = [union(self._met)]
        return self._met[0]

    def export(self) -> Rows:
        return self._rows(self.ids())

    def load(self, rows: Rows) -> None:
        self._met = [rows.ids]

    dump, restore = export, load

    def _rows(self, ids: np.ndarray) -> Rows:
        n, columns = ids.size, self.optimizer.columns(self.dim)
        return Rows(ids, phantom(n, self.dim), phantom(n, columns), phantom(n, kind=np.int64))
