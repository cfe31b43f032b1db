"""The planted control: it throws away what it says, alike in every run, and is Sync at a dose of nothing."""

import numpy as np
import pytest

import lib
from lib import Lognormal, VirtualCluster, workloads
from lib.protocols.server_rule import Apply, Drop, Push
from notebooks.planted_control import PlantedControl, PlantedHybrid, _uniform, dose
from notebooks.study import job as study_job

CLUSTER = VirtualCluster(workers=4, slowdown=Lognormal(sigma=0.2))
TASK = workloads.get("ctr-synthetic", samples=4 * 32 * 20, batch_size=32)


def trained(protocol, seed=0):
    return lib.train(TASK, protocol, CLUSTER, seed=seed, save=False, keep=True)


@pytest.mark.parametrize("kind, name", [(PlantedControl, "sync"), (PlantedHybrid, "hybrid")])
def test_without_a_dose_it_is_its_protocol_to_the_bit(kind, name):
    assert trained(kind(dropped=0.0)).digest == trained(name).digest


def test_it_throws_a_share_away_and_counts_it():
    run = trained(PlantedControl(dropped=0.5))
    assert 0.35 < run.summary["dropped"] / run.summary["issued"] < 0.65
    assert trained(PlantedControl(dropped=0.5)).digest == run.digest, "alike in every run"
    assert trained(PlantedControl(dropped=1.0)).summary["dropped"] == run.summary["issued"]


def test_the_hybrid_throws_gradients_of_rows_away_and_of_nothing_else():
    rules = ("frozen", PlantedHybrid(dropped=0.5), PlantedHybrid(dropped=1.0))
    frozen, half, none = (trained(rule).model for rule in rules)
    untouched, some = frozen.rows["feature"], half.rows["feature"]
    assert np.array_equal(none.rows["feature"].values, untouched.values)
    assert not np.array_equal(none.dense["values"], frozen.dense["values"])
    assert 0 < np.mean(some.stamps < 0) < 1 and np.all(none.rows["feature"].stamps < 0)


def test_a_decision_is_of_every_push_once():
    rule = PlantedControl(dropped=0.5)
    for batch in range(0, 400, 4):
        state = rule.init(4)
        decisions = ()
        for worker in range(4):
            state, more = rule.on_push(state, Push(worker=worker, token=0, batch=batch + worker))
            decisions += more
        pushes = [push for each in decisions for push in each.pushes]
        assert sorted(push.worker for push in pushes) == [0, 1, 2, 3] and not state.pending
        assert all(isinstance(each, Apply | Drop) for each in decisions)
        assert all(each.divisor == len(each.pushes) for each in decisions if isinstance(each, Apply))


def test_what_is_thrown_away_is_spread_evenly():
    drawn = np.array([_uniform(worker, batch) for worker in range(8) for batch in range(500)])
    assert np.histogram(drawn, bins=4, range=(0, 1))[0] == pytest.approx([1000] * 4, rel=0.12)


def test_the_dose_is_where_two_margins_are_lost():
    def job(rule, seed):
        return study_job(TASK, rule, CLUSTER, seed)

    chosen, lost = dose(job, lambda run: run.quality("auc"), 0.1, [0, 1], doses=(0.5, 0.9))
    assert 0 <= chosen <= 0.9 and list(lost) == [0.5, 0.9]
