"""Failures: when they come, what they cost, and that no run waits for a dead node."""

import asyncio
import itertools
import math
from unittest.mock import AsyncMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Failure, LocalCluster, Mishaps, Node, Phase, Schedule, VirtualCluster, protocols, workloads
from lib.cluster.failures import TICK, FailureSpeed, MessageFailures, NodeFailures
from lib.cluster.local import MessageDelays
from lib.drivers.workers import Workers
from lib.errors import BadOption, Deadlock, NodeLost
from lib.protocols import ALL
from lib.protocols.baselines import Async
from lib.protocols.replica_rule import ReplicaRule
from tests.drivers.composing import rule
from tests.toys import clicks, one_of_each_composition

CLICKS = clicks(4_000, 50)
STEP = CLICKS.work().flops / 1e6
"""Seconds of a batch on a core of a million operations a second."""
OUTCOMES = ("applied", "decayed", "dropped", "lost", "in_flight")
SHARING = [name for name, kind in ALL.items() if kind.family != "pipeline"]


def even(*failures, **options):
    """Four workers that are equally fast."""
    return VirtualCluster(workers=4, worker=Node(flops=1e6), failures=failures, **options)


def dies(node, **when):
    return Failure(node=node, kind="dies", **when)


def train(protocol, cluster, **options):
    run = lib.train(CLICKS, protocol, cluster, save=False, **options)
    assert run.summary["issued"] == sum(run.summary[outcome] for outcome in OUTCOMES)
    return run


def seconds(run):
    return run.summary["virtual_seconds"]


def computed(run, node):
    """The computations of a node."""
    return run.trace[(run.trace["node"] == node) & (run.trace["kind"] == "compute")]


# When they come.


def test_a_time_and_an_end():
    failure = Failure(node="worker0", kind="slows", at=2, lasts=3, factor=4)
    assert list(failure.windows(0, "worker0", 0)) == [(2, 5, 4)]
    assert list(dies("worker0", at=2).windows(0, "worker0", 0)) == [(2, math.inf, math.inf)]


def test_again_and_again_at_the_mean_rate():
    failure = Failure(node="worker*", kind="dies", every=10, lasts=2)
    first = list(itertools.islice(failure.windows(7, "worker3", 0), 4000))
    healthy = np.diff([0.0, *(window.end for window in first)]) - 2
    assert healthy.min() > 0 and abs(healthy.mean() - 10) < 4 * 10 / math.sqrt(4000)
    assert first[:5] == list(itertools.islice(failure.windows(7, "worker3", 0), 5))
    assert first[0] != next(failure.windows(7, "worker4", 0)) != next(failure.windows(8, "worker4", 0))


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"kind": "explodes", "at": 1}, "kind must be 'dies', 'hangs' or 'slows', not 'explodes'"),
        ({"kind": "dies"}, "exactly one of at, at_batch and every"),
        ({"kind": "dies", "at": 1, "every": 5}, "exactly one of at, at_batch and every"),
        ({"kind": "dies", "at": -1}, "at must be 0 or more, not -1"),
        ({"kind": "dies", "at": math.nan}, "at must be finite"),
        ({"kind": "hangs", "at": 1}, "must come back; set lasts"),
        ({"kind": "dies", "every": 5}, "must come back; set lasts"),
        ({"kind": "slows", "at": 1, "factor": 0.5}, "factor must be at least 1"),
        ({"kind": "dies", "at_batch": 3, "node": "server0"}, "at_batch counts a worker's batches"),
        ({"kind": "hangs", "at": 1, "lasts": 1, "node": "worker0 - server0"}, "cannot be of kind 'hangs'"),
        ({"kind": "slows", "at": 1, "node": "worker0 - server0"}, "mishaps=Mishaps(late="),
        ({"kind": "dies", "at": 1, "node": "worker0 - server0"}, "must come back; set lasts"),
        ({"kind": "dies", "at": 1, "node": "werker0"}, "no node 'werker0'"),
    ],
)
def test_a_plan_that_cannot_be(options, sentence):
    with pytest.raises(BadOption) as error:
        Failure(**{"node": "worker0", **options})
    assert sentence in str(error.value)


