"""The store's inner loops over ids and rows, compiled by numba; they release the GIL and take no lock.

Guaranteed: results depend on the arguments alone, sums are taken in input order, and no fast-math is used, so the
same call gives the same bits everywhere. Not guaranteed: bounds. A caller checks shapes before it comes here.

Every kernel has one explicit signature, so nothing is ever compiled in the middle of a run. Inputs are declared
read-only: numba then accepts writable arrays and arrays of shared memory alike. Inner loops count with uint64: numba then
leaves out the test for negative indices, which would forbid SIMD.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.types import boolean, float32, float64, int64, uint64, void

_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy"}  # python's division checks would forbid SIMD

_INTS = types.Array(int64, 1, "C", readonly=True)
_FLOATS = types.Array(float32, 1, "C", readonly=True)
_BLOCK = types.Array(float32, 2, "C", readonly=True)
_NEW_INTS, _NEW_BLOCK = int64[::1], float32[:, ::1]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_4 = np.uint64(4)
_AHEAD = 8
"""Turns before it is needed that a row is asked for."""


@intrinsic
def prefetch(context, address):
    """Ask for the cache line at an address; never faults."""

    def codegen(context, builder, signature, args):
        number = ir.IntType(32)
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, number(0), number(3), number(1)])  # to read, into every level, data
        return context.get_dummy_value()

    return types.void(types.uint64), codegen


@njit
def prefetch_range(address, size):
    """Ask for the lines that hold `size` bytes from an address on. (An array as argument would be counted by numba at each call.)

    As many turns for every address, and one line at times twice: a branch on where lines begin is one that no processor foresees.
    """
    offset = np.uint64(0)
    while offset < size:
        prefetch(address + offset)
        offset += np.uint64(64)
    prefetch(address + size - np.uint64(1))


@njit(uint64(uint64), **_OPTIONS)
def mix(word):
    """splitmix64's finaliser: a bijection in which every input bit reaches every output bit."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


@njit(types.UniTuple(_NEW_INTS, 2)(_INTS), **_OPTIONS)
def unique(ids):
    """The distinct ids in order of first appearance, and for each entry the position of its id among them."""
    size = 8
    while size < 2 * ids.size:
        size *= 2
    mask = np.uint64(size - 1)
    ordinals = np.zeros(size, np.int32)  # one more than the position, so that zeroed memory means free
    distinct = np.empty(ids.size, np.int64)
    positions = np.empty(ids.size, np.int64)
    count = 0
    for i in range(ids.size):
        bucket = mix(np.uint64(ids[i])) & mask
        while ordinals[bucket] != 0 and distinct[ordinals[bucket] - 1] != ids[i]:
            bucket = (bucket + np.uint64(1)) & mask
        if ordinals[bucket] == 0:
            distinct[count] = ids[i]
            count += 1
            ordinals[bucket] = count
        positions[i] = ordinals[bucket] - 1
    return distinct[:count].copy(), positions


@njit(_NEW_BLOCK(_INTS, uint64, int64, float64), **_OPTIONS)
def _first_rows(ids, seed, dim, scale):
    rows = np.empty((ids.size, dim), np.float32)
    key = mix(seed + _GOLDEN)
    for i in range(ids.size):
        state = mix(key ^ np.uint64(ids[i]))
        for d in range(dim):
            state += _GOLDEN
            centred = np.int64(mix(state) >> np.uint64(39)) * 2 - (2**25 - 1)
            rows[i, d] = np.float32(scale * (centred * 2.0**-25))
    return rows


def first_rows(ids: np.ndarray, seed: int, dim: int, scale: float) -> np.ndarray:
    """Rows uniform in (-scale, scale), each number a function of the seed's low 64 bits, id and column alone."""
    return _first_rows(ids, np.uint64(seed % 2**64), dim, float(scale))


@njit
def _read_ahead(rows, column):
    """The rows' words, the numbers of a row, where rows lie and the bytes between two."""
    return rows.view(np.uint32), np.uint64(column), np.uint64(rows.ctypes.data), _4 * np.uint64(rows.shape[1])


@njit(types.Tuple((_NEW_BLOCK, _NEW_INTS))(_INTS, _BLOCK, _FLOATS, int64), **_OPTIONS)
def add_up(positions, grads, weights, count):
    """Weighted sums of the gradients that share a position, taken in input order, and how many share it."""
    dim = grads.shape[1]
    sums = np.zeros((count, dim), np.float32)
    met = np.zeros(count, np.int64)
    for i in range(positions.size):
        total, grad, weight = sums[positions[i]], grads[i], weights[i]
        for d in range(dim):
            total[d] += weight * grad[d]
        met[positions[i]] += 1
    return sums, met


@njit(void(_BLOCK, int64, _INTS, _INTS, _NEW_BLOCK, _NEW_INTS), **_OPTIONS)
def copy_rows(rows, column, slots, entries, block, stamps):
    """Copy the slots' rows, [values | state], to these entries of `block`, and their stamps; a slot of -1 is passed over."""
    words, width, first, stride = _read_ahead(rows, column)
    for i in range(slots.size):
        prefetch_range(first + stride * np.uint64(slots[min(i + _AHEAD, slots.size - 1)]), _4 * width)
        slot, entry = np.uint64(slots[i]), np.uint64(entries[i])
        if slots[i] >= 0:
            for d in range(width):
                block[entry, d] = rows[slot, d]
            stamps[entry] = np.int32(words[slot, width])


@njit(void(_NEW_BLOCK, int64, _INTS, _INTS, _BLOCK, _INTS, boolean), **_OPTIONS)
def replace_rows(rows, column, slots, entries, block, stamps, newer):
    """Replace the slots' rows by these entries of `block`, in their order; with `newer`, only by a strictly larger stamp."""
    words, width, first, stride = _read_ahead(rows, column)
    for i in range(slots.size):
        prefetch_range(first + stride * np.uint64(slots[min(i + _AHEAD, slots.size - 1)]), _4 * width + _4)
        slot, entry = np.uint64(slots[i]), np.uint64(entries[i])
        if not newer or stamps[entry] > np.int64(np.int32(words[slot, width])):
            for d in range(width):
                rows[slot, d] = block[entry, d]
            words[slot, width] = np.uint32(stamps[entry])


@njit(void(_NEW_BLOCK, _INTS, _BLOCK), **_OPTIONS)
def scatter(rows, slots, block):
    """Overwrite the first columns of the slots' rows; of a slot's several entries the last one stays."""
    width = np.uint64(block.shape[1])
    for i in range(slots.size):
        slot = np.uint64(slots[i])
        for d in range(width):
            rows[slot, d] = block[i, d]


@njit(types.UniTuple(_NEW_INTS, 3)(_INTS, int64), **_OPTIONS)
def by_stripe(slots, stripes):
    """Slots sorted by stripe, a slot's number modulo so many, a power of two; where each one stood; where each stripe ends."""
    ends, last = np.zeros(stripes + 1, np.int64), stripes - 1
    for slot in slots:
        ends[(slot & last) + 1] += 1
    ends = np.cumsum(ends)
    following, ordered, entries = ends.copy(), np.empty_like(slots), np.empty_like(slots)
    for i in range(slots.size):
        at = following[slots[i] & last]
        ordered[at], entries[at] = slots[i], i
        following[slots[i] & last] = at + 1
    return ordered, entries, ends
