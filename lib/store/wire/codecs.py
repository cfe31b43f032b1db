"""What travels between workers and servers in place of int64 ids and float32 rows (Persia, Section 4.2.3).

Ids: a batch of one feature group is a map {unique id: the samples that have it}, sample indices as uint16 (`Index`); lossless.
`Index.packed` writes the same map as bits: gaps of ascending ids, counts, and gaps of ascending sample indices in Rice codes,
whose parameter follows from the id's count; lossless too, and several times smaller.

Values: a codec makes `Coded` of a float32 block and back. Everything that travels is numpy arrays in frozen dataclasses, so
pickle's protocol 5 ships the arrays' own memory out of band, and `nbytes` is what the network carries.

| codec | bytes a number | of a finite x comes back | NaN | infinities |
|---|---|---|---|---|
| fp32 | 4 | x, all bits | NaN | kept |
| fp16 | 2 | within 2^-11 abs(x) + 2^-25; beyond 65504: +-65504 | NaN | +-65504, as in Persia's released code |
| scaled-fp16 | 2, and 4 a block | within 2^-11 abs(x) + 2^-25 norm / kappa (the paper) | NaN | kept |
| bf16 | 2 | within 2^-8 abs(x) (least normal number and above) | NaN | kept |
| int8 | 1, and 4 a row | within norm / 254 | NaN | +-norm |

`norm` is the largest finite magnitude of the block or row (0 where there is none). No NaN, infinity or huge number touches
any other number's error bound, except that a huge finite one is its block's norm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib.errors import BadOption
from lib.store.inputs import floats_of, number, whole
from lib.store.table.kernels import unique
from lib.store.wire import kernels
from lib.store.wire.pooling import Bags

HALF_MAX = 65504.0
"""The largest finite fp16 number."""
NARROW = 65_535
"""A batch of at most so many samples has uint16 indices; a larger one has uint32."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """{unique id: samples that have it} of one feature group in one batch.

    A sample that has an id twice stands there twice. The order of the ids inside a sample is not kept: a bag has none.
    """

    ids: np.ndarray
    """int64[u], ascending."""
    counts: np.ndarray
    """uint16 or uint32[u], entries of each id."""
    samples: np.ndarray
    """uint16 or uint32[n], the ids' samples one after another, ascending inside an id."""
    batch: int
    """Number of samples."""

    @classmethod
    def of(cls, bags: Bags) -> Index:
        whole(bags.count, "batch", 0)
        distinct, positions = unique(bags.ids)
        order = np.argsort(distinct)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        owners = bags.bags
        if owners.size and (owners[1:] < owners[:-1]).any():
            by_sample = np.argsort(owners, kind="stable")
            owners, positions = owners[by_sample], positions[by_sample]
        counts, samples = kernels.grouped(rank[positions], owners, distinct.size)
        return cls(distinct[order], _narrow(counts), samples.astype(_width(bags.count)), bags.count)

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.counts.nbytes + self.samples.nbytes

    def bags(self) -> Bags:
        """Entries by sample; inside a sample by id."""
        owners = self.samples.astype(np.int64)
        order = np.argsort(owners, kind="stable")
        return Bags(np.repeat(self.ids, self.counts)[order], owners[order], self.batch)

    def places(self) -> np.ndarray:
        """int64[n]: for each entry of `bags()`, the position of its id in `ids`, so in the block of rows that came with it."""
        order = np.argsort(self.samples, kind="stable")
        return np.repeat(np.arange(self.ids.size), self.counts)[order]

    def packed(self) -> PackedIndex:
        data = kernels.pack(self.ids, self.counts.astype(np.int64), self.samples.astype(np.int64), self.batch)
        return PackedIndex(data, self.ids.size, self.samples.size, self.batch)


@dataclass(frozen=True, slots=True, eq=False)
class PackedIndex:
    """An `Index` as bits."""

    data: np.ndarray
    """uint8."""
    unique: int
    entries: int
    batch: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + 12  # three uint32

    def index(self) -> Index:
        """An error if the bits are not what `Index.packed` wrote of so many ids and entries."""
        done, ids, counts, samples = kernels.unpack(self.data, self.unique, self.entries, self.batch)
        if not done:
            raise BadOption(
                f"a packed index of {self.data.nbytes} bytes does not hold {self.unique} ids and {self.entries} entries"
            )
        return Index(ids, _narrow(counts), samples.astype(_width(self.batch)), self.batch)


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A block of float32 as it travels."""

    codec: Codec
    codes: np.ndarray
    """[n, dim]; fp16, bf16's upper halves as uint16, int8, or float32."""
    scales: np.ndarray | None = None
    """float32, a norm for each block or row."""

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def decode(self) -> np.ndarray:
        """float32[n, dim], an array of its own."""
        return self.codec.decode(self)


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """How a float32 block travels."""

    name: ClassVar[str]

    def encode(self, block: np.ndarray) -> Coded:
        if block.ndim != 2:
            raise BadOption(f"a block must be two-dimensional, not of shape {block.shape}")
        return self._encode(floats_of(block, block.shape, "block"))

    @abstractmethod
    def _encode(self, block: np.ndarray) -> Coded: ...

    @abstractmethod
    def decode(self, coded: Coded) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class Fp32(Codec):
    """As it is; encoding copies nothing."""

    name: ClassVar = "fp32"

    def _encode(self, block: np.ndarray) -> Coded:
        return Coded(self, block)

    def decode(self, coded: Coded) -> np.ndarray:
        return coded.codes.copy()


