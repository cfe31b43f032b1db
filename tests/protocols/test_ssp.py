"""Workers that keep what they read, or their gradients: it equals a straight loop, and only what is needed travels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Failure, LocalCluster, Mishaps, Node, VirtualCluster, protocols, workloads
from lib.errors import BadOption
from lib.models.flat import FlatModel
from lib.protocols.baselines import Async, Frozen
from lib.protocols.hop import SSP
from lib.store.optim import SGD
from tests.protocols.test_oracles import noting
from tests.toys import finals, records
from tests.training.stopping import assert_same, killed

PROPERTY = settings(max_examples=8, deadline=None, derandomize=True)
RATE = 0.1
CLICKS = workloads.get(
    "ctr-synthetic", samples=16 * 60, batch_size=16, vocabulary=50, fields=3, dim=2, hidden=(4,), evaluation_samples=50
)


def bowl(batches):
    return workloads.get("quadratic", dim=5, batch_size=4, samples=4 * batches, dense_optimizer=SGD(lr=RATE))


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
    workload, (rule, noted) = bowl(9 * workers), noting(SSP(bound=bound))
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
    workload, (rule, noted) = bowl(36), noting(SSP(bound=1))
    parts = records(workload, rule, VirtualCluster(workers=3, mishaps=mishaps), seed)
    assert sum(len(part.used) for part in parts) == 36
    by, first = [], {}
    for place, update in enumerate(noted):
        [push] = update.pushes
        step = by.count(push.worker)
        if first.setdefault((push.worker, push.read), place) == place:
            assert by[: push.read].count(push.worker) == step
        by.append(push.worker)


@PROPERTY
@given(seed=st.integers(0, 9), fetch=st.integers(1, 4), sums=st.integers(1, 4), batches=st.integers(1, 14))
def test_one_worker_fetches_and_pushes_apart(seed, fetch, sums, batches):
    """Downpour's n_fetch and n_push: what is fetched has what was pushed, and not what is still to be."""
    workload = bowl(batches)
    rule = Async(fetch=fetch, sums=sums)
    final = finals(records(workload, rule, VirtualCluster(workers=1), seed))
    model = FlatModel(workload.model(seed))
    centre, unsent, waiting = model.vector.numpy().copy(), 0, 0
    here = centre.copy()
    for batch in range(batches):
        here = centre.copy() if batch % fetch == 0 else here
        model.load(here)
        gradient = model.step(workload.batch(seed, batch), {}).dense.numpy()
        here -= np.float32(RATE) * gradient
        unsent, waiting = unsent + gradient, waiting + 1
        if waiting == sums or batch == batches - 1:
            centre = centre - np.float32(RATE) * unsent
            unsent, waiting = 0, 0
    np.testing.assert_allclose(final["server0/dense"][0]["values"], centre, rtol=1e-6, atol=1e-6)


def test_rows_are_read_when_they_are_missing_or_old_and_updated_at_once():
    """One worker that reads its rows every third batch, with plain SGD, trains what one does that reads them each time."""
    task = workloads.get(
        "ctr-synthetic", **{**WORDS, "samples": 16 * 40, "row_optimizer": SGD(lr=0.1), "dense_optimizer": SGD(lr=0.1)}
    )
    each, third = (finals(records(task, Async(fetch=fetch), VirtualCluster(workers=1, servers=2))) for fetch in (1, 3))
    for shard in range(2):
        rows = [one[f"server{shard}/rows"]["feature"] for one in (each, third)]
        np.testing.assert_array_equal(rows[0].ids, rows[1].ids)
        np.testing.assert_allclose(rows[0].values, rows[1].values, rtol=1e-5, atol=1e-6)


WORDS = {"batch_size": 16, "vocabulary": 50, "fields": 3, "dim": 2, "hidden": (4,), "evaluation_samples": 50}


