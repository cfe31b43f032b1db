"""DS-Sync for any number of workers: schedules as matrices, and what real runs make of them."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import Failure, LocalCluster, VirtualCluster, train, workloads
from lib.drivers.membership import Rendezvous
from lib.errors import BadOption
from lib.protocols.dssync import DSSync, factors
from lib.protocols.mixing import Mix
from lib.tasks.flat_model import Batch
from lib.tasks.sampling import epoch_rows
from notebooks.dssync import vector
from notebooks.dssync.matrices import mixing_matrix, residual, spectral_gap, steps_to_average
from notebooks.dssync.mixing import Push
from tests.toys import clicks, finals, records

WORLDS = [2, 3, 5, 6, 7, 8, 12]


@dataclass(frozen=True, kw_only=True)
class Epochs(Push):
    """The same five batches a worker again and again, each time in another order."""

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        push = np.zeros((1, self.workers), np.float32)
        push[0, epoch_rows(seed, first, size, 5 * self.workers)[0] % self.workers] = 1
        return Batch.of(index=index, raw={}, size=1, features={"push": push})


def replicas(rule: DSSync, workers: int, steps: int) -> np.ndarray:
    workload = Push(workers=workers, samples=steps * workers)
    final = finals(records(workload, rule, VirtualCluster(workers=workers, slowdown=0.5)))
    return np.stack([final[f"worker{rank}/replica"]["values"] for rank in range(workers)])


def product(rule: DSSync, workers: int, rounds: range) -> np.ndarray:
    mixed = np.eye(workers)
    for round in rounds:
        mixed = mixing_matrix(rule, round, workers) @ mixed
    return mixed


def test_factors_by_hand():
    assert [factors(number, 99) for number in (1, 2, 12, 97)] == [(), (2,), (12,), (97,)]
    assert [factors(12, most) for most in (6, 4, 3, 2, 1)] == [(4, 3), (4, 3), (3, 2, 2), None, None]
    assert factors(64, 8) == (8, 8) and factors(64, 4) == (4, 4, 4) and factors(36, 9) == (6, 6)


def test_groups_by_hand():
    """Six are two rows of three and three columns of two; eight in pairs are the corners of a cube; five are cut unevenly."""
    assert (DSSync().groups(0, 4), DSSync().groups(1, 4)) == (((0, 1), (2, 3)), ((0, 2), (1, 3))), "the paper's"
    assert DSSync().groups(2, 9) == ((0, 1, 2), (3, 4, 5), (6, 7, 8)), "the paper's"
    assert DSSync().groups(3, 9) == ((0, 3, 6), (1, 4, 7), (2, 5, 8)), "the paper's"
    assert DSSync().groups(0, 6) == ((0, 1, 2), (3, 4, 5))
    assert DSSync().groups(1, 6) == ((0, 3), (1, 4), (2, 5))
    assert DSSync(size=2).groups(1, 8) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert DSSync(size=2).groups(2, 8) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert DSSync().groups(0, 5) == ((0, 1, 2), (3, 4))
    assert DSSync().groups(1, 5) == ((1, 2, 4), (0, 3))
    assert DSSync(size=6).groups(0, 6) == ((0, 1, 2, 3, 4, 5),)


def test_crews_stay_together():
    """Four machines of four: two of them, then the other two; everyone after two rounds, and one crew alone is all there is."""
    rule = DSSync(crew=4)
    assert rule.groups(0, 16) == (tuple(range(8)), tuple(range(8, 16)))
    assert rule.groups(1, 16) == ((*range(4), *range(8, 12)), (*range(4, 8), *range(12, 16)))
    assert steps_to_average(rule, 16) == 2 and residual(rule, 2, 16) == 0 < residual(rule, 1, 16)
    assert DSSync(crew=4).groups(0, 4) == ((0, 1, 2, 3),) and steps_to_average(DSSync(crew=4), 4) == 1
    with pytest.raises(BadOption, match="crew=4: 6 workers are no whole number of crews"):
        rule.groups(0, 6)


def test_a_round_of_all_workers_comes_in_between_and_takes_no_other_s_place():
    plain, rule = DSSync(), DSSync(whole=3)
    everyone = ((0, 1, 2, 3),)
    found = [rule.groups(round, 4) for round in range(6)]
    assert found == [plain.groups(0, 4), plain.groups(1, 4), everyone, plain.groups(2, 4), plain.groups(3, 4), everyone]
    odd = [DSSync(whole=2).groups(round, 4) for round in (0, 2, 4)]
    assert odd == [plain.groups(round, 4) for round in (0, 1, 2)]
    assert steps_to_average(DSSync(whole=4), 7) == 4 and steps_to_average(DSSync(whole=1), 6) == 1


@pytest.mark.parametrize("workers", [4, 9, 16, 25])
def test_a_square_world_is_at_the_average_after_two_rounds_as_in_eq_2(workers):
    rule = DSSync()
    assert steps_to_average(rule, workers) == 2
    for round in range(3):  # from any round on
        np.testing.assert_allclose(product(rule, workers, range(round, round + 2)), 1 / workers)


@settings(max_examples=150, deadline=None)
@given(workers=st.integers(1, 40), size=st.none() | st.integers(1, 40), whole=st.none() | st.integers(1, 5))
def test_any_world_keeps_its_average_and_comes_to_it_when_the_rule_says_so(workers, size, whole):
    rule = DSSync(size=size, whole=whole)
    steps = steps_to_average(rule, workers)
    for round in range(steps or 8):
        groups = rule.groups(round, workers)
        assert sorted(rank for group in groups for rank in group) == list(range(workers))
        if size and (whole is None or (round + 1) % whole):
            assert max(map(len, groups)) <= size
    if steps is None:
        primes = [each for each in range(2, workers + 1) if workers % each == 0 and factors(each, each - 1) is None]
        assert size != workers and max(primes) > max(map(len, rule.groups(0, workers)))
        assert size == 1 or residual(rule, 8, workers) < 1
    else:
        assert residual(rule, steps, workers) < 1e-12
        assert steps == 0 or residual(rule, steps - 1, workers) > 0.99 or whole


@pytest.mark.parametrize("workers", [5, 7, 11, 13, 17, 19, 23, 29, 31])
def test_shifting_groups_of_the_root_leave_a_third_at_most_of_the_distance_each_round(workers):
    assert steps_to_average(DSSync(), workers) is None
    assert spectral_gap(DSSync(), workers) > 2 / 3
    assert spectral_gap(DSSync(size=2), workers) > 0.15  # and pairs come there too


@pytest.mark.parametrize("workers", WORLDS)
@pytest.mark.parametrize("whole", [None, 3])
def test_a_run_is_at_the_average_after_the_reported_steps_and_else_where_its_matrices_say(workers, whole):
    rule = DSSync(whole=whole)
    steps = steps_to_average(rule, workers)
    found = replicas(rule, workers, steps or 5)
    np.testing.assert_allclose(found, product(rule, workers, range(steps or 5)), atol=1e-6)
    assert steps is None or np.ptp(found) < 1e-6
    if whole is None:
        assert (steps is None) == (workers in (3, 5, 7))


@pytest.mark.parametrize("place", ["before", "beside"])
def test_an_average_before_or_beside_a_step_holds_the_updates_of_the_steps_before_it(place):
    rule = DSSync(place=place)
    np.testing.assert_allclose(replicas(rule, 6, 1), np.eye(6))
    for steps in (2, 3):
        np.testing.assert_allclose(replicas(rule, 6, steps), product(rule, 6, range(1, steps)), atol=1e-6)


def test_steps_between_averages_count():
    rule = DSSync(every=3)
    assert steps_to_average(rule, 6) == 6
    assert np.ptp(replicas(rule, 6, 5)) > 0.3 and np.ptp(replicas(rule, 6, 6)) < 1e-6


@pytest.mark.parametrize("cuts", [{}, {"checkpoint_every": 20}])
def test_groups_go_on_alternating_over_epochs_of_an_odd_number_of_steps(cuts, reports, monkeypatch):
    met, meet = [], Rendezvous._answer_group

    def noted(self, members, round):
        met.append((round, members))
        meet(self, members, round)

    monkeypatch.setattr(Rendezvous, "_answer_group", noted)
    train(Epochs(workers=4, samples=3 * 5 * 4), DSSync(), VirtualCluster(workers=4, slowdown=0.5), save=False, **cuts)
    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    assert sorted(met) == [(t, group) for t in range(15) for group in (columns if t % 2 else rows)]


@pytest.mark.parametrize("workers", [5, 6, 7])
@pytest.mark.parametrize("place", ["before", "beside", "after"])
def test_nobody_waits_for_a_worker_that_ends_early_or_dies(workers, place):
    """The last worker has a third of the others' data; worker 1 dies and worker 2 is away for a while."""
    bowl = workloads.get("quadratic", samples=32 * 12 * workers, dim=8)
    rule, own = DSSync(place=place), {"save": False, "feed": "stream", "partitions": (*[1.0] * (workers - 1), 0.33)}
    even = train(bowl, rule, VirtualCluster(workers=workers), **own)
    lengths = even.trace[even.trace["kind"] == "compute"].groupby("node").size().tolist()
    assert min(lengths) < max(lengths) / 2 and even.summary["issued"] == bowl.batches()
    base = even.summary["virtual_seconds"]
    away = Failure(node="worker2", kind="dies", at=base / 3, lasts=base / 5)
    plan = [Failure(node="worker1", kind="dies", at=base / 4), away]
    run = train(bowl, rule, VirtualCluster(workers=workers, failures=plan, patience=base / 20), **own)
    assert run.summary["virtual_seconds"] < 3 * base and run.summary["loss"] < 1


