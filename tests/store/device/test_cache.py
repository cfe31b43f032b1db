"""The device's cache against a plain dictionary."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.store.device.cache import Cache

IDS = st.lists(
    st.one_of(st.integers(-20, 20), st.sampled_from([-(2**63), 2**63 - 1])), min_size=1, max_size=12, unique=True
)


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(st.lists(st.tuples(IDS, st.integers(0, 6)), max_size=30))
def test_the_newest_rows_are_there_until_they_are_safe(calls):
    """What is needed stays; what is safe may stay too, and goes once it is at least half."""
    cache, model = Cache(2, torch.device("cpu")), {}
    for stamp, (ids, lag) in enumerate(calls):
        numbers = np.array(ids)
        cache.put(numbers, torch.full((len(ids), 2), float(stamp)), stamp)
        model |= dict.fromkeys(ids, stamp)
        safe, before = stamp - lag, len(cache)
        needed = {number for number, when in model.items() if when > safe}
        gone = cache.evict(safe)
        assert len(cache) == before - gone and (len(cache) == len(needed) if gone else 2 * len(needed) >= before - 1)
        if gone:
            model = {number: model[number] for number in needed}
        known = np.array(list(model) or [99])
        assert cache.stamps(known).tolist() == [model.get(number, -1) for number in known.tolist()]
        if model:
            assert cache.take(known)[:, 1].tolist() == [model[number] for number in known.tolist()]
    assert cache.stamps(np.array([77, 78])).tolist() == [-1, -1]
