"""Kernels of the store: inner loops over ids and rows, compiled by numba.

Guaranteed: results depend on the arguments alone. Sums run in input order, every operation is IEEE's, and nothing is
contracted or reassociated, so the same call gives the same bits everywhere. Kernels release the GIL, take no lock and check no
bounds: callers check shapes. Each kernel has one explicit signature, so that nothing compiles in the midst of a run.

A record is a row of uint32 words: values, optimiser state, timestamp, id (two words) and, in a table with a limit, the touch,
which is the number of the call that looked the row up last. `column` is the place of the timestamp.

An index entry is one uint32: one more than the slot of a record in its low bits, and bits of the id's hash above them; 0 is
free. Equal hash bits propose a record and the id in it decides. Probing is linear, and removal shifts entries back.

What lies far apart in memory is prefetched some turns before it is read. Inner loops count with uint64, because numba's test
for negative indices would forbid SIMD. All kernels that call each other are in this file, because numba's cache compares the
time stamp of a kernel's own file only.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, register_jitable
from numba.types import boolean, float32, float64, int64, uint32, uint64, void

OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy"}  # Python's division checks would forbid SIMD
INTS = types.Array(int64, 1, "C", readonly=True)
FLOATS = types.Array(float32, 1, "C", readonly=True)
BLOCK = types.Array(float32, 2, "C", readonly=True)
NEW_INTS, NEW_BLOCK = int64[::1], float32[:, ::1]
INDEX, WORDS = uint32[::1], uint32[:, ::1]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_0, _1, _4, _32 = np.uint64(0), np.uint64(1), np.uint64(4), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_PART, _AHEAD = 64, 16
"""Ids that enter or leave an index together; turns before it is changed that a row is asked for."""
_TURNS, _RING = 12, 31
"""Turns of a look-up from the request for what lies far apart to its use; one less than a power of two above twice as many."""


@intrinsic
def prefetch(context, address):
    """Ask for the cache line at an address; it never faults."""

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
    """Ask for the cache lines that hold `size` bytes from an address on."""
    offset = _0
    while offset < size:
        prefetch(address + offset)
        offset += np.uint64(64)
    prefetch(address + size - _1)


@njit(uint64(uint64), **OPTIONS)
def mix_bits(word):
    """Splitmix64's finaliser: a bijection in which every input bit reaches every output bit."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(types.UniTuple(NEW_INTS, 2)(INTS), **OPTIONS)
def unique(ids):
    """The distinct ids in order of first appearance, and for each entry the position of its id among them."""
    size = 8
    while size < 2 * ids.size:
        size *= 2
    mask, count = np.uint64(size - 1), 0
    ordinals = np.zeros(size, np.int32)  # one more than the position
    distinct, positions = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    for i in range(ids.size):
        bucket = mix_bits(np.uint64(ids[i])) & mask
        while ordinals[bucket] != 0 and distinct[ordinals[bucket] - 1] != ids[i]:
            bucket = (bucket + _1) & mask
        if ordinals[bucket] == 0:
            distinct[count] = ids[i]
            count += 1
            ordinals[bucket] = count
        positions[i] = ordinals[bucket] - 1
    return distinct[:count].copy(), positions


@njit(NEW_BLOCK(INTS, uint64, int64, float64), **OPTIONS)
def first_rows(ids, seed, dim, scale):
    """Rows uniform in (-scale, scale), each number a function of seed, id and column alone."""
    rows, key = np.empty((ids.size, dim), np.float32), mix_bits(seed + GOLDEN)
    for i in range(ids.size):
        state = mix_bits(key ^ np.uint64(ids[i]))
        for d in range(dim):
            state += GOLDEN
            centred = np.int64(mix_bits(state) >> np.uint64(39)) * 2 - (2**25 - 1)
            rows[i, d] = np.float32(scale * (centred * 2.0**-25))
    return rows