# Messages in half precision: what rounding takes stays with the replica and goes out later

HALF = DSSync(half=True)
ROUNDING = 2.0**-11
"""What half precision takes of a number, at most."""


def met(replicas: np.ndarray, rule: DSSync = HALF) -> np.ndarray:
    """One mix of them all, as a cluster makes it."""
    sent = [rule.send(None, mine, 0) for mine in replicas]
    mean = np.mean(sent, axis=0, dtype=np.float32).astype(sent[0].dtype)
    members = tuple(range(len(replicas)))
    mixes = [Mix(0, members, out, mean) for out in sent]
    return np.stack([rule.merge(None, *each)[1] for each in zip(replicas, mixes, strict=True)])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.integers(1, 6), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_a_mix_keeps_the_average_and_leaves_replicas_a_rounding_apart(workers, size, seed):
    replicas = (size * np.random.default_rng(seed).normal(size=(workers, 50))).astype(np.float32)
    after, largest = met(replicas), np.abs(replicas).max()
    assert after.dtype == np.float32
    assert np.abs(after.mean(axis=0) - replicas.mean(axis=0)).max() <= ROUNDING * largest + 1e-7
    assert np.abs(after - after[0]).max() <= 2 * ROUNDING * largest + 1e-7


def test_a_mix_in_half_precision_by_hand():
    """Half precision has 1 and 1.0009765625 and nothing between: 1.0004 is sent as 1, and 0.0004 of it is kept."""
    one, other = met(np.array([[1.0004], [3.0]], np.float32))
    assert (one, other) == (pytest.approx(2.0004, abs=1e-6), 2.0)


