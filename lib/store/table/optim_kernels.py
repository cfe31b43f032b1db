"""One step of each row optimiser on distinct slots of a table; `lib/store/optim.py` says what each guarantees.

A record starts with [values | state]; more may follow. Numbers of state that belong to the whole row come last of them. With a
mark (column, stamp) a step also stamps the row: the stamp goes to that column. Here, where the row is in the nearest cache,
that costs nothing; anywhere else it costs a look-up. With a limit that is not 0, values are held within it after the step.
The i-th slot's gradient is where `places` says (`moves.add_up`), or row i of `grads`, if it is empty; a slot of -1 is passed
over.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.types import float64, int64, void

from lib.store.table.kernels import _BLOCK, _INTS, _LIVE_ROWS, _OPTIONS
from lib.store.table.simd import Lane, lanewise, poke, prefetch_range, summed

AHEAD = 16
"""Turns before it is needed that a row is asked for."""
UNMARKED = (-1, 0)
IN_ORDER = np.empty(0, np.int32)
NUMBERS = 4
"""Options that a kernel gets, as floats."""
_PLACES = types.Array(types.int32, 1, "C", readonly=True)
_KERNEL = void(
    _LIVE_ROWS, _INTS, _BLOCK, _BLOCK, types.UniTuple(float64, NUMBERS), float64, types.UniTuple(int64, 2), _PLACES
)
_4 = np.uint64(4)


@njit
def start(rows, grads, sums, numbers, mark):
    """Where rows, gradients and their sums lie, the distances between two, and how many bytes of a row a step touches."""
    strides = _4 * np.uint64(rows.shape[1]), _4 * np.uint64(grads.shape[1])
    touched = numbers if mark[0] < 0 else mark[0] + 1
    at = np.uint64(rows.ctypes.data), np.uint64(grads.ctypes.data), np.uint64(sums.ctypes.data)
    return *at, *strides, _4 * np.uint64(touched)


@njit
def sign(row, mark):
    if mark[0] >= 0:
        poke(row + _4 * np.uint64(mark[0]), np.uint32(mark[1]))


@njit
def of(grads, sums, step, places, i):
    """Where the i-th slot's gradient lies; which of the two it is nobody foresees, so it takes no branch."""
    if not places.size:
        return grads + np.uint64(i) * step
    place = np.int64(places[i])
    sign = place >> np.int64(63)
    return grads + (np.uint64(sign) & (sums - grads)) + np.uint64(place ^ sign) * step


@njit
def ahead(row, grad, sum_, stride, step, slots, places, i, size):
    if i + AHEAD < slots.size:
        prefetch_range(row + np.uint64(slots[i + AHEAD]) * stride, size)
        if places.size:
            prefetch_range(of(grad, sum_, step, places, i + AHEAD), step)


@lanewise
def descend(lane: Lane) -> None:
    """values -= rate x gradient."""
    lane.store(lane.sub(lane.load(0), lane.mul(lane.numbers[0], lane.load(1))), 0)


@lanewise
def roll(lane: Lane) -> None:
    """momentum = keep x momentum + gradient, values -= rate x momentum."""
    momentum = lane.add(lane.mul(lane.numbers[1], lane.load(1)), lane.load(2))
    lane.store(momentum, 1)
    lane.store(lane.sub(lane.load(0), lane.mul(lane.numbers[0], momentum)), 0)


@lanewise
def look_ahead(lane: Lane) -> None:
    """The same with Nesterov's step: rate x (gradient + keep x momentum)."""
    grad = lane.load(2)
    momentum = lane.add(lane.mul(lane.numbers[1], lane.load(1)), grad)
    lane.store(momentum, 1)
    step = lane.add(grad, lane.mul(lane.numbers[1], momentum))
    lane.store(lane.sub(lane.load(0), lane.mul(lane.numbers[0], step)), 0)


@lanewise
def adapt(lane: Lane) -> None:
    """sum += gradient^2, values -= rate x gradient / (sqrt(sum) + floor)."""
    grad = lane.load(2)
    total = lane.add(lane.load(1), lane.mul(grad, grad))
    lane.store(total, 1)
    step = lane.div(lane.mul(lane.numbers[0], grad), lane.add(lane.sqrt(total), lane.numbers[1]))
    lane.store(lane.sub(lane.load(0), step), 0)


@lanewise
def adapt_after(lane: Lane) -> None:
    """The same with the sum as it was before."""
    grad, total = lane.load(2), lane.load(1)
    lane.store(lane.add(total, lane.mul(grad, grad)), 1)
    step = lane.div(lane.mul(lane.numbers[0], grad), lane.add(lane.sqrt(total), lane.numbers[1]))
    lane.store(lane.sub(lane.load(0), step), 0)


@lanewise
def moments(lane: Lane) -> None:
    """Adam's two moments and its step; numbers: keep 1, fresh 1, keep 2, fresh 2, rate, root of the correction, floor."""
    keep1, fresh1, keep2, fresh2, rate, root, floor = lane.numbers
    grad = lane.load(3)
    m = lane.add(lane.mul(keep1, lane.load(1)), lane.mul(fresh1, grad))
    v = lane.add(lane.mul(keep2, lane.load(2)), lane.mul(fresh2, lane.mul(grad, grad)))
    lane.store(m, 1)
    lane.store(v, 2)
    step = lane.div(lane.mul(rate, m), lane.add(lane.div(lane.sqrt(v), root), floor))
    lane.store(lane.sub(lane.load(0), step), 0)


