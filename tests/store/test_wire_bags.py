"""Sums of rows that servers make: by hand, against plain sums, and through whole runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib.cluster.base import nbytes
from lib.store.spec import Bags
from tests.store.test_wire_ids import batch


def test_by_hand():
    ids, where = batch([[7, 5, 5], [9, 5, 7]])  # bags of one and of two columns
    assert ids.tolist() == [7, 5, 9]
    whole = Bags.of(ids, where, (1, 2), slice(None))
    assert whole.entries.tolist() == [7, 5, 5, 9, 5, 7]
    assert (whole.bags.tolist(), whole.counts.tolist()) == ([0, 1, 2, 3], [1, 2, 1, 2])
    assert nbytes(whole) == 6 * 8 + 4 * 4 + 4 * 2
    distinct, positions = whole.distinct()
    rows = np.float32([[1, 10], [2, 20], [4, 40]])  # of 7, 5 and 9
    assert distinct.tolist() == [7, 5, 9]
    assert whole.sums(rows, positions).tolist() == [[1, 10], [4, 40], [4, 40], [3, 30]]
    back, gradients = whole.spread(np.float32([[1], [10], [100], [1000]]))
    assert back.tolist() == [7, 5, 9] and gradients.tolist() == [[1001], [1020], [100]]
    part = Bags.of(ids, where, (1, 2), np.array([1]))
    assert (part.entries.tolist(), part.bags.tolist(), part.counts.tolist()) == ([5, 5, 5], [1, 3], [2, 1])


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(
    raw=st.lists(st.tuples(*[st.integers(0, 9)] * 4), min_size=1, max_size=12),
    shards=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_the_servers_sums_add_up_to_plain_sums_and_so_do_their_gradients(raw, shards, seed):
    generator, bag = np.random.default_rng(seed), (1, 3)
    ids, where = batch(raw)
    rows = generator.integers(-8, 8, (ids.size, 3)).astype(np.float32)  # whole numbers: the order of a sum is nothing
    grads = generator.integers(-8, 8, (2 * len(raw), 3)).astype(np.float32)
    owner = generator.integers(0, shards, ids.size)
    sums, spread = np.zeros_like(grads), np.zeros_like(rows)
    for shard in range(shards):
        part = Bags.of(ids, where, bag, mine := np.flatnonzero(owner == shard))
        found, positions = part.distinct()
        sums[part.bags] += part.sums(rows[[ids.tolist().index(each) for each in found]], positions)
        back, mean = part.spread(grads[part.bags])
        assert set(back.tolist()) == set(ids[mine].tolist())
        spread[[ids.tolist().index(each) for each in back]] += mean
    places = where.reshape(len(raw), 4)
    plain = np.stack([rows[places[:, :1]].sum(1), rows[places[:, 1:]].sum(1)], 1).reshape(-1, 3)
    assert np.array_equal(sums, plain)
    expected = np.zeros_like(rows)
    for sample, row in enumerate(places):
        for column, place in enumerate(row):
            expected[place] += grads[2 * sample + (column > 0)]
    assert np.array_equal(spread, expected)


CLICKS = {"fields": 3, "vocabularies": (20, 200, 60), "pooling": (1, 6, 3), "samples": 960, "batch_size": 24, "dim": 4}
SMALL = {**CLICKS, "hidden": (8,), "evaluation_samples": 400, "network": "dlrm", "days": 2}


def train(protocol, cluster=lib.VirtualCluster, workers=3, **store):
    workload, there = lib.workloads.get("ctr-synthetic", **SMALL), cluster(workers=workers, servers=2)
    options = {"seed": 3, "store": lib.RowStore(**store), "save": False, "checkpoint_every": 300}
    return lib.train(workload, protocol, there, **options).summary


@pytest.mark.parametrize("protocol", ["gba", "s-easgd", "async", "bsp"])
@pytest.mark.parametrize("placement", ["uniform", "by-group", "by-cost"])
def test_who_pools_changes_rounding_alone(protocol, placement):
    """One worker: where several train, longer messages change the order of their steps."""
    alone, together = (train(protocol, workers=1, placement=placement, pooling=who) for who in ("worker", "server"))
    for loss in ("logloss", "train_loss"):
        assert together[loss] == pytest.approx(alone[loss], abs=2e-5)


def test_sums_travel_in_the_codec_that_was_asked_for():
    whole, half = (train("gba", pooling="server", rows=codec, gradients=codec) for codec in ("fp32", "fp16"))
    for kind in ("pull rows", "push rows"):
        assert half["bytes_by_kind"][kind] == whole["bytes_by_kind"][kind] / 2


def test_on_threads_as_well():
    summary = train("gba", cluster=lib.LocalCluster, pooling="server")
    assert summary["samples"] == 960 and summary["auc"] > 0.5