@njit(types.Tuple((NEW_BLOCK, NEW_INTS))(INTS, BLOCK, FLOATS, int64), **OPTIONS)
def sum_count(positions, grads, weights, count):
    """Weighted sums of the gradients that share a position, in input order, and how many share it."""
    dim = grads.shape[1]
    sums, met = np.zeros((count, dim), np.float32), np.zeros(count, np.int64)
    for i in range(positions.size):
        total, grad, weight = sums[positions[i]], grads[i], weights[i]
        for d in range(dim):
            total[d] += weight * grad[d]
        met[positions[i]] += 1
    return sums, met


@njit(inline="always")
def slot_field_bits(index_size):
    """Bits that hold one more than any slot of a table whose index has this size."""
    bits = _1
    while (_1 << bits) <= np.uint64(index_size):
        bits += _1
    return bits


@njit(inline="always")
def home_entry(code, size):
    """The entry where the search for a hash code starts."""
    return ((code >> _32) * size) >> _32


@njit(inline="always")
def id_at(words, slot, column):
    """The id of a record."""
    return np.uint64(words[slot, column + _1]) | (np.uint64(words[slot, column + np.uint64(2)]) << _32)


@njit(inline="always")
def first_candidate(index, size, entry, tag, bits):
    """The first entry from this one on that is free or has these bits of a hash."""
    while index[entry] != 0 and np.uint64(index[entry]) >> bits != tag:
        entry = entry + _1 if entry + _1 < size else _0
    return entry


@njit(int64(INTS, INDEX, WORDS, int64, int64, NEW_INTS, NEW_BLOCK), **OPTIONS)
def find_slots(ids, index, words, column, touch, slots, values):
    """Fill in the slot of every id, -1 where it has none; returns how many have none.

    Rows that are found are copied to `values`, unless it is empty, and marked with `touch`, unless that is 0.
    """
    rows, column, size, missing = words.view(np.float32), np.uint64(column), np.uint64(index.size), 0
    copied = np.uint64(values.shape[1]) if values.shape[0] else _0
    bits, codes, entries = slot_field_bits(index.size), np.empty(_RING + 1, np.uint64), np.empty(_RING + 1, np.uint64)
    low = (_1 << bits) - _1
    index_at, words_at, stride = (
        np.uint64(index.ctypes.data),
        np.uint64(words.ctypes.data),
        _4 * np.uint64(words.shape[1]),
    )
    for turn in range(ids.size + 2 * _TURNS):
        i = turn
        if i < ids.size:
            codes[i & _RING] = mix_bits(np.uint64(ids[i]))
            prefetch(index_at + _4 * home_entry(codes[i & _RING], size))
        i -= _TURNS
        if 0 <= i < ids.size:
            code = codes[i & _RING]
            entry = first_candidate(index, size, home_entry(code, size), (code & _LOW) >> bits, bits)
            entries[i & _RING] = entry
            if index[entry] != 0:
                record = words_at + ((np.uint64(index[entry]) & low) - _1) * stride
                if copied:
                    prefetch_range(record, _4 * copied)
                prefetch_range(record + _4 * column, stride - _4 * column)
        i -= _TURNS
        if i < 0:
            continue
        key, entry, there = np.uint64(ids[i]), entries[i & _RING], np.uint64(i)
        slot = (np.uint64(index[entry]) & low) - _1
        while index[entry] != 0 and id_at(words, slot, column) != key:
            entry = entry + _1 if entry + _1 < size else _0
            entry = first_candidate(index, size, entry, (codes[i & _RING] & _LOW) >> bits, bits)
            slot = (np.uint64(index[entry]) & low) - _1
        slots[there] = np.int64(slot) if index[entry] != 0 else -1
        if index[entry] == 0:
            missing += 1
            continue
        if touch:
            words[slot, column + np.uint64(3)] = np.uint32(touch)
        for d in range(copied):
            values[there, d] = rows[slot, d]
    return missing