@summed
def squares(lane: Lane):
    value = lane.load(0)
    return lane.total(lane.mul(value, value))


@lanewise
def hold(lane: Lane) -> None:
    lane.store(lane.clip(lane.load(0), lane.numbers[0], lane.numbers[1]), 0)


@njit
def bound(rows, slots, dim, limit):
    """Hold every value within [-limit, limit], if the limit is not 0."""
    row, stride, high = np.uint64(rows.ctypes.data), _4 * np.uint64(rows.shape[1]), np.float32(limit)
    for i in range(slots.size if limit > 0 else 0):
        if slots[i] >= 0:
            hold(dim, (row + np.uint64(slots[i]) * stride,), (-high, high))


@njit(_KERNEL, **_OPTIONS)
def sgd(rows, slots, grads, sums, numbers, limit, mark, places):
    """Numbers: rate."""
    dim, rate = grads.shape[1], np.float32(numbers[0])
    row, grad, sum_, stride, step, size = start(rows, grads, sums, dim, mark)
    for i in range(slots.size):
        ahead(row, grad, sum_, stride, step, slots, places, i, size)
        if slots[i] >= 0:
            values = row + np.uint64(slots[i]) * stride
            sign(values, mark)
            descend(dim, (values, of(grad, sum_, step, places, i)), (rate,))
    bound(rows, slots, dim, limit)


@njit(_KERNEL, **_OPTIONS)
def momentum(rows, slots, grads, sums, numbers, limit, mark, places):
    """Numbers: rate, what is kept, whether by Nesterov."""
    dim, rate, kept, nesterov = grads.shape[1], np.float32(numbers[0]), np.float32(numbers[1]), numbers[2] != 0
    row, grad, sum_, stride, step, size = start(rows, grads, sums, 2 * dim, mark)
    for i in range(slots.size):
        ahead(row, grad, sum_, stride, step, slots, places, i, size)
        if slots[i] >= 0:
            values = row + np.uint64(slots[i]) * stride
            sign(values, mark)
            at = values, values + step, of(grad, sum_, step, places, i)
            if nesterov:
                look_ahead(dim, at, (rate, kept))
            else:
                roll(dim, at, (rate, kept))
    bound(rows, slots, dim, limit)


@njit(_KERNEL, **_OPTIONS)
def adagrad(rows, slots, grads, sums, numbers, limit, mark, places):
    """Numbers: rate, floor, whether the sum is taken after the step."""
    dim, rate, floor, after = grads.shape[1], np.float32(numbers[0]), np.float32(numbers[1]), numbers[2] != 0
    row, grad, sum_, stride, step, size = start(rows, grads, sums, 2 * dim, mark)
    for i in range(slots.size):
        ahead(row, grad, sum_, stride, step, slots, places, i, size)
        if slots[i] >= 0:
            values = row + np.uint64(slots[i]) * stride
            sign(values, mark)
            at = values, values + step, of(grad, sum_, step, places, i)
            if after:
                adapt_after(dim, at, (rate, floor))
            else:
                adapt(dim, at, (rate, floor))
    bound(rows, slots, dim, limit)


@njit(_KERNEL, **_OPTIONS)
def rowwise_adagrad(rows, slots, grads, sums, numbers, limit, mark, places):
    """Numbers: those of `adagrad`."""
    dim, rate, floor, after = grads.shape[1], np.float32(numbers[0]), np.float32(numbers[1]), numbers[2] != 0
    row, grad, sum_, stride, step, size = start(rows, grads, sums, dim + 1, mark)
    for i in range(slots.size):
        ahead(row, grad, sum_, stride, step, slots, places, i, size)
        if slots[i] >= 0:
            slot, here = np.uint64(slots[i]), of(grad, sum_, step, places, i)
            before = rows[slot, np.uint64(dim)]
            total = before + squares(dim, (here,), ()) / np.float32(dim)
            rows[slot, np.uint64(dim)] = total
            reach = rate / (np.sqrt(before if after else total) + floor)
            descend(dim, (row + slot * stride, here), (reach,))
            sign(row + slot * stride, mark)
    bound(rows, slots, dim, limit)


@njit(_KERNEL, **_OPTIONS)
def adam(rows, slots, grads, sums, numbers, limit, mark, places):
    """Numbers: rate, decay of the first moment, of the second, floor."""
    dim = grads.shape[1]
    lr, beta1, beta2, eps = numbers
    keep1, fresh1, keep2, fresh2 = np.float32(beta1), np.float32(1 - beta1), np.float32(beta2), np.float32(1 - beta2)
    row, grad, sum_, stride, step, size = start(rows, grads, sums, 3 * dim + 1, mark)
    for i in range(slots.size):
        ahead(row, grad, sum_, stride, step, slots, places, i, size)
        if slots[i] >= 0:
            slot, last_number = np.uint64(slots[i]), np.uint64(3 * dim)
            rows[slot, last_number] += np.float32(1)
            steps = np.int64(rows[slot, last_number])  # an integer power is multiplications alone, so alike everywhere
            rate = np.float32(lr / (1 - beta1**steps))
            root = np.float32(np.sqrt(1 - beta2**steps))
            values = row + slot * stride
            sign(values, mark)
            at = values, values + step, values + step + step, of(grad, sum_, step, places, i)
            moments(dim, at, (keep1, fresh1, keep2, fresh2, rate, root, np.float32(eps)))
    bound(rows, slots, dim, limit)
