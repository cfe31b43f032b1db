"""How the rows of a run's tables are kept, where they lie, and how they travel: `lib.train(..., store=lib.RowStore(...))`.

Between workers and servers something else may travel instead of int64 ids and float32 rows (Persia, Section 4.2.3). A batch asks
for its ids in one of three forms that say the same, with unlike numbers of bytes:

- "distinct": each id once, int64; the worker keeps to itself where in the batch it stands;
- "entries": what stands at each place of the batch, int64, as systems send it that do not compress;
- "samples": each id once, with the samples that have it as uint16: lossless, as Persia sends it.

`Bags` ask for sums of rows instead: a server that has the rows sums those of a bag itself, and sends one vector for each
(ShadowSync, Section 3.1). Where a bag's rows are on several servers, each sends the sum of its own, and the worker adds these
up. A gradient comes back as one vector a bag, without ids: the server remembers the request.

A codec makes a message of a float32 block and a block of the message: an array, or arrays in a frozen dataclass, so that
pickle's protocol 5 ships their own memory out of band, and `nbytes` is what the network carries.

| codec | bytes a number | of a finite x comes back | NaN | infinities |
|---|---|---|---|---|
| fp32 | 4 | x, all bits | NaN | kept |
| fp16 | 2 | within 2^-11 abs(x) + 2^-25; beyond 65504: +-65504 | NaN | +-65504, as in Persia's released code |
| scaled-fp16 | 2, and 4 a block | within 2^-11 abs(x) + 2^-25 norm / kappa (the paper) | NaN | kept |
| int8 | 1, and 4 a row | within norm / 254 | NaN | +-norm |

`norm` is the largest finite magnitude of the block or row (0 where there is none). No NaN, infinity or huge number touches
any other number's error bound, except that a huge finite one is its block's norm.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Gt, Le

from lib.errors import BadOption
from lib.options.checked import Checked, Count, read_kind
from lib.store import shared_memory
from lib.store.device import DeviceTable
from lib.store.kernels import sum_count, unique
from lib.store.optim import Optimizer
from lib.store.rows import ByGroup, Hashed, Placement, Uniform, floats_of, is_phantom, pack_groups, phantom
from lib.store.table import Locking, Table

IdForm = Literal["distinct", "entries", "samples"]
NARROW = 65_535
"""A batch of at most so many samples has uint16 indices; a larger one has uint32."""
HALF_MAX = 65504.0
"""The largest finite fp16 number."""
_TINY, _HUGE = 1e-30, 1e36


@dataclass(frozen=True, slots=True, eq=False)
class SampleIndex:
    """{id: the samples that have it}. A sample that has an id twice stands there twice."""

    ids: np.ndarray
    """int64[u], distinct."""
    counts: np.ndarray
    """uint16 or uint32[u], places of each id."""
    samples: np.ndarray
    """uint16 or uint32[n], the ids' samples one after another, ascending inside an id."""


def encode_ids(form: IdForm, ids: np.ndarray, where: np.ndarray, mine: np.ndarray | slice) -> Any:
    """The message that asks for `ids[mine]`; `where` has for each place of the batch, samples first, its id's position."""
    wanted = ids[mine]
    if form == "distinct":
        return wanted
    positions = where.ravel()
    entries = np.arange(positions.size)
    if wanted.size < ids.size:
        rank = np.full(ids.size, -1)
        rank[mine] = np.arange(wanted.size)
        positions = rank[positions]
        entries = np.flatnonzero(positions >= 0)
        positions = positions[entries]
    if form == "entries":
        return wanted[positions]
    batch = where.shape[0]
    counts = np.bincount(positions, minlength=wanted.size)
    order = np.argsort(_narrow(positions, wanted.size), kind="stable")
    samples = entries[order] // max(1, where.size // max(1, batch))
    return SampleIndex(wanted, _narrow(counts, counts.max(initial=0)), _narrow(samples, batch))


def decode_ids(form: IdForm, message: Any) -> np.ndarray:
    """The distinct ids, in the order in which `encode_ids` had them."""
    if form == "samples":
        return message.ids
    return unique(message)[0] if form == "entries" else message


