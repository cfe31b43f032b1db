"""Tables and OAC's cache on a device, by the same code on the CPU: against the host's table, its cache, and a dictionary."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import LockstepError
from lib.store.device import ways
from lib.store.device.cache import Cache
from lib.store.device.device_cache import DeviceCache
from lib.store.device.table import DeviceTable
from lib.store.optim import SGD, Adagrad, Adam
from lib.store.table import kernels
from lib.store.table.table import Table

QUIET = settings(derandomize=True, deadline=None, max_examples=40, database=None)
CPU = torch.device("cpu")
IDS = st.lists(st.one_of(st.integers(-30, 30), st.sampled_from([-(2**63), 2**63 - 1])), min_size=1, max_size=30)


def tensor(ids):
    return torch.tensor(ids, dtype=torch.int64)


@QUIET
@given(IDS, st.integers(-(2**70), 2**70))
def test_hashes_and_first_rows_are_the_kernels(ids, seed):
    words = np.array(ids, np.int64)
    mixed = np.array([kernels.mix(word) for word in words.view(np.uint64)], np.uint64).view(np.int64)
    assert ways.mix(tensor(ids)).tolist() == mixed.tolist()
    mine = ways.first_rows(tensor(ids), seed, 5, 0.3).numpy()
    assert np.array_equal(mine, kernels.first_rows(words, seed, 5, 0.3))


@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.5), Adagrad(lr=0.1), Adagrad(lr=0.1, rowwise=True), Adam(lr=0.1)], ids=repr
)
def test_it_is_the_hosts_table(optimizer):
    ours = DeviceTable(3, optimizer, seed=7, capacity=4096, device=CPU)
    theirs, rng = Table(3, optimizer, seed=7), np.random.default_rng(0)
    for stamp in range(12):
        ids = rng.integers(-100, 100, 150)
        grads = rng.normal(0, 1, (150, 3)).astype(np.float32)
        np.testing.assert_allclose(ours.pull(tensor(ids)).numpy(), theirs.pull(ids), rtol=1e-5, atol=1e-6)
        ours.push(tensor(ids), torch.from_numpy(grads), stamp)
        theirs.push(ids, grads, stamp)
    every = np.arange(-120, 120)
    np.testing.assert_allclose(ours.peek(tensor(every)).numpy(), theirs.peek(every), rtol=1e-5, atol=1e-6)
    assert ours.stamps(tensor(every)).tolist() == theirs.stamps(every).tolist()
    assert (len(ours), int(ours.lost), int(ours.evicted)) == (len(theirs), 0, 0)


@QUIET
@given(st.lists(st.tuples(st.booleans(), IDS), max_size=15))
def test_one_set_of_ways_is_a_dictionary_with_least_recent_use(calls):
    """New ids take the free ways, then those of the rows used longest ago, of equals the lower; rows of the call stay."""
    ours = DeviceTable(1, SGD(lr=1.0), seed=0, capacity=1, device=CPU, scale=0.0)
    model = {}  # id -> [touch, way, value, stamp]
    for now, (look_up, ids) in enumerate(calls, 1):
        met = list(dict.fromkeys(ids))
        held = {row[1]: key for key, row in model.items()}
        free = [way for way in range(ways.WAYS) if way not in held]
        free += [row[1] for row in sorted(model[key] for key in model if key not in met)]
        for key in met:
            if key in model:
                model[key][0] = now if look_up else model[key][0]
            elif free:
                model.pop(held.get(way := free.pop(0)), None)
                model[key] = [now, way, 0, -1]
        if look_up:
            assert ours.pull(tensor(ids)).ravel().tolist() == [model[key][2] if key in model else 0 for key in ids]
        else:
            ours.push(tensor(ids), -torch.ones(len(ids), 1), now)
            for key in set(met) & set(model):
                model[key][2:] = model[key][2] + ids.count(key), now
        keys = sorted({*model, *met})
        assert ours.peek(tensor(keys)).ravel().tolist() == [model[key][2] if key in model else 0 for key in keys]
        assert ours.stamps(tensor(keys)).tolist() == [model[key][3] if key in model else -1 for key in keys]
        assert len(ours) == len(model)


def test_what_finds_no_place_is_counted_and_harms_nobody():
    ours = DeviceTable(1, SGD(lr=1.0), seed=0, capacity=1, device=CPU, scale=0.0)
    ids = torch.arange(20)
    assert ours.pull(ids).shape == (20, 1) and len(ours) == 16
    ours.push(ids, -torch.ones(20, 1), 3)
    assert ours.peek(ids).sum() == 16 and int(ours.lost) == 4
    assert (ours.peek(torch.arange(20, 40)) == 0).all()


@QUIET
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 40), unique=True, min_size=1, max_size=12), st.integers(0, 6)), max_size=30
    )
)
def test_the_cache_validates_as_the_hosts_does(batches):
    """Batch after batch: validate what was read some updates ago, update it, evict what is safe by then."""
    ours, theirs = DeviceCache(2, 512, CPU), Cache(2, CPU)
    for stamp, (ids, lag) in enumerate(batches):
        words, read = np.array(ids), np.full(len(ids), max(-1, stamp - 1 - lag))
        rows, stale = ours.validate(tensor(ids), torch.zeros(len(ids), 2), torch.from_numpy(read))
        conflicts = theirs.stamps(words) > read
        assert stale.tolist() == conflicts.tolist()
        if conflicts.any():
            assert torch.equal(rows[stale], theirs.take(words[conflicts]))
        assert (rows[~stale] == 0).all()
        fresh = torch.full((len(ids), 2), float(stamp))
        ours.put(tensor(ids), fresh, stamp)
        theirs.put(words, fresh, stamp)
        ours.evict(stamp - 8)  # nothing that was read before is still to come
        theirs.evict(stamp - 8)
    ours.check()


def test_only_what_is_safe_makes_room():
    cache = DeviceCache(1, 1, CPU)
    cache.put(torch.arange(16), torch.ones(16, 1), 5)
    cache.evict(4)
    assert len(cache) == 16
    cache.evict(torch.tensor(5))
    assert len(cache) == 0 and cache.stamps(torch.arange(16)).tolist() == [-1] * 16
    cache.put(torch.arange(100, 116), torch.ones(16, 1), 6)
    cache.check()
    cache.put(torch.arange(2), torch.ones(2, 1), 7)
    assert cache.stamps(torch.arange(100, 116)).tolist() == [6] * 16
    with pytest.raises(LockstepError, match="2 updated rows found no place in a cache of 16"):
        cache.check()
