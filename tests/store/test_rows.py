"""Rows of several tables together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.store.rows import floats_of, is_phantom, phantom, select, union

IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=20)


@given(st.lists(st.tuples(IDS, st.booleans()), max_size=4))
def test_a_union_has_each_id_once_and_in_order(parts):
    arrays = [np.array(sorted(ids) if tidy else ids, np.int64) for ids, tidy in parts]
    assert union(arrays).tolist() == sorted({number for ids, _ in parts for number in ids})


@pytest.mark.parametrize("kind", [np.float16, np.int16, np.uint8])
def test_numbers_become_float32_and_plain(kind):
    strided = np.arange(12, dtype=kind).reshape(3, 4)[:, ::2]
    found = floats_of(strided, (3, 2), "x")
    assert found.dtype == np.float32 and found.flags.c_contiguous and (found == strided).all()
    own = np.zeros((3, 2), np.float32)
    assert floats_of(own, (3, 2), "x") is own and floats_of(own.T, (2, 3), "x").flags.c_contiguous


@pytest.mark.parametrize("part", [np.array([True, False, True, False]), np.array([3, 0]), slice(1, 3)])
def test_some_rows_of_a_phantom_are_a_phantom_of_as_many(part):
    found = select(phantom(4, 3, kind=np.int64), part)
    assert is_phantom(found) and found.dtype == np.int64
    assert found.shape == select(np.ones((4, 3)), part).shape == (2, 3)
