"""What travels between workers and servers in place of float32 rows and gradients (Persia, Section 4.2.3).

A codec makes a message of a float32 block and a block of the message: an array, or arrays in a frozen dataclass, so that
pickle's protocol 5 ships their own memory out of band, and `nbytes` is what the network carries.

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
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Gt, Le

from lib.errors import BadOption
from lib.options.checked import Checked, Count, of_name
from lib.store.inputs import floats_of
from lib.store.wire import kernels

HALF_MAX = 65504.0
"""The largest finite fp16 number."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """Codes of a block, and what each part of it was divided by."""

    codes: np.ndarray
    """[n, dim], fp16 or int8."""
    norms: np.ndarray
    """float32, of each block or row."""

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.norms.nbytes


@dataclass(frozen=True, kw_only=True)
class Codec(Checked, ABC):
    """How a float32 block travels."""

    name: ClassVar[str]
    plain_name: ClassVar = True

    @classmethod
    def read(cls, data: Any) -> Codec:
        """From its name, or from `{name: scaled-fp16, kappa: 1024}`."""
        return of_name("codec", CODECS, data)

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
        codes = np.empty(block.shape, np.float16)
        kernels.to_half(block.view(np.uint32).ravel(), codes.view(np.uint16).ravel())
        return codes

    def decode(self, message: np.ndarray) -> np.ndarray:
        block = np.empty(message.shape, np.float32)
        kernels.from_half(message.view(np.uint16).ravel(), block.ravel())
        return block


@dataclass(frozen=True, kw_only=True)
class ScaledFp16(Codec):
    """Each block is scaled by kappa over its largest magnitude, then rounded to half precision."""

    name: ClassVar = "scaled-fp16"

    kappa: Annotated[float, Gt(0), Le(HALF_MAX)] = 32768.0
    """What the largest magnitude of a block is scaled to."""
    block: Count | None = None
    """Numbers in a block, a divisor of a row's or a multiple; None: a row."""

    def _encode(self, block: np.ndarray) -> Scaled:
        codes, size = np.empty(block.shape, np.float16), self._size(block.shape)
        norms = np.empty(-(-block.size // size), np.float32)
        values, words = block.ravel(), block.view(np.uint32).ravel()
        kernels.to_scaled_half(values, words, size, self.kappa, codes.view(np.uint16).ravel(), norms)
        return Scaled(codes, norms)

    def decode(self, message: Scaled) -> np.ndarray:
        block, size = np.empty(message.codes.shape, np.float32), self._size(message.codes.shape)
        codes = message.codes.view(np.uint16).ravel()
        kernels.from_scaled_half(codes, message.norms, size, 1 / self.kappa, block.ravel())
        return block

    def _size(self, shape: tuple[int, ...]) -> int:
        return max(1, shape[1] if self.block is None else self.block)


@dataclass(frozen=True, kw_only=True)
class Bf16(Codec):
    """The upper half of each number, rounded to nearest even."""

    name: ClassVar = "bf16"

    def _encode(self, block: np.ndarray) -> np.ndarray:
        codes = np.empty(block.shape, np.uint16)
        kernels.to_bfloat(block.view(np.uint32).ravel(), codes.ravel())
        return codes

    def decode(self, message: np.ndarray) -> np.ndarray:
        block = np.empty(message.shape, np.float32)
        kernels.from_bfloat(message.ravel(), block.view(np.uint32).ravel())
        return block


@dataclass(frozen=True, kw_only=True)
class Int8(Codec):
    """Each row in 255 equal steps around 0; the code -128 is NaN."""

    name: ClassVar = "int8"

    def _encode(self, block: np.ndarray) -> Scaled:
        codes, norms = np.empty(block.shape, np.int8), np.empty(block.shape[0], np.float32)
        kernels.to_int8(block.ravel(), block.view(np.uint32).ravel(), block.shape[1], codes.ravel(), norms)
        return Scaled(codes, norms)

    def decode(self, message: Scaled) -> np.ndarray:
        block = np.empty(message.codes.shape, np.float32)
        kernels.from_int8(message.codes.ravel(), message.norms, block.shape[1], block.ravel())
        return block


CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Fp32, Fp16, ScaledFp16, Bf16, Int8)}
