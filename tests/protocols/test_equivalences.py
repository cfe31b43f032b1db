"""Protocols that must coincide do, over sizes, seeds and speeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Node, VirtualCluster, protocols, workloads
from lib.protocols import Pair
from lib.store.optim import SGD, Adam
from tests.protocols.by_hand import bowl
from tests.toys import finals, records, rounds, serial_dense

PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)
WORKERS, SEEDS, BATCHES = st.integers(1, 7), st.integers(0, 50), st.integers(1, 23)
SMALL = {"batch_size": 8, "vocabulary": 30, "fields": 3, "dim": 2, "hidden": (4,), "evaluation_samples": 50}


def clicks(batches, **options):
    return workloads.get("ctr-synthetic", samples=8 * batches - 3, **SMALL, **options)


def digest(workload, protocol, cluster, seed):
    return lib.train(workload, protocol, cluster, seed=seed, save=False).digest


EQUAL = [
    ("sync", {}, "sync", 1.5),
    ("gba", {}, "sync", 0),
    ("bsp", {}, "sync", 0),
    ("hop-bw", {"spare": 0}, "sync", 0),
    ("semi-sync", {"pull_ahead": 0}, "sync", 1.5),
    ("gba", {"size": 1, "iota": float("inf")}, "async", 1.5),
    ("bsp", {"size": 1}, "async", 1.5),
    ("ringmaster", {"limit": 1000}, "async", 1.5),
    ("admission", {"lag": 2}, "bsp", 1.5),
]
"""A rule, the one that it is at these options, and up to which unevenness of the workers."""


@pytest.mark.parametrize("name, options, other, most", EQUAL)
@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, sigma=st.floats(0, 1))
def test_rules_that_are_another_to_the_bit(name, options, other, most, workers, seed, batches, sigma):
    """Speeds change nothing of what Sync computes."""
    cluster = VirtualCluster(workers=workers, slowdown=most * sigma)
    expected = digest(clicks(batches), other, VirtualCluster(workers=workers) if other == "sync" else cluster, seed)
    assert digest(clicks(batches), protocols.get(name, **options), cluster, seed) == expected


def test_gba_with_equal_workers_is_sync_only_where_the_gradients_of_a_step_arrive_together():
    """Else who came early reads the parameters of the step before, which staleness shows and its token does not."""
    workload = workloads.get("criteo-deepfm", samples=128 * 80, evaluation_samples=200, vocabulary=300)

    def runs(**nodes):
        cluster = VirtualCluster(workers=8, **nodes)
        return [lib.train(workload, name, cluster, save=False) for name in ("sync", "gba", "bsp")]

    at_once = {"bandwidth": 1e30, "latency": 0.0, "core_memory": 1e30}
    sync, gba, _ = runs(worker=Node(**at_once), server=Node(cores=8, **at_once))
    assert gba.digest == sync.digest
    assert gba.summary["staleness"] == sync.summary["staleness"] == {"0": 80}
    sync, gba, bsp = runs()
    assert gba.digest == bsp.digest != sync.digest
    assert gba.summary["staleness"] == bsp.summary["staleness"]
    assert gba.summary["staleness_mean"] > 0.5
    assert gba.summary["data_staleness"] == {"0": 80}
    assert bsp.summary["data_staleness"] == bsp.summary["staleness"]


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, rounds=st.integers(1, 6), sigma=st.floats(0, 1))
def test_no_staleness_is_sync_in_small_steps(workers, seed, rounds, sigma):
    """Gradients of the same parameters, applied one by one at lr / workers, are their mean applied at lr."""
    batches, cluster = rounds * workers, VirtualCluster(workers=workers, slowdown=sigma)
    ends = [
        finals(records(bowl(batches, 1, SGD(lr=rate)), protocols.get(name, **options), cluster, seed))
        for name, rate, options in (("sync", 0.1, {}), ("hop-bs", 0.1 / workers, {"bound": 0}))
    ]
    sync, hop = (end["server0/dense"][0]["values"] for end in ends)
    np.testing.assert_allclose(hop, sync, rtol=1e-5, atol=1e-6)


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, bound=st.integers(0, 3), sigma=st.floats(0, 1.5))
def test_bounded_staleness_is_bounded(workers, seed, batches, bound, sigma):
    cluster = VirtualCluster(workers=workers, slowdown=sigma)
    run = lib.train(clicks(batches), protocols.get("hop-bs", bound=bound), cluster, seed=seed, save=False)
    assert run.summary["staleness_max"] <= (workers - 1) * (2 * bound + 1)


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, adam=st.booleans(), sigma=st.floats(0, 1))
def test_sync_is_the_serial_loop_over_mean_gradients(workers, seed, batches, adam, sigma):
    workload = bowl(batches, 1, Adam(lr=0.05) if adam else SGD(lr=0.1))
    final = finals(records(workload, protocols.get("sync"), VirtualCluster(workers=workers, slowdown=sigma), seed))
    expected = serial_dense(workload, seed, rounds(batches, workers))
    np.testing.assert_allclose(final["server0/dense"][0]["values"], expected, rtol=1e-5, atol=1e-6)


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, sigma=st.floats(0, 1), buckets=st.integers(1, 3))
def test_hybrid_that_reads_nothing_ahead_is_all_reduce_over_asynchronous_rows(workers, seed, batches, sigma, buckets):
    cluster = VirtualCluster(workers=workers, slowdown=sigma)
    dense = protocols.get("all-reduce", buckets=buckets)
    for counts, rows in (("own", protocols.get("async")), ("all", protocols.get("hop-bs", bound=0))):
        hybrid = protocols.get("hybrid", tau=0, counts=counts, buckets=buckets)
        expected = digest(clicks(batches), Pair(sparse=rows, dense=dense), cluster, seed)
        assert digest(clicks(batches), hybrid, cluster, seed) == expected


@pytest.mark.parametrize(
    "name, options, most",
    [("all-reduce", {}, 7), ("hybrid", {"tau": 0}, 1), ("hybrid", {"tau": 0, "counts": "all"}, 1)],
)
@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES)
def test_rules_that_are_sync_without_a_server_for_the_dense_part(name, options, most, workers, seed, batches):
    """Of one worker where rows are asynchronous."""
    sync, reduced = (
        finals(records(clicks(batches), rule, VirtualCluster(workers=min(workers, most)), seed))
        for rule in (protocols.get("sync"), protocols.get(name, **options))
    )
    np.testing.assert_array_equal(reduced["worker0/replica"]["values"], sync["server0/dense"][0]["values"])
    np.testing.assert_array_equal(reduced["server0/rows"]["feature"].values, sync["server0/rows"]["feature"].values)


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, rounds=st.integers(1, 4), sigma=st.floats(0, 1))
def test_hybrid_without_staleness_is_sync_in_small_steps(workers, seed, rounds, sigma):
    """No worker reads a row before all gradients of the step before are in it, nor later, since a ring ends for all at once; each
    is then applied by itself."""
    cluster, batches = VirtualCluster(workers=workers, slowdown=sigma, collective="ring"), rounds * workers
    ends = []
    hybrid = protocols.get("hybrid", tau=0, counts="all")
    for rate, rule in ((0.1, protocols.get("all-reduce")), (0.1 / workers, hybrid)):
        task = workloads.get("ctr-synthetic", **SMALL, samples=8 * batches, row_optimizer=SGD(lr=rate))
        pair = rule if rule.name == "hybrid" else Pair(sparse=protocols.get("sync", rows_divided_by="all"), dense=rule)
        ends.append(finals(records(task, pair, cluster, seed)))
    sync, hybrid = ends
    expected = sync["worker0/replica"]["values"]
    np.testing.assert_allclose(hybrid["worker0/replica"]["values"], expected, rtol=1e-3, atol=1e-5)
    rows = [end["server0/rows"]["feature"] for end in (sync, hybrid)]
    order = [np.argsort(each.ids) for each in rows]
    values = [each.values[by] for each, by in zip(rows, order, strict=True)]
    np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-5)


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, tau=st.integers(0, 3), sigma=st.floats(0, 1.5))
def test_rows_are_as_old_as_tau_says_where_it_counts_all(workers, seed, batches, tau, sigma):
    cluster = VirtualCluster(workers=workers, slowdown=sigma)
    parts = records(clicks(batches), protocols.get("hybrid", tau=tau, counts="all"), cluster, seed)
    ages = [age for part in parts if part.ledger["started"] for _, age, _ in part.staleness]
    assert max(ages) <= (workers - 1) * (2 * tau + 1) + tau


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, steps=st.integers(1, 6), sigma=st.floats(0, 1))
def test_ds_sync_with_one_group_and_sgd_is_sync(workers, seed, steps, sigma):
    workload = bowl(steps, workers)
    cluster = VirtualCluster(workers=workers, slowdown=sigma)
    final = finals(records(workload, protocols.get("ds-sync", size=workers), cluster, seed))
    expected = serial_dense(workload, seed, rounds(steps * workers, workers))
    for rank in range(workers):
        np.testing.assert_allclose(final[f"worker{rank}/replica"]["values"], expected, rtol=1e-5, atol=1e-6)


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, sigma=st.floats(0, 1))
def test_easgd_with_alpha_zero_is_no_synchronisation(workers, seed, batches, sigma):
    workload = bowl(batches, 1, Adam(lr=0.05))
    parts = records(workload, protocols.get("s-easgd", alpha=0), VirtualCluster(workers=workers, slowdown=sigma), seed)
    final = finals(parts)
    np.testing.assert_array_equal(final["sync0/centre"], serial_dense(workload, seed, []))
    for part in parts:
        if part.node.startswith("worker"):
            own = [[batch] for kind, _, _, batch, _ in part.spans if kind == "compute"]
            np.testing.assert_array_equal(final[f"{part.node}/replica"]["values"], serial_dense(workload, seed, own))


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, sigma=st.floats(0, 1), servers=st.integers(2, 4))
def test_several_servers_compute_what_one_does_under_sync(workers, seed, batches, sigma, servers):
    one = finals(records(clicks(batches), protocols.get("sync"), VirtualCluster(workers=workers), seed))
    cluster = VirtualCluster(workers=workers, servers=servers, slowdown=sigma)
    many = finals(records(clicks(batches), protocols.get("sync"), cluster, seed))
    joined = np.concatenate([many[f"server{shard}/dense"][shard]["values"] for shard in range(servers)])
    # torch's fused Adam rounds the last few elements of a vector otherwise than those that fill a SIMD register.
    np.testing.assert_allclose(joined, one["server0/dense"][0]["values"], rtol=1e-5, atol=1e-6)
    parts = [many[f"server{shard}/rows"]["feature"] for shard in range(servers)]
    rows = {id: row for part in parts for id, row in zip(part.ids, part.values, strict=True)}
    whole = one["server0/rows"]["feature"]
    np.testing.assert_allclose(np.stack([rows[id] for id in whole.ids]), whole.values, rtol=1e-4, atol=1e-6)
    assert len(rows) == len(whole)


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, sigma=st.floats(0, 1))
def test_a_pair_of_one_rule_is_that_rule(workers, seed, batches, sigma):
    cluster = VirtualCluster(workers=workers, slowdown=sigma)
    alone = finals(records(clicks(batches), protocols.get("sync"), cluster, seed))
    pair = Pair(sparse=protocols.get("sync"), dense=protocols.get("sync"))
    parts = records(clicks(batches), pair, cluster, seed)
    apart = {f"{part.node}/{kind}": value for part in parts for kind, value in part.final.items() if value}
    np.testing.assert_array_equal(apart["server0/dense"][0]["values"], alone["server0/dense"][0]["values"])
    np.testing.assert_array_equal(apart["server0/rows"]["feature"].state, alone["server0/rows"]["feature"].state)
