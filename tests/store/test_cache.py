"""The device's cache against a plain list of updates."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.store.device import Cache

IDS = st.lists(
    st.one_of(st.integers(-20, 20), st.sampled_from([-(2**63), 2**63 - 1])), min_size=1, max_size=12, unique=True
)


def filled(ids, stamp):
    """Rows that say which update and which id they are of."""
    return torch.stack([torch.full((ids.size,), float(stamp)), torch.from_numpy(ids % 97).float()], dim=1)


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(st.lists(st.tuples(IDS, st.integers(0, 6)), max_size=30))
def test_the_newest_rows_are_there_until_they_are_safe(calls):
    """And memory is given back as soon as an update is safe, though a later batch may know of fewer that are."""
    cache, updates, safe = Cache(2, torch.device("cpu")), {}, -1
    for stamp, (ids, lag) in enumerate(calls):
        ids = np.array(ids)
        cache.reserve_view(ids, stamp).copy_(filled(ids, stamp))
        updates[stamp] = ids
        before = len(cache)
        gone = cache.release_updates(stamp - lag)
        safe = max(safe, stamp - lag)
        kept = {when: each for when, each in updates.items() if when > safe}
        assert len(cache) == before - gone == sum(each.size for each in kept.values())
        newest = {number: when for when, each in kept.items() for number in each.tolist()}
        asked = np.unique(np.concatenate(list(updates.values())))
        assert cache.places_and_stamps(asked)[1].tolist() == [newest.get(number, -1) for number in asked.tolist()]
        known = np.array(list(newest), np.int64)
        rows = cache.take(cache.places_and_stamps(known)[0])
        assert rows[:, 0].tolist() == list(newest.values()) and rows[:, 1].tolist() == (known % 97).tolist()
    assert cache.places_and_stamps(np.array([77, 78]))[1].tolist() == [-1, -1]


def test_room_is_used_again_and_the_index_forgets():
    cache = Cache(1, torch.device("cpu"))
    for stamp in range(200):
        ids = np.arange(10) + 10 * stamp
        cache.reserve_view(ids, stamp)
        cache.release_updates(stamp - 1)
    assert len(cache) == 10 and len(cache._index) <= 30 and len(cache._rows) <= 40