@njit(void(INDEX, WORDS, int64, INTS), **OPTIONS)
def insert(index, words, column, slots):
    """Enter the records of these slots, whose ids must not be in the index yet."""
    column, size, bits = np.uint64(column), np.uint64(index.size), slot_field_bits(index.size)
    codes, index_at = np.empty(_PART, np.uint64), np.uint64(index.ctypes.data)
    for start in range(0, slots.size, _PART):
        many = min(_PART, slots.size - start)
        for i in range(many):
            codes[i] = mix_bits(id_at(words, np.uint64(slots[start + i]), column))
            prefetch(index_at + _4 * home_entry(codes[i], size))
        for i in range(many):
            entry = home_entry(codes[i], size)
            while index[entry] != 0:
                entry = entry + _1 if entry + _1 < size else _0
            index[entry] = np.uint32((((codes[i] & _LOW) >> bits) << bits) | (np.uint64(slots[start + i]) + _1))


@njit(void(INDEX, WORDS, int64, INTS), **OPTIONS)
def remove(index, words, column, slots):
    """Take the records of these slots out of the index; entries behind each move back, so that there are no tombstones."""
    column, size, bits = np.uint64(column), np.uint64(index.size), slot_field_bits(index.size)
    low, homes, index_at = (_1 << bits) - _1, np.empty(_PART, np.uint64), np.uint64(index.ctypes.data)
    ids_at, stride = np.uint64(words.ctypes.data) + _4 * (column + _1), _4 * np.uint64(words.shape[1])
    for start in range(0, slots.size, _PART):
        many = min(_PART, slots.size - start)
        for i in range(many):
            prefetch(ids_at + np.uint64(slots[start + i]) * stride)
        for i in range(many):
            homes[i] = home_entry(mix_bits(id_at(words, np.uint64(slots[start + i]), column)), size)
            prefetch(index_at + _4 * homes[i])
        for i in range(many):  # the records of entries that may move
            entry = homes[i]
            while index[entry] != 0:
                prefetch(ids_at + ((np.uint64(index[entry]) & low) - _1) * stride)
                entry = entry + _1 if entry + _1 < size else _0
        for i in range(many):
            hole = homes[i]
            while np.uint64(index[hole]) & low != np.uint64(slots[start + i]) + _1:
                hole = hole + _1 if hole + _1 < size else _0
            entry = hole
            while True:
                entry = entry + _1 if entry + _1 < size else _0
                if index[entry] == 0:
                    break
                first = home_entry(mix_bits(id_at(words, (np.uint64(index[entry]) & low) - _1, column)), size)
                # an entry may move back unless its own search starts behind the hole
                behind = hole < first <= entry if hole <= entry else hole < first or first <= entry
                if not behind:
                    index[hole] = index[entry]
                    hole = entry
            index[hole] = 0


@njit(void(WORDS, int64, INTS, BLOCK, INTS, boolean), **OPTIONS)
def replace_rows(words, column, slots, values, stamps, only_if_newer):
    """Replace the slots' rows in input order; with `only_if_newer`, only those whose new timestamp is larger."""
    rows, column = words.view(np.float32), np.uint64(column)
    start, stride = np.uint64(words.ctypes.data), _4 * np.uint64(words.shape[1])
    for i in range(slots.size):
        prefetch_range(start + stride * np.uint64(slots[min(i + _AHEAD, slots.size - 1)]), stride)
        slot, there = np.uint64(slots[i]), np.uint64(i)
        if not only_if_newer or stamps[i] > np.int64(np.int32(words[slot, column])):
            for d in range(column):
                rows[slot, d] = values[there, d]
            words[slot, column] = np.uint32(stamps[i])


# Steps of the row optimisers: each changes the values and the state of one row. `numbers` are the optimiser's options.


@register_jitable(inline="always")
def sgd(values, state, grad, dim, numbers):
    rate = np.float32(numbers[0])
    for d in range(dim):
        values[d] -= rate * grad[d]