@pytest.mark.parametrize("node", ["worker4", "server1", "worker0 - server7", "worker0 - nobody"])
def test_a_node_that_is_not_there(node):
    lasting = {"lasts": 1} if " - " in node else {}
    with pytest.raises(BadOption, match=r"failures\[0\].node: no node"):
        VirtualCluster(workers=4, failures=[Failure(node=node, kind="dies", at=1, **lasting)])


def test_plain_data_is_a_plan_too():
    cluster = VirtualCluster(failures=[{"node": "worker0", "kind": "dies", "at": 1}], mishaps={"late": 0.1})
    assert cluster == VirtualCluster(failures=(Failure(node="worker0", kind="dies", at=1),), mishaps=Mishaps(late=0.1))
    with pytest.raises(BadOption, match=r"virtual cluster: failures\[0\].kind must be 'dies', 'hangs' or 'slows', not"):
        VirtualCluster(failures=[{"node": "worker0", "kind": 3, "at": 1}])
    with pytest.raises(BadOption, match="mishaps must be Mishaps's fields"):
        VirtualCluster(mishaps=0.1)


def test_mishaps_out_of_range():
    for options in ({"late": 1.5}, {"lost": 1.0}, {"retry": -1}, {"delay": math.inf}):
        with pytest.raises(BadOption, match="mishaps"):
            Mishaps(**options)


def test_a_long_hang_is_a_death():
    hang = Failure(node="worker0", kind="hangs", at=1, lasts=3)
    patient, impatient = (NodeFailures([hang], 0, "worker0", patience) for patience in (5, 2))
    assert not list(patient.deaths()) and patient.outages
    assert list(impatient.deaths()) == [(1, 4, math.inf)] and impatient.outages is None


# What they do to a computation and to a message.


@pytest.mark.parametrize(
    "start, work, takes",
    [
        (0, 1, 1),  # over before
        (1, 1.5, 1.5 + 3),  # the hang from 2 to 5 falls into it
        (3, 1, 2 + 1),  # begun in the hang
        (9, 2, 1 + 2),  # one second at full speed, the other at half
        (20, 1, 1),
    ],
)
def test_hangs_and_slowness_by_hand(start, work, takes):
    slows = Failure(node="worker0", kind="slows", at=10, lasts=4, factor=2)
    plan = [Failure(node="worker0", kind="hangs", at=2, lasts=3), slows]
    assert NodeFailures(plan, 0, "worker0", 10).outages.stretch(start, work) == pytest.approx(takes, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 20)), min_size=1, max_size=20), st.integers(0, 9))
def test_no_work_is_lost_in_illness(computations, seed):
    """A computation that takes so long did the work that its windows let it do."""
    failure = Failure(node="worker0", kind="slows", every=5, lasts=3, factor=4)
    outages = FailureSpeed([failure.windows(seed, "worker0", 0)])
    for start, work in sorted(computations):
        takes = outages.stretch(start, work)
        slow, end = 0.0, start + takes
        for window in failure.windows(seed, "worker0", 0):
            if window.start >= end:
                break
            slow += max(0.0, min(end, window.end) - max(start, window.start))
        assert takes - slow + slow / 4 == pytest.approx(work, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.1)), min_size=2, max_size=50), st.integers(0, 9))
def test_messages_arrive_in_the_order_of_sending(sendings, seed):
    passage = MessageFailures([], Mishaps(late=0.5, delay=1, lost=0.5, retry=0.3), seed, "worker0", "server0")
    sent = np.cumsum([gap for gap, _ in sendings])
    arrivals = [passage.arrival_time(time, time + travel) for time, (_, travel) in zip(sent, sendings, strict=True)]
    assert (np.diff(arrivals) >= TICK * 0.99).all()
    assert (arrivals >= sent + [travel for _, travel in sendings] - 1e-12).all()


