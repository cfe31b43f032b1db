"""Server rules with a gate or a threshold of their own: Ringmaster, admission and semi-synchronous training."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Failure, Node, VirtualCluster
from lib.protocols import get
from lib.protocols.server_rule import Push
from tests.protocols.by_hand import RATE, SLOW, Serial, bowl
from tests.protocols.test_equivalences import BATCHES, SEEDS, WORKERS, clicks, digest
from tests.protocols.test_oracles import Forces, force, trained
from tests.toys import finals, records

PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)


# Bounded staleness


def test_the_steps_of_a_worker_that_joins_are_level_with_the_slowest_of_the_others_or_its_own():
    rule = get("hop-bs")
    state = replace(rule.init(3), begun=(1, 5, 7), done=(0, 4, 6), active=frozenset({1, 2}))
    joined = rule.on_join(state, 0)
    assert joined.begun == (4, 5, 7) and joined.done == (4, 4, 6) and joined.active == {0, 1, 2}
    alone = rule.on_join(replace(state, active=frozenset()), 0)
    assert alone.begun == (0, 5, 7) and alone.done == (0, 4, 6)


# Ringmaster


def ringmaster(pushes, limit):
    """The paper's server on gradients that do not depend on the parameters: what is applied."""
    k, kept = 0, []
    for batch, read in pushes:
        if k - read < limit:
            kept.append(batch)
            k += 1
    return kept


@pytest.mark.parametrize("limit", [1, 2, 4, None])
@pytest.mark.parametrize("seed", range(3))
def test_ringmaster_applies_what_the_paper_s_server_does(limit, seed):
    pushes = []

    class Noting(type(get("ringmaster"))):
        def on_push(self, state, push):
            pushes.append((push.batch, push.read))
            return super().on_push(state, push)

    cluster = VirtualCluster(workers=6, slowdown=1.0, server=Node(cores=8))
    final = finals(records(Forces(), Noting(limit=limit), cluster, seed))
    kept = ringmaster(pushes, limit or 6)
    assert len(pushes) == 96 and len(kept) < 96
    assert final["server0/dense"][0]["values"].item() == pytest.approx(sum(map(force, kept)), rel=1e-5)


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, sigma=st.floats(0, 1.5), limit=st.integers(1, 4))
def test_ringmaster_s_gradients_are_younger_than_its_threshold(workers, seed, batches, sigma, limit):
    cluster = VirtualCluster(workers=workers, slowdown=sigma)
    run = lib.train(clicks(batches), get("ringmaster", limit=limit), cluster, seed=seed, save=False)
    assert run.summary["staleness_max"] < limit
    assert run.summary["applied"] + run.summary["dropped"] == batches


# Admission


def test_admission_by_hand():
    """N = 2 and lag = 1: four gradients may be computed or wait, whoever computes them."""
    rule = get("admission", size=2, lag=1)
    state = rule.init(6)
    for worker in range(4):
        assert rule.may_start(state, worker)
        state, _ = rule.on_start(state, worker)
    assert not rule.may_start(state, 4)
    state, decisions = rule.on_push(state, Push(0, 0, 0))
    assert decisions == () and not rule.may_start(state, 0), "it waits, and counts as before"
    state, (update,) = rule.on_push(state, Push(1, 0, 1))
    assert update.divisor == 2 and rule.may_start(state, 0)
    state, _ = rule.on_start(state, 0)
    state, _ = rule.on_start(state, 1)
    assert not rule.may_start(state, 4)
    gone, _ = rule.on_leave(state, 2)
    assert rule.may_start(gone, 4), "what a lost worker computed is computed no more"


@PROPERTY
@given(workers=WORKERS, seed=SEEDS, batches=BATCHES, sigma=st.floats(0, 1.5))
def test_admission_without_lag_computes_all_gradients_at_the_current_parameters(workers, seed, batches, sigma):
    cluster = VirtualCluster(workers=workers, slowdown=sigma)
    run = lib.train(clicks(batches), get("admission"), cluster, seed=seed, save=False)
    assert run.summary["staleness_max"] == 0 and run.summary["applied"] == batches
    one = digest(clicks(batches), get("sync"), VirtualCluster(workers=1), seed)
    assert digest(clicks(batches), get("admission"), VirtualCluster(workers=1), seed) == one


def test_admission_lets_the_fast_do_more_and_applies_means_of_what_comes_first():
    w, _, noted = trained(get("admission", size=4), workload := Forces(), workers=6, seed=1)
    batches = [push.batch for update in noted for push in update.pushes]
    assert Counter(batches) == Counter(range(workload.samples))
    assert {len(update.pushes) for update in noted} == {4}
    assert w == pytest.approx(sum(map(force, batches)) / 4, rel=1e-5)
    by_worker = Counter(push.worker for update in noted for push in update.pushes)
    assert max(by_worker.values()) > min(by_worker.values()) + 3


