"""Pulls some batches ahead: how many there are at most, what they hide, and what becomes of them when their worker dies."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Failure, Node, VirtualCluster, protocols
from lib.drivers.record import OUTCOMES
from lib.protocols import Pair
from tests.toys import clicks, records

CLICKS = clicks(16 * 60, 16, vocabulary=50, dim=2, hidden=(4,), evaluation_samples=100)


@pytest.mark.parametrize("aheads", [(3, 0), (0, 2), (3, 1), (1, 3)])
def test_each_set_of_servers_is_asked_as_far_ahead_as_its_rule_says(aheads):
    sparse, dense = (protocols.get("async", pull_ahead=ahead) for ahead in aheads)
    slow = VirtualCluster(workers=1, worker=Node(flops=1e5))  # so that whatever is to be asked ahead is asked in time
    parts = records(CLICKS, Pair(sparse=sparse, dense=dense), slow)
    ages = {"dense" in part.final: [age for _, age, _ in part.staleness] for part in parts if part.ledger["started"]}
    assert (max(ages[False]), max(ages[True])) == aheads


@settings(max_examples=15)
@given(
    bound=st.integers(0, 2),
    pull_ahead=st.integers(1, 2),
    feed=st.sampled_from(("queue", "split")),
    prefetch=st.integers(1, 4),
    workers=st.integers(2, 6),
    seed=st.integers(0, 1000),
)
def test_a_workers_steps_start_in_its_order_whatever_the_bound(bound, pull_ahead, feed, prefetch, workers, seed):
    """A pull that came while an update was under way was let in before an earlier one of its worker, which waited for ever."""
    rule = protocols.get("hop-bs", bound=bound, pull_ahead=pull_ahead)
    cluster = VirtualCluster(workers=workers, slowdown=0.3, worker=Node(flops=1e6))
    options = {"samples": 160, "feed": feed, "prefetch": prefetch, "seed": seed, "gradients": False, "save": False}
    assert lib.train(CLICKS, rule, cluster, **options).summary["samples"] == 160


def steps(tau, **nodes):
    """Seconds of a step of one worker with 60 batches."""
    cluster = VirtualCluster(workers=1, worker=Node(**nodes), server=Node(**nodes))
    run = lib.train(CLICKS, protocols.get("hybrid", tau=tau), cluster, save=False)
    return run.summary["virtual_seconds"] / 60, run.trace


def test_pulls_are_hidden_behind_the_computation():
    """A pull takes two latencies of 5 ms and a step some 12 ms of computing: 22 ms one after the other, and 12 beside."""
    alone, trace = steps(0, latency=5e-3, flops=1e5)
    [work] = {round(span.end - span.start, 9) for span in trace[trace["kind"] == "compute"].itertuples()}
    assert alone == pytest.approx(work + 10e-3, rel=0.05)
    assert steps(1, latency=5e-3, flops=1e5)[0] == pytest.approx(work, rel=0.05)


@pytest.mark.parametrize("tau", [0, 2])
def test_of_a_workers_batches_so_many_are_in_flight(tau):
    """Between the start of its pull and that of its push."""
    run = lib.train(CLICKS, protocols.get("hybrid", tau=tau), VirtualCluster(workers=3, slowdown=0.5), save=False)
    trace = run.trace[run.trace["node"] == "worker1"]
    begun = trace[trace["kind"] == "pull"].set_index("batch")["start"]
    sent = trace[trace["kind"] == "push"].set_index("batch")["start"]
    in_flight = [(begun <= time).sum() - (sent < time).sum() for time in begun]
    assert max(in_flight) == tau + 1


@pytest.mark.parametrize("counts", ["own", "all"])
def test_rows_that_a_worker_had_read_ahead_are_lost_with_it_once(counts):
    """It dies with its eleventh batch computed: that is lost, and the three that it had read rows for beside it."""
    plan = [Failure(node="worker1", kind="dies", at_batch=11, lasts=0.05)]
    cluster = VirtualCluster(workers=3, failures=plan, patience=0.01, worker=Node(flops=1e6))
    parts = records(CLICKS, protocols.get("hybrid", tau=3, counts=counts), cluster)
    [server] = (part.ledger for part in parts if part.ledger["started"])
    assert 2 <= server["lost"] <= 4
    assert server["started"] == sum(server[outcome] for outcome in OUTCOMES)
    taken = Counter(batch for part in parts for batch in part.taken)
    assert max(taken.values()) == 1 and 50 <= len(taken) < 60
    workers = sum((part.ledger for part in parts if part.ledger["issued"]), Counter())
    assert workers["issued"] == len(taken) == workers["applied"] + workers["lost"] and workers["lost"] == 1