def test_lost_messages_are_sent_again():
    """A share p of sendings lost costs p / (1 - p) retries a message."""
    passage = MessageFailures([], Mishaps(lost=0.25, retry=1.0), 0, "worker0", "server0")
    waits = np.array([passage.arrival_time(100.0 * k, 100.0 * k) - 100.0 * k for k in range(5000)])
    assert abs(waits.mean() - 1 / 3) < 4 * waits.std() / math.sqrt(5000)


def test_a_dead_connection_holds_messages_back():
    broken = Failure(node="worker0 - server*", kind="dies", at=10, lasts=5)
    for ends in (("worker0", "server3"), ("server3", "worker0")):
        passage = MessageFailures([broken], Mishaps(), 0, *ends)
        assert [passage.arrival_time(time, time + 1) for time in (0, 9.5, 20)] == pytest.approx([1, 15.5, 21])
    assert not MessageFailures([broken], Mishaps(), 0, "worker1", "server3")


# What they cost a run.


@pytest.mark.parametrize("name", one_of_each_composition(SHARING))
def test_a_failure_that_never_comes_changes_nothing(name):
    plain = VirtualCluster(workers=4, slowdown=0.3)
    spared = VirtualCluster(workers=4, slowdown=0.3, failures=[dies("worker1", at=1e9)])
    assert train(name, spared, samples=1_000).digest == train(name, plain, samples=1_000).digest


def test_hangs_cost_what_they_last():
    """Sync on equal workers waits for a node that hangs: a second for the worker; for the server what is left of its second
    when the step's gradients reach it."""
    base = seconds(train("sync", even()))
    when = {"worker1": 10.3 * STEP, "server0": 15.5 * STEP + 1}
    plan = [Failure(node=node, kind="hangs", at=at, lasts=1) for node, at in when.items()]
    assert base + 2 - 0.6 * STEP < seconds(train("sync", even(*plan, patience=2))) < base + 2 - 0.4 * STEP


def test_a_dead_connection_costs_what_it_lasts():
    base = seconds(train("sync", even()))
    cut = seconds(train("sync", even(dies("worker2 - server0", at=10.5 * STEP, lasts=1))))
    assert cut == pytest.approx(base + 1 - 0.5 * STEP, rel=0.02)


def test_the_others_go_on_without_a_worker_that_died_for_good():
    """Nothing else happens that could wake them."""
    summary = train("sync", even(dies("worker1", at=STEP * 3.5))).summary
    assert (summary["lost"], summary["applied"]) == (1, 3 * 20 + 3)  # the fourth of its twenty batches went with it


@pytest.mark.parametrize("name", SHARING)
def test_workers_die_and_return_and_the_run_ends(name):
    base = seconds(train(name, VirtualCluster(workers=6, slowdown=0.5), gradients=False))
    plan = [
        dies("worker0", at=base / 3),
        dies("worker2", at_batch=3, lasts=base / 4),
        dies("worker3", every=base / 4, lasts=base / 10),
        Failure(node="worker4", kind="slows", at=0.0, factor=3),
    ]
    mishaps = Mishaps(late=0.1, delay=base / 500, lost=0.05, retry=base / 500)
    cluster = VirtualCluster(workers=6, slowdown=0.5, failures=plan, mishaps=mishaps, patience=base / 50)
    run = train(name, cluster)
    assert 0 < run.summary["lost"] <= 6 * 4, "six deaths, each with what its replica learnt since it last met another"
    assert run.summary["samples"] > 0.6 * CLICKS.samples and math.isfinite(run.summary["auc"])


@pytest.mark.parametrize("name", ["sync", "gba", "ds-sync"])
def test_a_worker_that_returns_after_the_end_is_not_waited_for(name):
    base = seconds(train(name, even()))
    cluster = even(dies("worker1", at=base / 2, lasts=100 * base), patience=base / 50)
    assert seconds(train(name, cluster)) < 1.5 * base
    assert seconds(train(name, cluster, checkpoint_every=1_000)) < 1.5 * base