def test_only_what_is_needed_travels():
    """Alone, every third batch is read for: a third of the dense bytes come, and half of them go as sums of two."""

    def moved(**options):
        return lib.train(CLICKS, Async(**options), VirtualCluster(workers=1), save=False).summary

    whole, less = moved(), moved(fetch=3, sums=2)
    kinds = whole["bytes_by_kind"], less["bytes_by_kind"]
    assert kinds[1]["pull dense"] * 3 == kinds[0]["pull dense"] and kinds[1]["push dense"] * 2 == kinds[0]["push dense"]
    assert kinds[1]["pull rows"] < kinds[0]["pull rows"] and kinds[1]["push rows"] < kinds[0]["push rows"]
    assert less["virtual_seconds"] < whole["virtual_seconds"]
    timing = lib.train(CLICKS, Async(fetch=3, sums=2), VirtualCluster(workers=1), save=False, gradients=False).summary
    assert timing["bytes_by_kind"] == kinds[1] and timing["virtual_seconds"] == less["virtual_seconds"]


RULES = [SSP(bound=3), Async(fetch=3, sums=2), Async(sums=3)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cluster", [VirtualCluster(workers=3, slowdown=0.8, servers=2), LocalCluster(workers=3)])
def test_every_gradient_is_used_once(rule, cluster):
    parts = records(CLICKS, rule, cluster)
    for part in parts:
        if part.used:
            assert sorted(part.used) == list(range(60)) and part.ledger["applied"] == 60


def test_what_a_worker_has_sent_it_keeps_no_more():
    """Without rows, two batches of three are of what a worker has; at the end the server knows of all."""
    parts = records(bowl(12), Async(fetch=3), VirtualCluster(workers=1))
    assert sum(part.ledger["started"] for part in parts) == 12 and not any(part.ledger["kept"] for part in parts)


def test_what_is_thrown_away_is_counted_by_batches():
    frozen = dataclass(frozen=True, kw_only=True)(type("Mine", (Frozen,), {"sums": 2}))()
    summary = lib.train(CLICKS, frozen, VirtualCluster(workers=3), save=False).summary
    assert summary["dropped"] == summary["issued"] == 60


@pytest.mark.parametrize("rule", RULES)
def test_what_a_lost_worker_had_kept_is_issued_and_lost(rule):
    step = 1 / 40
    for at in (4.2, 5.3, 6.6, 7.1):
        dies = Failure(node="worker1", kind="dies", at=at * step, lasts=6 * step)
        cluster = VirtualCluster(
            workers=3, worker=Node(flops=CLICKS.work().flops / step), failures=[dies], patience=step
        )
        summary = lib.train(CLICKS, rule, cluster, save=False, seed=1).summary
        assert summary["lost"] >= 1 and summary["issued"] == summary["applied"] + summary["lost"]


@pytest.mark.parametrize("rule", RULES)
def test_a_pause_ends_what_is_kept(rule, reports, monkeypatch):
    """So that a run that goes on from a cut equals the one that was never stopped."""

    def train(**options):
        there = VirtualCluster(workers=3, slowdown=0.8)
        return lib.train(CLICKS, rule, there, checkpoint_every=16 * 20, save=False, **options)

    whole = train()
    with killed(monkeypatch, 47):
        train()
    assert_same(train(resume=True), whole)


def test_a_worker_that_keeps_trains_the_same_in_a_replica_rule():
    dense = protocols.get("easgd", every=2)
    pair = lib.protocols.Pair(sparse=Async(fetch=2), dense=dense)
    summary = lib.train(CLICKS, pair, VirtualCluster(workers=2), save=False).summary
    assert summary["applied"] == 60 and summary["bytes_by_kind"]["pull rows"] > 0


def test_misuse_is_told():
    def mine(**words):
        return dataclass(frozen=True, kw_only=True)(type("Mine", (SSP,), {"name": "mine", **words}))()

    there = VirtualCluster(workers=2)
    for answer in (0, 1.5, None):
        with pytest.raises(BadOption, match=r"mine: lasts must return how many batches .* it gave"):
            lib.train(CLICKS, mine(lasts=lambda self, state, worker, answer=answer: answer), there, save=False)
    with pytest.raises(BadOption, match=r"mine: its workers keep what they read .* does not go with corrected"):
        lib.train(CLICKS, mine(corrected=lambda self, gradient, now, read: gradient), there, save=False)
    with pytest.raises(BadOption, match=r"ssp: its workers keep what they read .* does not go with embedding workers"):
        lib.train(CLICKS, "ssp", there, embedding_workers=1, save=False)
    with pytest.raises(
        BadOption, match=r"mine: sums must be how many batches' gradients are sent as one, 1 or more, not 0"
    ):
        lib.train(CLICKS, mine(sums=0), there, save=False)
