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


_P1, _P2, _P3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)


@njit(uint64(uint64, int64), **_OPTIONS)
def _turn(word, by):
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


@njit(uint64(uint64, uint64), **_OPTIONS)
def _round(lane, word):
    return _turn(lane + word * _P2, 31) * _P1


@njit(void(uint64[::1], types.Array(uint64, 1, "C", readonly=True)), **_OPTIONS)
def hash_more(lanes, words):
    """Take in whole stripes of four words."""
    a, b, c, d = lanes
    for i in range(np.uint64(0), np.uint64(words.size), np.uint64(4)):
        a = _round(a, words[i])
        b = _round(b, words[i + np.uint64(1)])
        c = _round(c, words[i + np.uint64(2)])
        d = _round(d, words[i + np.uint64(3)])
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d


@njit(uint64(uint64[::1], uint64), **_OPTIONS)
def hash_end(lanes, size):
    """The XXH64 of `size` bytes in whole stripes, at least one."""
    whole = _turn(lanes[0], 1) + _turn(lanes[1], 7) + _turn(lanes[2], 12) + _turn(lanes[3], 18)
    for lane in lanes:
        whole = (whole ^ _round(np.uint64(0), lane)) * _P1 + _P4
    whole += size
    whole = (whole ^ (whole >> np.uint64(33))) * _P2
    whole = (whole ^ (whole >> np.uint64(29))) * _P3
    return whole ^ (whole >> np.uint64(32))


class XXH64:
    """The hash of that name, seed 0, of any number of whole 32-byte stripes: about ten bytes a nanosecond."""

    def __init__(self):
        first = (int(_P1) + int(_P2), int(_P2), 0, -int(_P1))
        self._lanes, self._size = np.array([lane % 2**64 for lane in first], np.uint64), 0

    def update(self, data: np.ndarray) -> None:
        """uint8, a multiple of 32 bytes."""
        hash_more(self._lanes, data.view(np.uint64))
        self._size += data.size

    def hexdigest(self) -> str:
        return f"{hash_end(self._lanes, self._size):016x}"