def test_a_worker_that_was_lost_at_the_cut_joins_after_the_return_to_it():
    base = seconds(train("gba", even()))
    plan = dies("worker1", at=0.3 * base, lasts=0.4 * base), dies("server0", at=0.9 * base, lasts=0.1 * base)
    run = train("gba", even(*plan, patience=base / 50), checkpoint_every=2_000)
    assert run.summary["returns_to_a_cut"] == 1 and run.summary["samples"] >= CLICKS.samples - 50
    assert computed(run, "worker1")["start"].max() > base


def test_killing_a_tenth_of_the_workers_costs_gba_no_more_than_their_share():
    workload = workloads.get("ctr-synthetic", samples=40_000, batch_size=50, fields=3, hidden=(8,))

    def go(*failures):
        cluster = VirtualCluster(workers=20, slowdown=0.3, worker=Node(flops=1e6), failures=failures)
        return lib.train(workload, "gba", cluster, save=False).summary

    whole = go()
    at = 0.2 * whole["virtual_seconds"]
    less = go(*(dies(f"worker{rank}", at=at) for rank in (3, 11)))
    assert less["lost"] == 2 and less["dropped"] + less["decayed"] <= whole["dropped"] + whole["decayed"] + 20
    assert 0.9 * whole["qps"] * 0.99 < less["qps"] < whole["qps"]