def test_admission_lets_a_worker_that_is_free_compute_twice_for_one_update():
    rule = get("admission")
    state, _ = rule.on_start(rule.init(2), 0)
    state, _ = rule.on_push(state, Push(0, 0, 0))
    assert rule.may_start(state, 0), "the other one has not begun yet"
    state, _ = rule.on_start(state, 0)
    assert not rule.may_start(state, 1)
    _, (update,) = rule.on_push(state, Push(0, 0, 1))
    assert [push.worker for push in update.pushes] == [0, 0]


# Semi-synchronous


def test_semi_sync_by_hand():
    """A worker starts step 1 before update 0, and step 2 after it; each update has the gradients of its step, in any order."""
    rule = get("semi-sync")
    state, tokens = rule.init(2), []
    for worker in (0, 0, 1):
        assert rule.may_start(state, worker)
        state, token = rule.on_start(state, worker)
        tokens.append(token)
    assert tokens == [0, 1, 0] and not rule.may_start(state, 0)
    for push in (Push(0, 1, 2), Push(0, 0, 0)):
        state, decisions = rule.on_push(state, push)
        assert decisions == ()
    state, (update,) = rule.on_push(state, Push(1, 0, 1))
    assert update.pushes == (Push(0, 0, 0), Push(1, 0, 1)) and update.divisor == 2
    assert state.pending == (Push(0, 1, 2),) and rule.may_start(state, 0)
    left, (rest,) = rule.on_leave(state, 1)
    assert rest.pushes == (Push(0, 1, 2),) and left.step == 2
    died, _ = rule.on_leave(rule.on_start(state, 1)[0], 1)
    assert rule.on_start(rule.on_join(died, 1), 1)[1] == 2, "it begins with the step that the others are at"
    lost = rule.on_start(rule.on_start(rule.init(2), 1)[0], 1)[0]
    assert rule.on_start(rule.on_join(rule.on_leave(lost, 1)[0], 1), 1)[1] == 0, "its lost steps count as not begun"


@PROPERTY
@given(workers=st.integers(1, 5), steps=st.integers(1, 9), ahead=st.integers(0, 2), sigma=st.floats(0, 0.6))
def test_semi_sync_steps_along_the_gradient_of_earlier_parameters(workers, steps, ahead, sigma):
    """w_{t+1} = w_t - lr g(w_{t-1}), or from further back."""
    workload = bowl(steps, workers)
    cluster = VirtualCluster(workers=workers, worker=SLOW, slowdown=sigma)
    final = finals(records(workload, get("semi-sync", pull_ahead=ahead), cluster))
    serial = Serial(workload, workers)
    versions = [serial.x[0].copy()]
    for step in range(steps):
        serial.x[:] = versions[max(0, step - ahead)]
        versions.append(versions[-1] - RATE * serial.gradients(step).mean(0))
    np.testing.assert_allclose(final["server0/dense"][0]["values"], versions[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dense", ["", "+all-reduce"])
def test_semi_sync_hides_what_a_pull_takes_also_for_rows_alone(dense):
    """Twelve steps, and a millisecond there and back. TorchRec's default averages dense gradients in step."""
    cluster = VirtualCluster(workers=4, worker=Node(flops=1e6, latency=5e-4))
    ahead, waits = (
        lib.train(clicks(48), f"{name}{dense}", cluster, save=False).summary for name in ("semi-sync", "sync")
    )
    assert ahead["virtual_seconds"] == pytest.approx(waits["virtual_seconds"] - 11 * 1e-3, abs=1e-3)
    assert ahead["staleness_max"] == 1 and waits["staleness_max"] == 0


@pytest.mark.parametrize("name", ["admission", "semi-sync", "ringmaster"])
@pytest.mark.parametrize("options", [{}, {"feed": "queue"}, {"embedding_workers": 2}])
def test_nobody_waits_for_ever_for_workers_that_die_at_pauses_and_at_the_end(name, options):
    step = clicks(1).work().flops / 1e6
    dies = [
        Failure(node=f"worker{rank}", kind="dies", at=at * step, lasts=4 * step) for rank, at in ((1, 2.3), (2, 7.7))
    ]
    cluster = VirtualCluster(workers=4, worker=Node(flops=1e6), slowdown=0.5, failures=dies, patience=step)
    for seed in range(3):
        run = lib.train(clicks(50), name, cluster, seed=seed, checkpoint_every=8 * 4 * 3, save=False, **options)
        outcomes = ("applied", "dropped", "lost", "in_flight")
        assert run.summary["issued"] == sum(run.summary[each] for each in outcomes)
        assert run.summary["in_flight"] == 0 and run.summary["applied"] + run.summary["dropped"] > 30
