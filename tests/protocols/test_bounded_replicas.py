"""Replica rules whose workers run no further ahead than so many steps: measured, with deaths and cuts, and without a deadlock."""

from __future__ import annotations

import numpy as np
import pytest

import lib
from lib import Failure, LocalCluster, Node, VirtualCluster, protocols, workloads
from lib.errors import BadOption
from lib.protocols import ALL
from tests.training.stopping import assert_same, killed

REPLICA = [name for name in ALL if ALL[name].family == "replica"]
CLICKS = workloads.get(
    "ctr-synthetic", samples=16 * 80, batch_size=16, vocabulary=50, fields=3, dim=2, hidden=(4,), evaluation_samples=50
)
STEP = CLICKS.work().flops / 1e6


def ahead(run):
    """By how many steps whoever begins one is ahead of the slowest that is still to end its last."""
    steps = run.trace[run.trace["kind"] == "compute"]
    most = 0
    for start in steps["start"]:
        begun = steps[steps["start"] < start].groupby("node").size()
        done = steps[steps["end"] <= start].groupby("node").size().reindex(steps["node"].unique(), fill_value=0)
        last = steps.groupby("node")["end"].max()
        under_way = done[last > start]
        node = steps.loc[steps["start"] == start, "node"].iloc[0]
        most = max(most, int(begun.get(node, 0) - under_way.min()))
    return most


@pytest.mark.parametrize("bound", [0, 2])
@pytest.mark.parametrize("name", ["s-easgd", "s-ma", "easgd", "downpour", "ad-psgd"])
def test_nobody_runs_further_ahead(name, bound):
    cluster = VirtualCluster(workers=4, worker=Node(flops=1e6), speeds=(0.3, 1.0, 1.0, 2.0))
    free, held = (
        lib.train(CLICKS, protocols.get(name, **options), cluster, save=False) for options in ({}, {"bound": bound})
    )
    assert ahead(held) == bound < 6 < ahead(free)
    assert held.summary["applied"] == 80


@pytest.mark.parametrize("name", REPLICA)
def test_a_bound_ends_with_deaths_and_cuts(name, reports, monkeypatch):
    """Worker 1 dies and comes back, worker 2 dies for good; and a run that was stopped goes on as if it never had been."""
    deaths = [
        Failure(node="worker1", kind="dies", at=4.5 * STEP, lasts=6 * STEP),
        Failure(node="worker2", kind="dies", at=9.5 * STEP),
    ]
    cluster = VirtualCluster(workers=4, worker=Node(flops=1e6), slowdown=0.8, failures=deaths, patience=STEP)

    def train(**options):
        rule = protocols.get(name, bound=1)
        return lib.train(CLICKS, rule, cluster, checkpoint_every=16 * 30, save=False, **options)

    whole = train()
    with killed(monkeypatch, 50):
        train()
    assert_same(train(resume=True), whole)


def test_a_bound_ends_where_a_shadow_waits_for_one_without_data():
    """Found by the weather: who has no data takes part in no mix, so the others' shadows wait for it until all have ended."""
    rule = protocols.get("s-bmuf", bound=0, until="all")
    run = lib.train(CLICKS, rule, "virtual", workers=4, feed="stream", partitions=(0, 3, 3, 1), save=False)
    assert run.summary["applied"] == 80


def test_a_bound_holds_on_real_threads():
    run = lib.train(CLICKS, protocols.get("easgd", bound=0, worker_threads=1), LocalCluster(workers=3), save=False)
    assert run.summary["applied"] == 80 and np.isfinite(run.summary["auc"])


def test_a_bound_is_a_number_of_steps():
    with pytest.raises(BadOption, match="easgd: bound must be 0 or more"):
        protocols.get("easgd", bound=-1)
