"""SSP: workers train on a cached copy; it equals a straight loop, keeps its bound, and only what is needed travels."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Failure, LocalCluster, Mishaps, Node, VirtualCluster, protocols, workloads
from lib.errors import BadOption
from lib.protocols.hop import SSP, HopBS
from lib.store.optim import SGD
from lib.tasks.flat_model import FlatModel
from tests.protocols.by_hand import RATE, bowl
from tests.protocols.test_oracles import noting
from tests.toys import finals, records
from tests.training.stopping import assert_same

PROPERTY = settings(max_examples=8, deadline=None, derandomize=True)
SMALL = {"batch_size": 16, "vocabulary": 50, "fields": 3, "dim": 2, "hidden": (4,), "evaluation_samples": 50}
CLICKS = workloads.get("ctr-synthetic", samples=16 * 60, **SMALL)
PLAIN = {"row_optimizer": SGD(lr=RATE), "dense_optimizer": SGD(lr=RATE)}


def replayed(workload, seed, noted):
    """Every gradient where its worker was: at the version that it read, less its own steps since; all steps in their order.

    Of each update: the worker, its batches so far, and the version it read."""
    model = FlatModel(workload.model(seed))
    start = model.vector.numpy().copy()
    versions, own, done, seen = [start], {}, Counter(), []
    for update in noted:
        [push] = update.pushes
        if own.get(push.worker, (None,))[0] != push.read:
            own[push.worker] = push.read, versions[push.read].copy()
        here = own[push.worker][1]
        model.load(here)
        gradient = model.step(workload.batch(seed, push.batch), {}).dense.numpy()
        seen.append((push.worker, done[push.worker], push.read))
        done[push.worker] += 1
        here -= np.float32(RATE) * gradient
        versions.append(versions[-1] - np.float32(RATE) * gradient)
    return versions[-1], seen


@PROPERTY
@given(workers=st.integers(1, 5), seed=st.integers(0, 9), bound=st.integers(0, 3), sigma=st.floats(0, 1.5))
def test_ssp_is_its_straight_loop_and_sees_what_it_must(workers, seed, bound, sigma):
    """Where each gradient was computed is the loop's own reckoning; float32 on both sides."""
    workload, (rule, noted) = bowl(9, workers), noting(SSP(bound=bound))
    final = finals(records(workload, rule, VirtualCluster(workers=workers, slowdown=sigma), seed))
    expected, seen = replayed(workload, seed, noted)
    np.testing.assert_allclose(final["server0/dense"][0]["values"], expected, rtol=1e-6, atol=1e-6)
    by = [worker for worker, _, _ in seen]
    for place, (worker, step, read) in enumerate(seen):
        there = Counter(by[:read])
        assert all(there[other] >= step - bound for other in range(workers) if other != worker)
        assert place - read <= (workers - 1) * (2 * bound + 1) + bound
    reads = len({(worker, read) for worker, _, read in seen})
    assert reads == len(seen) if bound == 0 and workers > 1 else reads <= len(seen)
    if workers == 1:
        assert reads == -(-9 // (bound + 1)), "alone, it reads anew when its own copy is too old"


@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_anew_has_the_workers_own_gradients_though_messages_are_late(seed):
    mishaps = Mishaps(late=0.5, delay=20e-3)
    workload, (rule, noted) = bowl(12, 3), noting(SSP(bound=1))
    parts = records(workload, rule, VirtualCluster(workers=3, mishaps=mishaps), seed)
    assert sum(len(part.used) for part in parts) == 36
    by, first = [], {}
    for place, update in enumerate(noted):
        [push] = update.pushes
        step = by.count(push.worker)
        if first.setdefault((push.worker, push.read), place) == place:
            assert by[: push.read].count(push.worker) == step
        by.append(push.worker)


def test_a_bound_of_0_is_a_barrier_without_a_cache():
    """Every step then reads anew, as under bounded staleness alone."""
    uneven = VirtualCluster(workers=3, slowdown=0.8)
    assert_same(*(lib.train(CLICKS, kind(bound=0), uneven, save=False) for kind in (SSP, HopBS)))


def test_rows_that_the_copy_lacks_are_read_and_all_are_updated_at_once():
    """One worker that reads every third batch, with plain SGD, trains what one does that reads each time."""
    task = workloads.get("ctr-synthetic", samples=16 * 40, **SMALL, **PLAIN)
    there = VirtualCluster(workers=1, servers=2)
    each, third = (finals(records(task, kind(bound=2), there)) for kind in (HopBS, SSP))
    for shard in range(2):
        rows = [one[f"server{shard}/rows"]["feature"] for one in (each, third)]
        np.testing.assert_array_equal(rows[0].ids, rows[1].ids)
        np.testing.assert_allclose(rows[0].values, rows[1].values, rtol=1e-5, atol=1e-6)


def test_only_what_is_needed_travels():
    """Alone, every third batch reads the dense parameters; gradients travel with each."""

    def moved(rule, **options):
        cluster = VirtualCluster(workers=1, worker=Node(bandwidth=1e5))
        return lib.train(CLICKS, rule, cluster, save=False, **options).summary

    whole, less = moved(HopBS(bound=2)), moved(SSP(bound=2))
    kinds = whole["bytes_by_kind"], less["bytes_by_kind"]
    assert kinds[1]["pull dense"] * 3 == kinds[0]["pull dense"] and kinds[1]["push dense"] == kinds[0]["push dense"]
    assert kinds[1]["pull rows"] < kinds[0]["pull rows"] and kinds[1]["push rows"] == kinds[0]["push rows"]
    assert less["virtual_seconds"] < whole["virtual_seconds"]
    timing = moved(SSP(bound=2), gradients=False)
    assert timing["bytes_by_kind"] == kinds[1] and timing["virtual_seconds"] == less["virtual_seconds"]


@pytest.mark.parametrize("cluster", [VirtualCluster(workers=3, slowdown=0.8, servers=2), LocalCluster(workers=3)])
def test_every_gradient_is_used_once(cluster):
    parts = records(CLICKS, SSP(bound=3), cluster)
    for part in parts:
        if part.used:
            assert sorted(part.used) == list(range(60)) and part.ledger["applied"] == 60


def test_what_a_lost_worker_had_started_is_issued_and_lost():
    step = 1 / 40
    for at in (4.2, 5.3, 6.6, 7.1):
        dies = Failure(node="worker1", kind="dies", at=at * step, lasts=6 * step)
        node = Node(flops=CLICKS.work().flops / step)
        cluster = VirtualCluster(workers=3, worker=node, failures=[dies], patience=step)
        summary = lib.train(CLICKS, SSP(bound=3), cluster, save=False, seed=1).summary
        assert summary["lost"] >= 1 and summary["issued"] == summary["applied"] + summary["lost"]


def test_rows_behind_a_cache_go_with_replicas():
    pair = lib.protocols.Pair(sparse=SSP(bound=2), dense=protocols.get("all-reduce"))
    summary = lib.train(CLICKS, pair, VirtualCluster(workers=2), save=False).summary
    each = lib.train(CLICKS, "hop-bs+all-reduce", VirtualCluster(workers=2), save=False).summary
    assert summary["applied"] == 60
    assert summary["bytes_by_kind"]["pull rows"] < each["bytes_by_kind"]["pull rows"]


def test_misuse_is_refused():
    def mine(**words):
        return dataclass(frozen=True, kw_only=True)(type("Mine", (HopBS,), {"name": "mine", **words}))()

    there = VirtualCluster(workers=2)
    for steps in (-1, 1.5, None):
        with pytest.raises(BadOption, match=r"mine: cache_steps must be a number of steps, 0 or more, not"):
            lib.train(CLICKS, mine(cache_steps=steps), there, save=False)
    with pytest.raises(BadOption, match=r"mine: its workers train on a cached copy, which goes with none of"):
        lib.train(CLICKS, mine(cache_steps=1, compensate=lambda *arrays: arrays), there, save=False)
    with pytest.raises(BadOption, match=r"ssp: its workers train on a cached copy, which goes with none of"):
        lib.train(CLICKS, "ssp", there, embedding_workers=1, save=False)
    pooled = workloads.get("ctr-synthetic", samples=16 * 40, model="dlrm", pooling=(1, 4, 1), **SMALL)
    with pytest.raises(BadOption, match=r"ssp: its workers train on a cached copy, which goes with none of"):
        lib.train(pooled, "ssp", there, store=lib.RowStore(pooling="server"), save=False)