def test_steps_far_below_a_rounding_add_up():
    """A thousand steps of 1e-5 from 1, where the numbers of half precision are 1e-3 apart."""
    replicas = np.ones((4, 1), np.float32)
    for _ in range(1000):
        replicas = met(replicas + np.float32(1e-5))
    assert replicas == pytest.approx(1.01, abs=1e-3)


def test_half_precision_is_half_the_bytes_and_half_the_time_of_an_average():
    def took(**options):
        job = vector.job(DSSync(**options), vector.cluster(4, 0.04, latency=0.0), 0, seconds=1e-3, steps=6)
        return train(**job, save=False).summary

    whole, half = took(), took(half=True)
    for kind, size in whole["bytes_by_kind"].items():
        assert half["bytes_by_kind"][kind] == size / 2, kind
    assert half["virtual_seconds"] - 6e-3 == pytest.approx((whole["virtual_seconds"] - 6e-3) / 2, rel=1e-3)


def test_timing_runs_and_threads_in_half_precision_are_like_the_others():
    task = clicks(2_000, 50)
    virtual = [train(task, HALF, VirtualCluster(workers=4), gradients=each, save=False) for each in (True, False)]
    assert virtual[0].summary["qps"] == virtual[1].summary["qps"]
    threads = train(task, HALF, LocalCluster(workers=4), save=False)
    assert threads.digest == virtual[0].digest
    whole = train(task, DSSync(), VirtualCluster(workers=4), save=False)
    assert 0 < abs(whole.summary["auc"] - virtual[0].summary["auc"]) < 0.01


def test_pooled_statistics_need_whole_numbers():
    with pytest.raises(BadOption, match="half=True needs statistics='naive' or 'none'"):
        DSSync(half=True, statistics="pooled")
