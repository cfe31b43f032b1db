"""Ages of gradients that are asked for are those that training has."""

import pytest

import lib
from lib import workloads
from lib.errors import BadOption
from notebooks.gradient_age import UPDATES, cluster_of_age

CLICKS = workloads.get("clicks-light", fields=2, vocabulary=20, hidden=[], batch_size=4, evaluation_samples=100)
CLUSTER = lib.VirtualCluster(workers=8, slowdown=0.3)


@pytest.mark.parametrize(("protocol", "age"), [("gba", 0.2), ("gba", 0.7), ("async", 3.0)])
def test_a_run_has_the_age_that_was_asked_for(protocol, age):
    found = cluster_of_age(CLICKS, protocol, CLUSTER, age)
    assert found.age == pytest.approx(age, rel=0.02) and f"age {found.age:.3g}" in str(found)
    workload = workloads.get("clicks-light", fields=2, vocabulary=20, hidden=[], batch_size=4, samples=UPDATES * 8 * 4)
    run = lib.train(workload, protocol, found.cluster, save=False)
    assert run.summary["staleness_mean"] == found.age  # as a timing run says, to the last digit


def test_a_worker_that_holds_parameters_for_half_of_its_step():
    """Eight equal workers without a barrier: while one holds, for half of the time, each of the others makes half an update."""
    half = cluster_of_age(CLICKS, "async", lib.VirtualCluster(workers=8, slowdown=0.3), 3.5, seconds=1.0)
    assert half.held == pytest.approx(0.5, abs=0.02)


def test_an_age_that_cannot_be_had():
    with pytest.raises(BadOption, match=r"age: 0\.5 updates are not to be had here, where steps of 0\.01 s give 0"):
        cluster_of_age(CLICKS, "sync", CLUSTER, 0.5)