def _narrow(numbers: np.ndarray, most: int) -> np.ndarray:
    return numbers.astype(np.uint16 if most <= NARROW else np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """What one server is to sum."""

    entries: np.ndarray
    """int64[e]: ids, bag by bag; an id that a bag has twice stands there twice."""
    bags: np.ndarray
    """int32[b], ascending: those of the batch's bags that have rows on this server."""
    counts: np.ndarray
    """uint16[b]: how many."""

    @classmethod
    def of(cls, ids: np.ndarray, where: np.ndarray, pooling: Sequence[int], mine: np.ndarray | slice) -> Bags:
        """Those that `ids[mine]` fall into; `where` has a batch's positions in `ids`, of which so many columns make a bag."""
        bag = np.repeat(np.arange(len(pooling)), pooling)
        bag = (np.arange(len(where))[:, None] * len(pooling) + bag).ravel()
        here = np.zeros(ids.size, bool)
        here[mine] = True
        kept = np.flatnonzero(here[where.ravel()])
        bags, counts = np.unique(bag[kept], return_counts=True)
        return cls(ids[where.ravel()[kept]], bags.astype(np.int32), counts.astype(np.uint16))

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Each id once, and which of them every entry is."""
        return unique(self.entries)

    def sums(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """float32[b, dim], in the order of the entries, of the distinct ids' rows; of phantoms a phantom."""
        if is_phantom(rows):
            return phantom(self.bags.size, rows.shape[1])
        return sum_count(self._bag_of_entry(), rows[positions], _ones(positions.size), self.bags.size)[0]

    def spread(self, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct ids, and for each the sum of the gradients of the bags that have it, as often as they have it."""
        ids, positions = self.distinct()
        if is_phantom(gradients):
            return ids, phantom(ids.size, gradients.shape[1])
        return ids, sum_count(positions, gradients[self._bag_of_entry()], _ones(positions.size), ids.size)[0]

    def _bag_of_entry(self) -> np.ndarray:
        return np.repeat(np.arange(self.bags.size), self.counts)


def _ones(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """Codes of a block, and what each part of it was divided by."""

    codes: np.ndarray
    """[n, dim], fp16 or int8."""
    norms: np.ndarray
    """float32, of each block or row."""


@dataclass(frozen=True, kw_only=True)
class Codec(Checked, ABC):
    """How a float32 block travels."""

    name: ClassVar[str]
    plain_name: ClassVar = True

    @classmethod
    def read(cls, data: Any) -> Codec:
        """From its name, or from `{name: scaled-fp16, kappa: 1024}`."""
        return read_kind("codec", CODECS, data)

    def encode(self, block: np.ndarray) -> np.ndarray | Scaled:
        if block.ndim != 2:
            raise BadOption(f"a block must be two-dimensional, not of shape {block.shape}")
        return self._encode(floats_of(block, block.shape, "block"))

    @abstractmethod
    def _encode(self, block: np.ndarray) -> np.ndarray | Scaled: ...

    @abstractmethod
    def decode(self, message: Any) -> np.ndarray:
        """float32[n, dim]."""


@dataclass(frozen=True, kw_only=True)
class Fp32(Codec):
    """As it is; nothing is copied."""

    name: ClassVar = "fp32"

    def encode(self, block: np.ndarray) -> np.ndarray:
        return block

    _encode = encode

    def decode(self, message: np.ndarray) -> np.ndarray:
        return message


@dataclass(frozen=True, kw_only=True)
class Fp16(Codec):
    """Rounded to half precision, clamped to its largest number."""

    name: ClassVar = "fp16"

    def _encode(self, block: np.ndarray) -> np.ndarray:
        return _tensor(block).clamp(-HALF_MAX, HALF_MAX).half().numpy()

    def decode(self, message: np.ndarray) -> np.ndarray:
        return _tensor(message).float().numpy()


@dataclass(frozen=True, kw_only=True)
class ScaledFp16(Codec):
    """Each block is scaled by kappa over its largest magnitude, then rounded to half precision."""

    name: ClassVar = "scaled-fp16"

    kappa: Annotated[float, Gt(0), Le(HALF_MAX)] = 32768.0
    """What the largest magnitude of a block is scaled to."""
    block: Count | None = None
    """Numbers in a block, a divisor of a row's or a multiple; None: a row."""

    def _encode(self, block: np.ndarray) -> Scaled:
        parts = self._to_blocks(block)
        norms = _norms(parts)
        codes = _multiply(parts, _divide_or_one(self.kappa, norms)).half().numpy()
        return Scaled(codes.ravel()[: block.size].reshape(block.shape), norms)

    def decode(self, message: Scaled) -> np.ndarray:
        codes, norms = message.codes, message.norms
        values = _multiply(self._to_blocks(codes), np.where(norms > 0, norms.astype(float) * (1 / self.kappa), 1.0))
        return values.numpy().ravel()[: codes.size].reshape(codes.shape)

    def _to_blocks(self, block: np.ndarray) -> np.ndarray:
        """A row for each block; the last one is filled up with zeros."""
        size = max(1, block.shape[1] if self.block is None else self.block)
        parts = np.zeros((-(-block.size // size), size), block.dtype)
        parts.ravel()[: block.size] = block.ravel()
        return parts


@dataclass(frozen=True, kw_only=True)
class Int8(Codec):
    """Each row in 255 equal steps around 0; the code -128 is NaN."""

    name: ClassVar = "int8"

    def _encode(self, block: np.ndarray) -> Scaled:
        norms = _norms(block)
        steps = _multiply(block, _divide_or_one(127.0, norms)).clamp(-127, 127).round()
        return Scaled(steps.nan_to_num(-128.0).to(torch.int8).numpy(), norms)

    def decode(self, message: Scaled) -> np.ndarray:
        block = _multiply(message.codes, message.norms.astype(np.float64) / 127.0).numpy()
        block[message.codes == -128] = np.nan
        return block


def _tensor(array: np.ndarray) -> torch.Tensor:
    """The same memory, unless that is read-only, as what Ray brings is."""
    return torch.from_numpy(np.require(array, requirements="W"))


def _norms(parts: np.ndarray) -> np.ndarray:
    """float32, the largest finite magnitude of each row."""
    sizes = _tensor(parts).abs()
    if not sizes.numel():
        return np.zeros(len(parts), np.float32)
    if not sizes.sum().isfinite():
        sizes = sizes.nan_to_num(0, 0)
    return sizes.T.contiguous().amax(0).numpy()  # a maximum over a few numbers in a row is slow


def _divide_or_one(number: float, norms: np.ndarray) -> np.ndarray:
    """float64; 1 where there is no norm."""
    return np.divide(number, norms, np.ones(norms.shape), where=norms > 0, dtype=np.float64)


def _multiply(parts: np.ndarray, factors: np.ndarray) -> torch.Tensor:
    """Each row times its factor: float32's product, unless float32 has no room for a factor with all its bits."""
    if ((factors > _TINY) & (factors < _HUGE)).all():
        factors = factors.astype(np.float32)
    return (_tensor(parts) * _tensor(factors)[:, None]).float()


CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Fp32, Fp16, ScaledFp16, Int8)}


_numbers = itertools.count()
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class RowStore(Checked):
    """Rows as they are by default: as many as are met, shuffled over the servers, and sent as float32.

    Where parts compute on a device, rows lie in its memory; those in shared memory or a file, encoded or summed ones, a
    pipeline's, and those behind embedding workers lie on the host. A run's provenance says where ("rows")."""

    max_rows: Count | None = None
    """Most rows of a table in each place that keeps rows (a server, a replica, the host store). Beyond it the row goes that
    training looked up longest ago. None: no limit."""
    locking: Locking = "table"
    """What updates that run at once may rely on: "table" loses none, since a call that changes rows is alone in its table;
    "none", as in Hogwild, may lose one of two updates of a row."""
    shared_memory: bool = False
    """Tables lie in memory that outlives their process."""
    mapped: str | None = None
    """A folder: tables lie in files there, mapped into memory, and may be larger than it; otherwise as in shared memory."""
    journal: bool = True
    """Whether such tables can be gone on with when their process is killed: a call copies all rows that it is about to change,
    some 0.3 ms a MB, and is alone meanwhile. Without it calls meet as `locking` says, and what a killed process leaves is of no
    use."""
    placement: Literal["uniform", "hashed", "by-group", "by-cost"] = "uniform"
    """Which server has a row: every feature group's ids shuffled over all; each id where a hash says; a group on one server; or
    groups packed by the bytes that their look-ups take in the first batches (`lib/store/rows.py`)."""
    rows: Codec = field(default_factory=Fp32)
    """How rows travel to workers: a codec, or the name of one (`lib/store/spec.py`)."""
    gradients: Codec = field(default_factory=Fp32)
    """How the rows' gradients travel to servers."""
    ids: IdForm = "distinct"
    """How workers ask for rows: "distinct", "entries" or "samples" (`lib/store/spec.py`)."""
    pooling: Literal["worker", "server"] = "worker"
    """Who sums the rows of a multi-hot field: the worker, or the servers, each those that it has (`lib/store/spec.py`)."""

    def __post_init__(self):
        if self.mapped is not None and self.shared_memory:
            raise BadOption("store.shared_memory and store.mapped are two places for one table; leave one of them out")
        if not (self.journal or self.shared_memory or self.mapped):
            raise BadOption("store.journal would change nothing: it is of tables in shared memory, or mapped; drop it")
        if self.pooling == "server" and self.ids != "distinct":
            raise BadOption("store.ids would change nothing: servers that pool are asked for sums; leave it out")

    @classmethod
    def error_label(cls) -> str:
        return "store"

    def allow_only(self, options: Iterable[str], reason: str) -> None:
        """An error if any other option is set: nothing would honour it, for this reason."""
        for option in (each.name for each in fields(self)):
            if option not in options and getattr(self, option) != getattr(RowStore(), option):
                raise BadOption(f"store.{option} would change nothing: {reason}; leave it out")

    @property
    def root(self) -> Path | None:
        """The folder in which tables lie; None: in memory."""
        return None if self.mapped is None else Path(self.mapped)

    def table(
        self, name: str, dim: int, optimizer: Optimizer, *, segment: str | None = None, device: Any = CPU, **first
    ) -> Table:
        """An empty table: a row appears when its id is first met, from (seed, id) alone. `segment`: a name in shared memory under
        which a process finds the table of the one before, as long as their parent runs. `device`: where rows lie, if nothing else
        is asked of them; `first`: seed and scale of first rows."""
        options = {"locking": self.locking, "max_rows": self.max_rows, **first}
        if device.type != "cpu":
            return DeviceTable(dim, optimizer, device=device, **options)
        if self.mapped is None and not self.shared_memory:
            return Table(dim, optimizer, **options)
        shared_memory.remove_orphans(self.root)  # what processes left that were killed
        name = f"{segment or f'{os.getpid()}-{next(_numbers)}'}-{name}"
        table = shared_memory.SharedTable(dim, optimizer, name=name, root=self.root, journal=self.journal, **options)
        if segment:
            table.segment.protect_for_process(os.getppid())
        return table

    def place(self, shards: int, *, shift: int | None, costs: Callable[[], Mapping[str, float]]) -> Placement:
        """Rows over so many servers; `costs` says what each feature group's look-ups take, and is asked only if that matters."""
        if self.placement == "by-group":
            return ByGroup(shards=shards, shift=shift)
        if self.placement == "by-cost":
            return pack_groups(costs(), shards, shift=shift)
        return (Hashed if self.placement == "hashed" else Uniform)(shards=shards)

    def encode_request(
        self, ids: np.ndarray, where: np.ndarray, mine: np.ndarray | slice, bag: Sequence[int] = ()
    ) -> object:
        """The message in which a worker asks one server for `ids[mine]`, or for their sums over bags of so many columns; `where`
        is the batch's map to positions in `ids`."""
        return Bags.of(ids, where, bag, mine) if bag else encode_ids(self.ids, ids, where, mine)

    def decode_request(self, message: object) -> Bags | np.ndarray:
        """What such a message asks for: sums, or the rows of distinct ids."""
        return message if isinstance(message, Bags) else decode_ids(self.ids, message)
