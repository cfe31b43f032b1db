"""Placements: what each promises, numbers by hand, the packing's bound, and shards that become others."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import BadOption
from lib.store.dense import DenseStore
from lib.store.optim import SGD, Adagrad, Adam
from lib.store.rows import (
    ByGroup,
    Hashed,
    Rows,
    Uniform,
    dense_slice,
    look_up_costs,
    pack_groups,
    place_rows,
    reshard_dense,
)
from lib.store.table import Table

IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 4000)
FIELD = 48
FIELDS = np.concatenate([(np.int64(field) << FIELD) | np.arange(500) for field in range(5)])
PLACEMENTS = [
    Uniform(shards=3),
    Hashed(shards=3),
    ByGroup(shards=3),
    ByGroup(shards=3, shift=FIELD),
    pack_groups({"a": 5.0, "b": 1.0}, 3),
    pack_groups({f"a/{field}": 1.0 + field for field in range(5)}, 4, shift=FIELD),
]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda placement: type(placement).__name__)
@pytest.mark.parametrize("ids", [IDS, FIELDS, IDS[:0]], ids=["any", "fields", "none"])
def test_every_id_has_one_owner_that_depends_on_it_alone(placement, ids):
    owner = placement.shard_of("a", ids)
    assert owner.dtype == np.int64 and owner.shape == ids.shape
    assert ((owner >= 0) & (owner < placement.shards)).all()
    order = np.random.default_rng(1).permutation(ids.size)
    assert np.array_equal(placement.shard_of("a", ids[order]), owner[order])
    split = placement.split("a", ids)
    assert len(split) == placement.shards
    assert sorted(itertools.chain(*split)) == list(range(ids.size))
    assert all((np.diff(mine) > 0).all() for mine in split)


def test_a_shuffle_deals_neighbours_out_and_a_hash_draws_lots():
    """Over 16 servers 4000 neighbours are 250 each: to two of them if they are dealt out, to about 16 each if lots are drawn."""
    dealt, drawn = (np.bincount(kind(shards=16).shard_of("a", np.arange(4000))) for kind in (Uniform, Hashed))
    assert abs(dealt - 250).max() <= 2 and 8 < drawn.std() < 24


@pytest.mark.parametrize("shards", [1, 2, 7, 16])
@pytest.mark.parametrize("ids", [IDS, np.arange(4000), FIELDS], ids=["any", "neighbours", "fields"])
@pytest.mark.parametrize("kind", [Uniform, Hashed])
def test_uniform_shuffle_is_even_inside_a_group(kind, shards, ids):
    counts = np.bincount(kind(shards=shards).shard_of("a", ids), minlength=shards)
    fair = ids.size / shards
    assert counts.max() < fair + 5 * np.sqrt(fair) and counts.min() > fair - 5 * np.sqrt(fair)


@pytest.mark.parametrize("shards", [2, 4, 8, 12])
def test_the_first_ids_of_many_fields_are_no_neighbours(shards):
    """In every field the first id is the one that is asked for most: what spreads them are the bits that tell fields apart."""
    first = np.arange(400, dtype=np.int64) << FIELD
    counts = np.bincount(Uniform(shards=shards).shard_of("a", first), minlength=shards)
    assert counts.max() <= 1.2 * first.size / shards


def test_by_group_congests_where_uniform_does_not():
    """Nine of ten look-ups ask for one group: its server gets them all, or a third."""
    hot = np.repeat(np.int64(0) << FIELD | np.arange(500), 9)
    ids = np.concatenate([hot, (np.int64(1) << FIELD) | np.arange(500)])
    by_group = ByGroup(shards=3, shift=FIELD, owners={f"a/{field}": (field,) for field in range(3)})
    assert np.bincount(by_group.shard_of("a", ids), minlength=3).tolist() == [4500, 500, 0]
    assert np.bincount(Uniform(shards=3).shard_of("a", ids), minlength=3).max() < 0.4 * ids.size
    costs = {"a/0": 4500, "a/1": 500}
    assert by_group.shard_loads(costs).tolist() == [4500, 500, 0]
    assert Uniform(shards=4).shard_loads(costs).tolist() == [1250] * 4


def test_packing_by_hand():
    """A fair share is 12.5. 7, 6, 5, 4, 3 on two servers: 7 | 6, 6 + 5, 7 + 4, then 3 goes where 11 stands first."""
    costs = {"a": 7, "b": 6, "c": 5, "d": 4, "e": 3}
    placed = pack_groups(costs, 2)
    assert placed.owners == {"a": (0,), "b": (1,), "c": (1,), "d": (0,), "e": (0,)}
    assert placed.shard_loads(costs).tolist() == [14, 11]


def test_a_group_that_is_too_large_is_cut():
    costs = {"a": 9, "b": 2, "c": 1}
    placed = pack_groups(costs, 4)
    assert placed.owners["a"] == (0, 1, 2) and placed.shard_loads(costs).tolist() == [3, 3, 3, 3]
    assert set(placed.shard_of("a", IDS)) == {0, 1, 2} and set(placed.shard_of("b", IDS)) == {3}
    assert pack_groups({"a": 0, "b": 0}, 4).owners == {"a": (0,), "b": (0,)} and pack_groups({}, 4).owners == {}


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(costs=st.lists(st.integers(0, 30), min_size=1, max_size=7), shards=st.integers(1, 3))
def test_packing_is_within_its_bound(costs, shards):
    costs = {str(number): cost for number, cost in enumerate(costs)}
    found = pack_groups(costs, shards).shard_loads(costs)
    assert sum(found) == pytest.approx(sum(costs.values()))
    assignments = itertools.product(range(shards), repeat=len(costs))
    best = min(max(np.bincount(a, weights=list(costs.values()), minlength=shards)) for a in assignments)
    assert max(found) <= (4 / 3 - 1 / (3 * shards)) * best + 1e-9, "cut pieces fit no worse than whole groups do"


def test_costs_are_the_bytes_that_are_looked_up():
    batches = [{"a": np.arange(10), "b": np.arange(5)}, {"a": np.arange(20)}]
    assert look_up_costs(batches, {"a": 4, "b": 8}) == {"a": 4 * 4 * 30, "b": 4 * 8 * 5}
    assert look_up_costs([{"a": FIELDS[:1200]}], {"a": 4}, shift=FIELD) == {"a/0": 8000, "a/1": 8000, "a/2": 3200}


@pytest.mark.parametrize("before", [1, 2, 5])
@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adam(lr=0.1)], ids=["sgd", "adam"])
def test_shards_of_any_number_become_any_other(before, after, optimizer):
    whole = Table(3, optimizer, seed=0)
    whole.push(IDS[:300], np.ones((300, 3), np.float32), 4)
    whole.pull(IDS[300:400])
    exported = whole.export()
    shards = place_rows([exported], "a", Uniform(shards=before))
    placement = Uniform(shards=after)
    again = place_rows(shards, "a", placement)
    for shard, rows in enumerate(again):
        assert (placement.shard_of("a", rows.ids) == shard).all()
        assert (np.diff(rows.ids.astype(object)) > 0).all()
    joined = place_rows(again, "a", Uniform(shards=1))[0]
    for name in ("ids", "values", "state", "stamps"):
        assert np.array_equal(getattr(joined, name), getattr(exported, name))


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)], ids=["sgd", "adagrad", "adam"])
def test_dense_shards_become_others_and_train_on(optimizer):
    whole = DenseStore(np.arange(10, dtype=np.float32), optimizer)
    whole.apply(np.ones(10, np.float32))
    parts = reshard_dense(reshard_dense([whole.export()], 3), 4)
    whole.apply(np.full(10, 2, np.float32))
    for shard, arrays in enumerate(parts):
        store = DenseStore(np.zeros(arrays["values"].size, np.float32), optimizer)
        store.load(arrays)
        store.apply(np.full(arrays["values"].size, 2, np.float32))
        assert np.array_equal(store.pull(), whole.pull()[dense_slice(10, 4, shard)])


def test_what_cannot_be_placed_is_named():
    one = Rows(np.array([5]), np.ones((1, 1), np.float32), np.empty((1, 0), np.float32), np.array([0]))
    with pytest.raises(BadOption, match="table 'a': id 5 is in more than one shard"):
        place_rows([one, one], "a", Uniform(shards=2))
    with pytest.raises(BadOption, match=r"Uniform.shards must be an integer of at least 1, not 0"):
        Uniform(shards=0)
    with pytest.raises(BadOption, match=r"group 'a' is placed on \(2,\), and there are shards 0 to 1"):
        ByGroup(shards=2, owners={"a": (2,)})
    with pytest.raises(BadOption, match="the cost of group 'a' must be finite"):
        pack_groups({"a": float("nan")}, 2)


def test_a_group_of_exactly_a_fair_share_is_not_cut():
    """Nor is one of two shares cut into three: rounding decides nothing."""
    assert pack_groups({"a": 2.0, "b": 1.0, "c": 1.0}, 2).owners == {"a": (0,), "b": (1,), "c": (1,)}
    assert len(pack_groups({"a": 0.2, "b": 0.1}, 3).owners["a"]) == 2
