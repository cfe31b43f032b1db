"""The wire's inner loops, compiled by numba: bits of floats. They release the GIL and take no lock.

Floats are read as their bits where that lets the compiler use SIMD: magnitudes order like the integers of their bits, and
everything at or above `_INFINITE` is no finite number.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import boolean, float32, float64, int8, int64, uint16, uint32, uint64, void

_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy"}
_INTS = types.Array(int64, 1, "C", readonly=True)
_FLOATS = types.Array(float32, 1, "C", readonly=True)
_BITS = types.Array(uint32, 1, "C", readonly=True)
_HALVES = types.Array(uint16, 1, "C", readonly=True)

_MAGNITUDE, _INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_HALF_MAX, _HALF_LEAST_NORMAL = np.uint32(0x477FE000), np.uint32(0x38800000)
_TINY = np.float32(1e-30)
"""Below it float32 has no room for the inverse, or few bits for the product."""
_HUGE = np.float32(2.5e36)
"""127 steps of more than this may round to infinity."""


@njit(uint16(uint32, boolean), **_OPTIONS)
def _half(word, clamp):
    """Round to nearest even. Infinities are clamped or kept; finite numbers too large are clamped."""
    sign, size = np.uint32((word >> np.uint32(16)) & np.uint32(0x8000)), np.uint32(word & _MAGNITUDE)
    clamped = np.uint32(min(size, _HALF_MAX))
    odd = np.uint32((clamped >> np.uint32(13)) & np.uint32(1))
    normal = np.uint32(np.uint32(clamped + odd + np.uint32(0xFFF) - np.uint32(0x38000000)) >> np.uint32(13))
    # Below the least normal number: the sum with a half has half precision's last place as its own last place.
    small = np.uint32(
        np.float32(np.float32(0.5) + np.uint32(clamped).view(np.float32)).view(np.uint32) - np.uint32(0x3F000000)
    )
    half = small if clamped < _HALF_LEAST_NORMAL else normal
    half = np.uint32(0x7C00) if (size == _INFINITE and not clamp) else half
    half = np.uint32(0x7E00) if size > _INFINITE else half
    return np.uint16(sign | half)


@njit(float32(uint16), **_OPTIONS)
def _single(half):
    """A half's bits in a float32's places are the number over 2^112, below the least normal one too."""
    size = np.uint32(np.uint32(half & np.uint32(0x7FFF)) << np.uint32(13))
    finite = np.float32(np.uint32(size).view(np.float32) * np.float32(2.0**112)).view(np.uint32)
    word = np.uint32(size | _INFINITE) if size >= np.uint32(0x0F800000) else finite
    return np.uint32(word | np.uint32(np.uint32(half & np.uint32(0x8000)) << np.uint32(16))).view(np.float32)


@njit(void(_BITS, uint16[::1]), **_OPTIONS)
def to_half(words, codes):
    """fp16 of float32, infinities clamped."""
    for i in range(words.size):
        codes[i] = _half(words[i], True)


@njit(uint32(_BITS, uint64, uint64), **_OPTIONS)
def _norm(words, start, stop):
    """The bits of the largest finite magnitude."""
    most = np.uint32(0)
    for i in range(start, stop):
        magnitude = np.uint32(words[i] & _MAGNITUDE)
        most = max(most, magnitude if magnitude < _INFINITE else np.uint32(0))
    return most


@njit(void(_FLOATS, _BITS, uint64, float64, uint16[::1], float32[::1]), **_OPTIONS)
def to_scaled_half(values, words, size, kappa, codes, norms):
    """fp16 of each block of `size` times kappa over its largest finite magnitude, infinities kept."""
    for b in range(norms.size):
        start, stop = np.uint64(b) * size, min(np.uint64(values.size), np.uint64(b + 1) * size)
        norm = np.uint32(_norm(words, start, stop)).view(np.float32)
        norms[b] = norm
        if norm >= _TINY or norm == 0:
            factor = np.float32(kappa / np.float64(norm)) if norm > 0 else np.float32(1)
            for i in range(start, stop):
                codes[i] = _half(np.float32(values[i] * factor).view(np.uint32), False)
        else:  # the factor would be infinite in float32
            wide = kappa / np.float64(norm)
            for i in range(start, stop):
                codes[i] = _half(np.float32(np.float64(values[i]) * wide).view(np.uint32), False)


@njit(void(_HALVES, _FLOATS, uint64, float64, float32[::1]), **_OPTIONS)
def from_scaled_half(codes, norms, size, inverse, values):
    """Each block times its norm over kappa."""
    for b in range(norms.size):
        start, stop = np.uint64(b) * size, min(np.uint64(values.size), np.uint64(b + 1) * size)
        factor = np.float64(norms[b]) * inverse if norms[b] > 0 else 1.0
        if factor >= _TINY:
            narrow = np.float32(factor)
            for i in range(start, stop):
                values[i] = _single(codes[i]) * narrow
        else:
            for i in range(start, stop):
                values[i] = np.float32(np.float64(_single(codes[i])) * factor)


@njit(void(_HALVES, float32[::1]), **_OPTIONS)
def from_half(codes, values):
    """Exactly the same numbers."""
    for i in range(codes.size):
        values[i] = _single(codes[i])


@njit(void(_BITS, uint16[::1]), **_OPTIONS)
def to_bfloat(words, codes):
    """The upper halves, rounded to nearest even; a NaN stays one."""
    for i in range(words.size):
        word = words[i]
        rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        nan = (word >> np.uint32(16)) | np.uint32(0x40)
        codes[i] = np.uint16(nan if (word & _MAGNITUDE) > _INFINITE else rounded)


@njit(void(_HALVES, uint32[::1]), **_OPTIONS)
def from_bfloat(codes, words):
    for i in range(codes.size):
        words[i] = np.uint32(codes[i]) << np.uint32(16)


@njit(int8(float32), **_OPTIONS)
def _step(scaled):
    """The nearest step, even ones in the middle: adding 1.5 x 2^23 leaves no place for a fraction."""
    bounded = scaled if scaled < np.float32(127) else np.float32(127)  # noqa: FURB136 - min() sees to NaN, at half the speed
    bounded = bounded if bounded > np.float32(-127) else np.float32(-127)  # noqa: FURB136
    word = np.float32(bounded + np.float32(12582912)).view(np.int32)
    return np.int8(-128) if scaled != scaled else np.int8(np.int32(word - np.int32(0x4B400000)))


@njit(void(_FLOATS, _BITS, uint64, int8[::1], float32[::1]), **_OPTIONS)
def to_int8(values, words, size, codes, norms):
    """Each row in steps of its norm over 127; -128 is NaN."""
    for b in range(norms.size):
        start, stop = np.uint64(b) * size, np.uint64(b + 1) * size
        norm = np.uint32(_norm(words, start, stop)).view(np.float32)
        norms[b] = norm
        if norm >= _TINY:
            factor = np.float32(127.0 / np.float64(norm))
            for i in range(start, stop):
                codes[i] = _step(values[i] * factor)
        else:
            wide = 127.0 / np.float64(norm) if norm > 0 else 1.0
            for i in range(start, stop):
                known = values[i] if norm > 0 or values[i] != values[i] else np.float32(0)
                codes[i] = _step(np.float32(np.float64(known) * wide))


@njit(void(types.Array(int8, 1, "C", readonly=True), _FLOATS, uint64, float32[::1]), **_OPTIONS)
def from_int8(codes, norms, size, values):
    for b in range(norms.size):
        start, stop = np.uint64(b) * size, np.uint64(b + 1) * size
        step = np.float64(norms[b]) / 127.0
        if _TINY <= step <= _HUGE:
            narrow = np.float32(step)
            for i in range(start, stop):
                value = np.float32(codes[i]) * narrow
                values[i] = np.float32(np.nan) if codes[i] == -128 else value
        else:
            for i in range(start, stop):
                value = np.float32(np.float64(codes[i]) * step)
                values[i] = np.float32(np.nan) if codes[i] == -128 else value


@njit(types.UniTuple(int64[::1], 2)(_INTS, _INTS, int64), **_OPTIONS)
def grouped(positions, owners, groups):
    """How many entries each position has, and the owners in the positions' order (a stable counting sort)."""
    counts = np.zeros(groups, np.int64)
    for i in range(positions.size):
        counts[positions[i]] += 1
    following = np.empty(groups, np.int64)
    start = 0
    for g in range(groups):
        following[g] = start
        start += counts[g]
    sorted_ = np.empty(owners.size, np.int64)
    for i in range(positions.size):
        sorted_[following[positions[i]]] = owners[i]
        following[positions[i]] += 1
    return counts, sorted_
