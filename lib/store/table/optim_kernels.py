"""One step of each row optimiser on distinct slots of a table; `lib/store/optim.py` says what each guarantees.

A record starts with [values | state]; more may follow. Numbers of state that belong to the whole row come last of them. With a
mark (column, stamp) a step also stamps the row: the stamp goes to that column. Here, where the row is in the nearest cache,
that costs nothing; anywhere else it costs a look-up. With a limit that is not 0, values are held within it after the step.
The i-th slot's gradient is row `entries[i]` of `grads`: where slots are sorted by stripe these lie anywhere, so they are asked
for ahead as rows are.

Every operation is IEEE's, in the order in which it stands: nothing is contracted or reassociated, so the bits are the same
everywhere.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import float64, int64, void

from lib.store.table.kernels import _BLOCK, _INTS, _NEW_BLOCK, _OPTIONS, _4, prefetch_range

UNMARKED = (-1, 0)
IN_ORDER = np.empty(0, np.int64)
NUMBERS = 4
"""Options that a kernel gets, as floats."""
_AHEAD = 16
"""Turns before it is needed that a row is asked for."""
_KERNEL = void(_NEW_BLOCK, _INTS, _BLOCK, _INTS, types.UniTuple(float64, NUMBERS), float64, types.UniTuple(int64, 2))


@njit
def span(rows, width, mark):
    """Where rows lie, the bytes between two, and how many of a row a step touches that needs its first `width` numbers."""
    touched = max(np.int64(width), mark[0] + 1)
    return np.uint64(rows.ctypes.data), _4 * np.uint64(rows.shape[1]), _4 * np.uint64(touched)


@njit
def bound(rows, slots, dim, limit):
    """Hold every value within [-limit, limit], if the limit is not 0; not-a-number stays what it is."""
    high = np.float32(limit)
    for i in range(slots.size if limit > 0 else 0):
        values = rows[slots[i], :dim]
        for d in range(dim):
            if values[d] > high:
                values[d] = high
            elif values[d] < -high:
                values[d] = -high


@njit(_KERNEL, **_OPTIONS)
def sgd(rows, slots, grads, entries, numbers, limit, mark):
    """values -= rate x gradient. Numbers: rate."""
    dim, rate = np.uint64(grads.shape[1]), np.float32(numbers[0])
    (start, stride, size), words = span(rows, dim, mark), rows.view(np.uint32)
    source, wide = np.uint64(grads.ctypes.data), _4 * dim
    for i in range(slots.size):
        ahead = min(i + _AHEAD, slots.size - 1)
        prefetch_range(start + stride * np.uint64(slots[ahead]), size)
        prefetch_range(source + wide * np.uint64(entries[ahead]), wide)
        slot, grad = np.uint64(slots[i]), grads[np.uint64(entries[i])]
        if mark[0] >= 0:
            words[slot, np.uint64(mark[0])] = np.uint32(mark[1])
        values = rows[slot, :dim]
        for d in range(dim):
            values[d] -= rate * grad[d]
    bound(rows, slots, dim, limit)


@njit(_KERNEL, **_OPTIONS)
def momentum(rows, slots, grads, entries, numbers, limit, mark):
    """momentum = keep x momentum + gradient, values -= rate x momentum; by Nesterov, rate x (gradient + keep x momentum).

    Numbers: rate, what is kept, whether by Nesterov.
    """
    dim, rate, kept = np.uint64(grads.shape[1]), np.float32(numbers[0]), np.float32(numbers[1])
    nesterov = numbers[2] != 0
    (start, stride, size), words = span(rows, dim + dim, mark), rows.view(np.uint32)
    source, wide = np.uint64(grads.ctypes.data), _4 * dim
    for i in range(slots.size):
        ahead = min(i + _AHEAD, slots.size - 1)
        prefetch_range(start + stride * np.uint64(slots[ahead]), size)
        prefetch_range(source + wide * np.uint64(entries[ahead]), wide)
        slot, grad = np.uint64(slots[i]), grads[np.uint64(entries[i])]
        if mark[0] >= 0:
            words[slot, np.uint64(mark[0])] = np.uint32(mark[1])
        values, rolled = rows[slot, :dim], rows[slot, dim : dim + dim]
        for d in range(dim):
            rolled[d] = kept * rolled[d] + grad[d]
            values[d] -= rate * (grad[d] + kept * rolled[d] if nesterov else rolled[d])
    bound(rows, slots, dim, limit)


@njit(_KERNEL, **_OPTIONS)
def adagrad(rows, slots, grads, entries, numbers, limit, mark):
    """sum += gradient^2, values -= rate x gradient / (sqrt(sum) + floor).

    Numbers: rate, floor, whether the step is taken with the sum as it was before.
    """
    dim, rate, floor = np.uint64(grads.shape[1]), np.float32(numbers[0]), np.float32(numbers[1])
    after = numbers[2] != 0
    (start, stride, size), words = span(rows, dim + dim, mark), rows.view(np.uint32)
    source, wide = np.uint64(grads.ctypes.data), _4 * dim
    for i in range(slots.size):
        ahead = min(i + _AHEAD, slots.size - 1)
        prefetch_range(start + stride * np.uint64(slots[ahead]), size)
        prefetch_range(source + wide * np.uint64(entries[ahead]), wide)
        slot, grad = np.uint64(slots[i]), grads[np.uint64(entries[i])]
        if mark[0] >= 0:
            words[slot, np.uint64(mark[0])] = np.uint32(mark[1])
        values, total = rows[slot, :dim], rows[slot, dim : dim + dim]
        for d in range(dim):
            before = total[d]
            total[d] = before + grad[d] * grad[d]
            values[d] -= rate * grad[d] / (np.sqrt(before if after else total[d]) + floor)
    bound(rows, slots, dim, limit)


@njit(_KERNEL, **_OPTIONS)
def rowwise_adagrad(rows, slots, grads, entries, numbers, limit, mark):
    """`adagrad` with one sum a row, of the gradients' mean squares."""
    dim, rate, floor = np.uint64(grads.shape[1]), np.float32(numbers[0]), np.float32(numbers[1])
    after, four = numbers[2] != 0, dim & ~np.uint64(3)
    (start, stride, size), words = span(rows, dim + np.uint64(1), mark), rows.view(np.uint32)
    source, wide = np.uint64(grads.ctypes.data), _4 * dim
    for i in range(slots.size):
        ahead = min(i + _AHEAD, slots.size - 1)
        prefetch_range(start + stride * np.uint64(slots[ahead]), size)
        prefetch_range(source + wide * np.uint64(entries[ahead]), wide)
        slot, grad = np.uint64(slots[i]), grads[np.uint64(entries[i])]
        if mark[0] >= 0:
            words[slot, np.uint64(mark[0])] = np.uint32(mark[1])
        a = b = c = e = np.float32(0)  # one sum alone would wait for each addition
        for d in range(np.uint64(0), four, np.uint64(4)):
            a += grad[d] * grad[d]
            b += grad[d + np.uint64(1)] * grad[d + np.uint64(1)]
            c += grad[d + np.uint64(2)] * grad[d + np.uint64(2)]
            e += grad[d + np.uint64(3)] * grad[d + np.uint64(3)]
        for d in range(four, dim):
            a += grad[d] * grad[d]
        values, before = rows[slot, :dim], rows[slot, dim]
        total = before + ((a + b) + (c + e)) / np.float32(dim)
        rows[slot, dim] = total
        reach = rate / (np.sqrt(before if after else total) + floor)
        for d in range(dim):
            values[d] -= reach * grad[d]
    bound(rows, slots, dim, limit)


