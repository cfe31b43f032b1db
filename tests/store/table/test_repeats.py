"""Batches that hold no id twice, and how that is told."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.store.optim import SGD
from lib.store.table import lookup
from lib.store.table.kernels import mix
from lib.store.table.table import Table

COUNT = 20_000
"""Entries that are worth remembering."""


def repeats(ids):
    return lookup.repeats(ids, np.empty(ids.size, np.int64), np.empty(lookup.heads_for(ids.size), np.int32))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60))
def test_a_small_batch_is_told_apart_exactly(ids):
    assert repeats(np.array(ids)) == (len(set(ids)) < len(ids))


@pytest.mark.parametrize("seed", range(5))
def test_a_single_repeat_among_thousands_is_found(seed):
    ids = np.random.default_rng(seed).choice(2**62, COUNT, replace=False)
    assert not repeats(ids)
    one, other = np.random.default_rng(seed + 100).choice(COUNT, 2, replace=False)
    ids[one] = ids[other]
    assert repeats(ids)


def test_ids_that_share_a_place_are_no_repeat():
    """Found by trying: distinct ids with one place among the 16 x heads of a batch of a hundred."""
    bits, places, chosen = 16 * lookup.heads_for(100), {}, []
    for candidate in range(20_000):
        place = int(mix(np.uint64(candidate))) >> 32 & (bits - 1)
        if place in places:
            chosen += [places.pop(place), candidate]
        places[place] = candidate
        if len(set(chosen)) >= 100:
            break
    ids = np.array(sorted(set(chosen))[:100])
    assert not repeats(ids)
    assert repeats(np.append(ids[:-1], ids[0]))


def test_a_batch_of_one_id_is_called_a_repeat_before_it_is_sorted():
    assert repeats(np.zeros(COUNT, np.int64))


@pytest.mark.parametrize("limit", [None, 3 * COUNT], ids=["endless", "lru"])
@pytest.mark.parametrize("locking", ["striped", "none"])
def test_once_twice_and_once_again(limit, locking):
    """Rows and gradients of batches without repeats, with one, and without again, some ids new each time: SGD by hand."""
    random = np.random.default_rng(0)
    table = Table(4, SGD(lr=1.0), seed=0, max_rows=limit, locking=locking)
    expected: dict[int, np.ndarray] = {}
    for turn in range(4):
        ids = random.choice(2 * COUNT, COUNT, replace=False)
        if turn == 2:
            ids[-1] = ids[0]
        rows = table.pull(ids)
        for id_, row in zip(ids.tolist(), rows, strict=True):
            np.testing.assert_array_equal(row, expected.setdefault(id_, row.copy()))
        grads = random.integers(-4, 5, rows.shape).astype(np.float32) / 4  # sums are exact
        table.push(ids, grads, turn + 1)
        for id_, grad in zip(ids.tolist(), grads, strict=True):
            expected[id_] = expected[id_] - grad
    everything = np.array(list(expected))
    found = table.peek(everything)
    np.testing.assert_allclose(found, np.stack([expected[id_] for id_ in everything.tolist()]), rtol=0, atol=1e-6)
