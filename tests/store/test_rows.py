"""Rows of several tables together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lib.store.rows import union

IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=20)


@given(st.lists(st.tuples(IDS, st.booleans()), max_size=4))
def test_a_union_has_each_id_once_and_in_order(parts):
    arrays = [np.array(sorted(ids) if tidy else ids, np.int64) for ids, tidy in parts]
    assert union(arrays).tolist() == sorted({number for ids, _ in parts for number in ids})