@dataclass(frozen=True, kw_only=True)
class Fp16(Codec):
    """Rounded to half precision, clamped to its largest number."""

    name: ClassVar = "fp16"

    def _encode(self, block: np.ndarray) -> Coded:
        codes = np.empty(block.shape, np.float16)
        kernels.to_half(block.view(np.uint32).ravel(), codes.view(np.uint16).ravel())
        return Coded(self, codes)

    def decode(self, coded: Coded) -> np.ndarray:
        block = np.empty(coded.codes.shape, np.float32)
        kernels.from_half(coded.codes.view(np.uint16).ravel(), block.ravel())
        return block


@dataclass(frozen=True, kw_only=True)
class ScaledFp16(Codec):
    """Each block is scaled by kappa over its largest magnitude, then rounded to half precision."""

    name: ClassVar = "scaled-fp16"

    kappa: float = 32768.0
    """What the largest magnitude of a block is scaled to."""
    block: int | None = None
    """Numbers in a block, a divisor of a row's or a multiple; None: a row."""

    def __post_init__(self):
        number(self.kappa, "ScaledFp16.kappa", above=True, below=HALF_MAX * (1 + 1e-9))
        if self.block is not None:
            whole(self.block, "ScaledFp16.block", 1)

    def _encode(self, block: np.ndarray) -> Coded:
        codes, size = np.empty(block.shape, np.float16), self._size(block.shape)
        norms = np.empty(-(-block.size // size), np.float32)
        values, words = block.ravel(), block.view(np.uint32).ravel()
        kernels.to_scaled_half(values, words, size, self.kappa, codes.view(np.uint16).ravel(), norms)
        return Coded(self, codes, norms)

    def decode(self, coded: Coded) -> np.ndarray:
        block, size = np.empty(coded.codes.shape, np.float32), self._size(coded.codes.shape)
        codes = coded.codes.view(np.uint16).ravel()
        kernels.from_scaled_half(codes, coded.scales, size, 1 / self.kappa, block.ravel())
        return block

    def _size(self, shape: tuple[int, ...]) -> int:
        return max(1, shape[1] if self.block is None else self.block)


@dataclass(frozen=True, kw_only=True)
class Bf16(Codec):
    """The upper half of each number, rounded to nearest even."""

    name: ClassVar = "bf16"

    def _encode(self, block: np.ndarray) -> Coded:
        codes = np.empty(block.shape, np.uint16)
        kernels.to_bfloat(block.view(np.uint32).ravel(), codes.ravel())
        return Coded(self, codes)

    def decode(self, coded: Coded) -> np.ndarray:
        block = np.empty(coded.codes.shape, np.float32)
        kernels.from_bfloat(coded.codes.ravel(), block.view(np.uint32).ravel())
        return block


@dataclass(frozen=True, kw_only=True)
class Int8(Codec):
    """Each row in 255 equal steps around 0; the code -128 is NaN."""

    name: ClassVar = "int8"

    def _encode(self, block: np.ndarray) -> Coded:
        codes, norms = np.empty(block.shape, np.int8), np.empty(block.shape[0], np.float32)
        kernels.to_int8(block.ravel(), block.view(np.uint32).ravel(), block.shape[1], codes.ravel(), norms)
        return Coded(self, codes, norms)

    def decode(self, coded: Coded) -> np.ndarray:
        block = np.empty(coded.codes.shape, np.float32)
        kernels.from_int8(coded.codes.ravel(), coded.scales, block.shape[1], block.ravel())
        return block


CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Fp32, Fp16, ScaledFp16, Bf16, Int8)}


def _width(batch: int) -> type[np.unsignedinteger]:
    return np.uint16 if batch <= NARROW else np.uint32


def _narrow(counts: np.ndarray) -> np.ndarray:
    return counts.astype(np.uint16 if not counts.size or counts.max() <= NARROW else np.uint32)