@register_jitable(inline="always")
def momentum(values, state, grad, dim, numbers):
    rate, kept, nesterov = np.float32(numbers[0]), np.float32(numbers[1]), numbers[2] != 0
    for d in range(dim):
        state[d] = kept * state[d] + grad[d]
        values[d] -= rate * (grad[d] + kept * state[d] if nesterov else state[d])


@register_jitable(inline="always")
def adagrad(values, state, grad, dim, numbers):
    rate, floor, after = np.float32(numbers[0]), np.float32(numbers[1]), numbers[2] != 0
    for d in range(dim):
        before = state[d]
        state[d] = before + grad[d] * grad[d]
        values[d] -= rate * grad[d] / (np.sqrt(before if after else state[d]) + floor)


@register_jitable(inline="always")
def rowwise_adagrad(values, state, grad, dim, numbers):
    rate, floor, after = np.float32(numbers[0]), np.float32(numbers[1]), numbers[2] != 0
    four = dim & ~np.uint64(3)
    a = b = c = e = np.float32(0)  # one sum alone would wait for each addition
    for d in range(_0, four, _4):
        a += grad[d] * grad[d]
        b += grad[d + _1] * grad[d + _1]
        c += grad[d + np.uint64(2)] * grad[d + np.uint64(2)]
        e += grad[d + np.uint64(3)] * grad[d + np.uint64(3)]
    for d in range(four, dim):
        a += grad[d] * grad[d]
    before = state[_0]
    total = before + ((a + b) + (c + e)) / np.float32(dim)
    state[_0] = total
    reach = rate / (np.sqrt(before if after else total) + floor)
    for d in range(dim):
        values[d] -= reach * grad[d]


@register_jitable(inline="always")
def adam(values, state, grad, dim, numbers):
    lr, beta1, beta2, eps = numbers
    keep1, fresh1, keep2, fresh2 = np.float32(beta1), np.float32(1 - beta1), np.float32(beta2), np.float32(1 - beta2)
    floor, first, second = np.float32(eps), state[:dim], state[dim : dim + dim]
    state[dim + dim] += np.float32(1)
    steps = np.int64(state[dim + dim])  # an integer power is multiplications alone, so alike everywhere
    rate, root = np.float32(lr / (1 - beta1**steps)), np.float32(np.sqrt(1 - beta2**steps))
    for d in range(dim):
        first[d] = keep1 * first[d] + fresh1 * grad[d]
        second[d] = keep2 * second[d] + fresh2 * (grad[d] * grad[d])
        values[d] -= rate * first[d] / (np.sqrt(second[d]) / root + floor)


NUMBERS = 4
"""Options that a step takes, as floats."""


def make_kernel(change):
    """The kernel of an optimiser: a branch on the kind at each row would take longer than the step itself."""

    @njit(void(NEW_BLOCK, INTS, BLOCK, types.UniTuple(float64, NUMBERS), float64, int64, int64), **OPTIONS)
    def step(rows, slots, grads, numbers, bound, column, stamp):
        """Make a step on distinct slots. Values stay within `bound` unless it is 0; `stamp` goes to `column` >= 0."""
        dim, high, words = np.uint64(grads.shape[1]), np.float32(bound), rows.view(np.uint32)
        start, stride = np.uint64(rows.ctypes.data), _4 * np.uint64(rows.shape[1])
        for i in range(slots.size):
            prefetch_range(start + stride * np.uint64(slots[min(i + _AHEAD, slots.size - 1)]), stride)
            slot = np.uint64(slots[i])
            values = rows[slot, :dim]
            change(values, rows[slot, dim:], grads[np.uint64(i)], dim, numbers)
            for d in range(dim if bound > 0 else _0):
                if values[d] > high:
                    values[d] = high
                elif values[d] < -high:
                    values[d] = -high
            if column >= 0:
                words[slot, np.uint64(column)] = np.uint32(stamp)

    return step


SGD, MOMENTUM, ADAGRAD, ROWWISE_ADAGRAD, ADAM = map(make_kernel, (sgd, momentum, adagrad, rowwise_adagrad, adam))
