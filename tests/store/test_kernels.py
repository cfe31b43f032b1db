"""The kernels against plain Python, at the ends of int64, and on memory that may only be read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.store import kernels

LOW, HIGH = -(2**63), 2**63 - 1
IDS = st.lists(st.one_of(st.integers(-3, 3), st.integers(LOW, HIGH), st.sampled_from([LOW, HIGH])), max_size=60)


def id_of(code):
    """The id whose hash this is: `mix_bits` turned round."""

    def unshift(word, by):
        found = word
        for _ in range(64 // by):
            found = word ^ (found >> by)
        return found

    word = unshift(code, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    word = unshift(word, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    word = unshift(word, 30)
    assert kernels.mix_bits(np.uint64(word)) == code
    return word - 2**64 if word >= 2**63 else word


def ints(*values):
    return np.array(values, np.int64)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(IDS)
def test_unique_is_order_of_first_appearance(ids):
    distinct, positions = kernels.unique(np.array(ids, np.int64))
    assert distinct.tolist() == list(dict.fromkeys(ids))
    assert distinct[positions].tolist() == ids


@pytest.mark.parametrize("stride", [1, 2**20, 2**40, -(2**52)])
def test_unique_takes_regular_ids_of_any_stride(stride):
    ids = np.arange(2000, dtype=np.int64) * stride
    distinct, positions = kernels.unique(np.concatenate([ids, ids[::-1]]))
    assert np.array_equal(distinct, ids)
    assert np.array_equal(positions, np.r_[0:2000, 1999:-1:-1])


def test_first_rows_depend_on_seed_id_and_column_alone():
    ids = ints(5, -1, LOW, HIGH, 0)
    rows = kernels.first_rows(ids, 3, 8, 0.5)
    assert rows.dtype == np.float32
    assert np.array_equal(kernels.first_rows(ids[::-1].copy(), 3, 8, 0.5), rows[::-1])
    assert np.array_equal(kernels.first_rows(ids, 3, 5, 0.5), rows[:, :5])
    assert len(np.unique(np.vstack([rows, kernels.first_rows(ids, 4, 8, 0.5)]))) == 80


def test_first_rows_are_the_same_on_every_machine():
    rows = kernels.first_rows(ints(0, -1), 42, 2, 1.0)
    bits = [["0x1.1695fcp-1", "-0x1.e4c1acp-3"], ["-0x1.744274p-1", "-0x1.ab8cf4p-1"]]
    assert rows.tolist() == [[float.fromhex(number) for number in row] for row in bits]


def test_first_rows_are_uniform():
    rows = kernels.first_rows(np.arange(20_000, dtype=np.int64), 0, 4, 0.01)
    assert np.abs(rows).max() < 0.01
    shares = np.histogram(rows, bins=10, range=(-0.01, 0.01))[0] / rows.size
    assert np.allclose(shares, 0.1, atol=0.005)  # five standard deviations
    assert np.abs(np.corrcoef(rows.T) - np.eye(4)).max() < 0.04


def combine(ids, grads, weights):
    distinct, positions = kernels.unique(ids)
    return distinct, *kernels.sum_count(positions, grads, weights, distinct.size)


def test_sums_add_in_input_order():
    grads = np.array([[1e8], [1], [-1e8]], np.float32)
    ones = np.ones(3, np.float32)
    assert combine(ints(1, 1, 1), grads, ones)[1].item() == 0
    assert combine(ints(1, 1, 1), grads[[0, 2, 1]], ones)[1].item() == 1


BEHIND = [1, 2, 3, 4, 5, 6]
"""What lies behind an index in memory, and looks like entries of its records."""


class Index:
    """An index of eight entries over records [timestamp | id], of which there are at most six."""

    def __init__(self):
        self.memory = np.array([0] * 8 + BEHIND, np.uint32)
        self.index, self.words, self.slots = self.memory[:8], np.zeros((6, 3), np.uint32), {}

    def enter(self, number):
        slot = min({*range(6)} - {*self.slots.values()})
        self.words[slot, 1:] = ints(number).view(np.uint32)
        self.slots[number] = slot
        kernels.insert(self.index, self.words, 0, ints(slot))

    def remove(self, number):
        kernels.remove(self.index, self.words, 0, ints(self.slots.pop(number)))

    def find(self, *ids):
        slots = np.empty(len(ids), np.int64)
        missing = kernels.find_slots(ints(*ids), self.index, self.words, 0, 0, slots, np.empty((0, 0), np.float32))
        assert missing == (slots < 0).sum()
        return slots.tolist()


@pytest.mark.parametrize("first", [2, 6])
def test_ids_of_equal_hash_bits_are_told_apart(first):
    """All start their search at one entry, and have the bits that an index entry keeps in common; from 6 on it wraps."""
    ids, index = [id_of((first << 61) + (5 << 4) + number) for number in range(4)], Index()
    for number in ids[:3]:
        index.enter(number)
    assert index.find(*ids) == [0, 1, 2, -1]
    index.remove(ids[0])
    assert index.find(*ids) == [-1, 1, 2, -1]


CROWDED = [id_of((first << 61) + (tag << 4)) for first in (0, 1, 5, 6, 7) for tag in (1, 2)] + [
    id_of((first << 61) + (1 << 4) + 1) for first in (6, 7)
]
"""Ids that start their search close to each other and to the end of eight entries; some have equal hash bits."""


@settings(derandomize=True, deadline=None, max_examples=300, database=None)
@given(st.lists(st.sampled_from(CROWDED), max_size=40))
def test_an_index_is_a_dict_however_crowded_it_is(ids):
    """An id that is there goes, and one that is not comes where there is room."""
    index = Index()
    for number in ids:
        if number in index.slots:
            index.remove(number)
        elif len(index.slots) < 6:
            index.enter(number)
        assert index.find(*CROWDED) == [index.slots.get(each, -1) for each in CROWDED]
        assert index.memory[8:].tolist() == BEHIND
    assert (index.index != 0).sum() == len(index.slots)
