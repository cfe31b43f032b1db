"""What a replica alone held is lost with it, and what it is when it is there again."""

from __future__ import annotations

import pytest

from lib import Failure, VirtualCluster, protocols
from lib.protocols.baselines import Async
from lib.protocols.replica_rule import ReplicaRule
from tests.cluster.test_failures import EVEN, STEP, train
from tests.drivers.composing import rule


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
    plan = [Failure(node="worker1", kind="dies", at_batch=11)]
    run = train(protocol, VirtualCluster(workers=4, failures=plan, patience=STEP, **EVEN))
    assert run.summary["lost"] == lost


def test_a_replica_that_is_there_again_counts_its_gap_from_then_on():
    """It takes another's copy, whose steps before are none of its own."""
    plan = [Failure(node="worker1", kind="dies", at_batch=11, lasts=3 * STEP)]
    run = train(protocols.get("fr-easgd", every=4), VirtualCluster(workers=4, failures=plan, patience=STEP, **EVEN))
    assert 3.8 < run.summary["sync_gap"] <= 4 and run.summary["lost"] == 3