def test_a_worker_that_comes_with_a_later_phase_fails_when_it_is_to():
    phases = Phase(protocol="gba", workers=2, until_samples=CLICKS.samples // 2), Phase(protocol="gba")
    end = seconds(train(Schedule(phases=phases), even()))
    run = train(Schedule(phases=phases), even(dies("worker3", at=0.9 * end), patience=end / 50))
    assert run.summary["lost"] == 1
    assert 0.8 * end < computed(run, "worker3")["end"].max() < 0.9 * end


@pytest.mark.parametrize("name", ["sync", "all-reduce"])
@pytest.mark.parametrize("options", [{}, {"checkpoint_every": 1_000}], ids=["to its start", "to its cut"])
def test_a_run_that_loses_a_server_returns_and_ends_as_without_the_loss(name, options):
    base = train(name, even())
    run = train(name, even(dies("server0", at=0.6 * seconds(base), lasts=0.5)), **options)
    assert run.digest == base.digest
    assert run.summary["returns_to_a_cut"] == 1
    undone = (0.6 - 0.5 * bool(options)) * CLICKS.batches()
    assert run.summary["lost"] == pytest.approx(undone, abs=5)
    assert run.summary["applied"] == CLICKS.batches()
    assert seconds(run) == pytest.approx(seconds(base) + 0.5 + undone / 4 * STEP, rel=0.05)


def test_a_pipeline_goes_back_too():
    workload = workloads.get("kg-synthetic", samples=2_000, entities=60, triples=400, evaluation_triples=20)
    plain = lib.train(workload, "oac", VirtualCluster(), save=False)
    for node in ("worker0", "server0"):
        plan = [dies(node, at=seconds(plain) / 2, lasts=0.1)]
        run = lib.train(workload, "oac", VirtualCluster(failures=plan), save=False)
        assert run.summary["returns_to_a_cut"] == 1 and run.summary["applied"] == workload.batches()


@pytest.mark.parametrize("node, words", [("server0", "server0 died"), ("worker*", "")])
def test_what_cannot_come_back_ends_the_run(node, words):
    with pytest.raises(NodeLost, match=words):
        train("gba", even(dies(node, at=STEP * 3)))


def test_servers_that_do_not_learn_of_a_death_deadlock(monkeypatch):
    """The planted fault: a worker dies, and its servers hear nothing of it."""
    monkeypatch.setattr(Workers, "_notify_listeners", AsyncMock(return_value=[]))
    with pytest.raises(Deadlock):
        train("sync", even(dies("worker1", at=STEP * 3)))


# What a replica alone held is lost with it.


@pytest.mark.parametrize(
    "protocol, lost",
    [
        (protocols.get("fr-easgd", every=4), 3),  # two updates since the mix of step 8, and the batch that was not used
        (protocols.get("fr-ma", every=4), 3),
        (protocols.get("fr-easgd", every=1), 1),
        (protocols.get("s-easgd"), 1),  # messages are much faster than steps
        (protocols.get("all-reduce"), 1),
        (rule(groups=lambda self, round, workers: tuple((rank,) for rank in range(workers)), rows=Async()), 11),
    ],
    ids=lambda value: value.name if isinstance(value, ReplicaRule) else str(value),
)
def test_what_a_lost_replica_alone_held_is_lost(protocol, lost):
    """Worker 1 dies with its eleventh batch computed."""
    assert train(protocol, even(dies("worker1", at_batch=11), patience=STEP)).summary["lost"] == lost


def test_a_replica_that_is_there_again_counts_its_gap_from_then_on():
    """It takes another's copy, whose steps before are none of its own."""
    plan = dies("worker1", at_batch=11, lasts=3 * STEP)
    summary = train(protocols.get("fr-easgd", every=4), even(plan, patience=STEP)).summary
    assert 3.8 < summary["sync_gap"] <= 4 and summary["lost"] == 3


# On a wall clock.


@pytest.mark.parametrize("name", ["sync", "gba", "s-easgd", "ds-sync", "all-reduce"])
def test_the_same_plan_is_really_carried_out(name):
    hangs = Failure(node="worker0", kind="hangs", at_batch=8, lasts=0.2)
    plan = [dies("worker1", at_batch=4), dies("worker2", at_batch=3, lasts=0.05), hangs]
    mishaps = Mishaps(late=0.05, delay=0.002, lost=0.02, retry=0.002)
    run = train(name, LocalCluster(workers=3, failures=plan, mishaps=mishaps, patience=0.3), checkpoint_every=1_000)
    assert run.summary["lost"] <= 4 + 3 and math.isfinite(run.summary["auc"])  # all that the two had, at most
    assert run.summary["wall_seconds"] > 0.3  # the patience was really waited for
    assert len(computed(run, "worker1")) == 4  # what the dead wrote down is there


def test_a_server_really_lost():
    plan = [dies("server0", at=0.15, lasts=0.1)]
    slow = workloads.get("ctr-synthetic", samples=30_000, batch_size=100)
    for name in ("sync", "all-reduce"):
        plain = lib.train(slow, name, LocalCluster(workers=2), save=False)
        run = lib.train(slow, name, LocalCluster(workers=2, failures=plan), save=False, checkpoint_every=2_000)
        assert run.summary["returns_to_a_cut"] == 1 and run.digest == plain.digest


@pytest.mark.ray
@pytest.mark.parametrize(
    "name, plan",
    [
        pytest.param("ds-sync", [dies("worker1", at_batch=4)], marks=pytest.mark.nightly),
        ("gba", [dies("worker2", at_batch=3, lasts=0.5), dies("server0", at=4.0, lasts=0.5)]),
    ],
    ids=["a worker for good", "a worker and a server for a while"],
)
def test_ray_kills_processes(name, plan, joined_ray):
    run = train(name, lib.RayCluster(workers=3, failures=plan, patience=0.3))
    assert run.summary["lost"] >= 1 and math.isfinite(run.summary["auc"])


async def test_no_message_is_late_before_the_training_and_delays_count_from_its_start():
    """The loop's clock has run for long when a training starts: a message of before would hold up all after it by as much."""
    loop = asyncio.get_running_loop()
    cluster = lib.LocalCluster(workers=1, mishaps=lib.Mishaps(late=1.0, delay=0.01))
    delays = MessageDelays(cluster, 0, "master")
    assert delays.arrival_time("worker0") is None and delays.arrival_time("worker0", answer=True) is None
    delays.start_clock()
    assert all(loop.time() < delays.arrival_time("worker0") < loop.time() + 1 for _ in range(5))


def test_late_messages_of_embedding_workers_on_threads_come():
    data = {"samples": 200, "batch_size": 8, "vocabulary": 30, "fields": 2, "dim": 2, "hidden": (4,)}
    late = lib.Mishaps(late=0.5, delay=0.004)
    run = lib.train("ctr-synthetic", "async", "local", workers=1, embedding_workers=1, mishaps=late, save=False, **data)
    assert run.summary["issued"] == run.summary["applied"] == 25
