"""What travels between workers and servers in place of float32 rows and gradients (Persia, Section 4.2.3).

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

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Gt, Le

from lib.errors import BadOption
from lib.options.checked import Checked, Count, read_kind
from lib.store.inputs import floats_of

HALF_MAX = 65504.0
"""The largest finite fp16 number."""
_TINY, _HUGE = 1e-30, 1e36


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
        parts = self._parts(block)
        norms = _norms(parts)
        codes = _times(parts, _over(self.kappa, norms)).half().numpy()
        return Scaled(codes.ravel()[: block.size].reshape(block.shape), norms)

    def decode(self, message: Scaled) -> np.ndarray:
        codes, norms = message.codes, message.norms
        values = _times(self._parts(codes), np.where(norms > 0, norms.astype(np.float64) * (1 / self.kappa), 1.0))
        return values.numpy().ravel()[: codes.size].reshape(codes.shape)

    def _parts(self, block: np.ndarray) -> np.ndarray:
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
        steps = _times(block, _over(127.0, norms)).clamp(-127, 127).round()
        return Scaled(steps.nan_to_num(-128.0).to(torch.int8).numpy(), norms)

    def decode(self, message: Scaled) -> np.ndarray:
        block = _times(message.codes, message.norms.astype(np.float64) / 127.0).numpy()
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


def _over(number: float, norms: np.ndarray) -> np.ndarray:
    """float64; 1 where there is no norm."""
    return np.divide(number, norms, np.ones(norms.shape), where=norms > 0, dtype=np.float64)


def _times(parts: np.ndarray, factors: np.ndarray) -> torch.Tensor:
    """Each row times its factor: float32's product, unless float32 has no room for a factor with all its bits."""
    if ((factors > _TINY) & (factors < _HUGE)).all():
        factors = factors.astype(np.float32)
    return (_tensor(parts) * _tensor(factors)[:, None]).float()


CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Fp32, Fp16, ScaledFp16, Int8)}