@njit(_KERNEL, **_OPTIONS)
def adam(rows, slots, grads, entries, numbers, limit, mark):
    """Adam's two moments and its step. Numbers: rate, decay of the first moment, of the second, floor."""
    dim = np.uint64(grads.shape[1])
    lr, beta1, beta2, eps = numbers
    keep1, fresh1, keep2, fresh2 = np.float32(beta1), np.float32(1 - beta1), np.float32(beta2), np.float32(1 - beta2)
    floor, last = np.float32(eps), dim + dim + dim
    (start, stride, size), words = span(rows, last + np.uint64(1), mark), rows.view(np.uint32)
    source, wide = np.uint64(grads.ctypes.data), _4 * dim
    for i in range(slots.size):
        ahead = min(i + _AHEAD, slots.size - 1)
        prefetch_range(start + stride * np.uint64(slots[ahead]), size)
        prefetch_range(source + wide * np.uint64(entries[ahead]), wide)
        slot, grad = np.uint64(slots[i]), grads[np.uint64(entries[i])]
        if mark[0] >= 0:
            words[slot, np.uint64(mark[0])] = np.uint32(mark[1])
        rows[slot, last] += np.float32(1)
        steps = np.int64(rows[slot, last])  # an integer power is multiplications alone, so alike everywhere
        rate = np.float32(lr / (1 - beta1**steps))
        root = np.float32(np.sqrt(1 - beta2**steps))
        values, first, second = rows[slot, :dim], rows[slot, dim : dim + dim], rows[slot, dim + dim : last]
        for d in range(dim):
            first[d] = keep1 * first[d] + fresh1 * grad[d]
            second[d] = keep2 * second[d] + fresh2 * (grad[d] * grad[d])
            values[d] -= rate * first[d] / (np.sqrt(second[d]) / root + floor)
    bound(rows, slots, dim, limit)
