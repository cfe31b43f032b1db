"""Whoever copies a skeleton has something that works: each is used here as it stands, from a copy."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import lib
from data_prep.job import Options
from lib.tasks.prepared_datasets import PreparedClicks
from notebooks.skeletons.data_set import Mine as MyClicks
from notebooks.skeletons.slowdown import Mine as MySlowdown
from reports import runner as notebooks

HERE = Path(notebooks.__file__).parents[2] / "notebooks" / "skeletons"


@pytest.fixture
def copied(tmp_path):
    """A skeleton under a name of its own, as a user would have it."""

    def copy(name):
        there = tmp_path / f"{name}_{tmp_path.name}.py"  # a process knows a module's name once
        shutil.copy(HERE / f"{name}.py", there)
        return str(there)

    return copy


@pytest.mark.parametrize("rule", ["server_rule", "replica_rule"])
def test_a_rule_trains(copied, rule):
    run = lib.train("ctr-synthetic", copied(rule), "virtual", workers=3, samples=4000, batch_size=50, save=False)
    assert run.provenance["protocol"]["name"] == "mine" and run.summary["auc"] > 0.55
    assert run.summary["applied"] == 80 and not run.summary["dropped"]


def test_the_server_rule_drops_what_is_older_than_its_limit(copied):
    options = {"workers": 6, "samples": 3000, "batch_size": 50, "slowdown": 0.8, "limit": 3, "save": False}
    run = lib.train("ctr-synthetic", copied("server_rule"), "virtual", **options)
    assert run.summary["dropped"] > 0 and run.summary["staleness_max"] <= 3


def test_the_replica_rule_goes_half_of_the_way(copied):
    from notebooks.skeletons.replica_rule import Mine

    mix = type("Mixed", (), {"theirs": np.float32([3, 3])})
    assert Mine(alpha=0.5).merge(None, np.float32([1, 5]), mix)[1].tolist() == [2, 4]


def test_a_workload_is_learnt(copied):
    options = {"workers": 2, "samples": 8000, "save": False}
    for rule, least, most in (("frozen", 0.4, np.inf), ("sync", 0, 0.2), ("s-easgd", 0, 0.2)):
        assert least <= lib.train(copied("workload"), rule, "virtual", **options).summary["loss"] < most


def test_a_slowdown_slows():
    path = MySlowdown(every=3, times=4.0).sample_path(0, "worker0", 0)
    assert [path.stretch(0.0, 1.0) for _ in range(6)] == [1, 1, 4, 1, 1, 4]
    clusters = [lib.VirtualCluster(workers=2, slowdown=MySlowdown(times=times)) for times in (9.0, 1.0)]
    slow, fast = (
        lib.train("ctr-synthetic", "sync", each, samples=4000, gradients=False, save=False) for each in clusters
    )
    assert slow.summary["qps"] < 0.9 * fast.summary["qps"]


def test_a_data_set_is_prepared(tmp_path):
    facts = MyClicks.twin(tmp_path / "raw", 600, seed=1)
    manifest = MyClicks.prepare(tmp_path / "raw", tmp_path / "out", Options())
    assert (manifest["positives"], manifest["days"]) == (facts["clicks"], 3)
    assert PreparedClicks(tmp_path / "out").fields == ("country", "shop", "article")


def test_a_page_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_ROOT", str(tmp_path))
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(tmp_path / "reports"))
    (tmp_path / "notebooks").mkdir()
    shutil.copy(HERE / "page.ipynb", tmp_path / "notebooks" / "95_mine.ipynb")
    (page,) = notebooks.resolve("95_mine")
    assert notebooks.parameters(page.path).keys() == {"profile", "seeds", "slowdown", "device"}
    assert notebooks.run_together([page], "smoke") == []
    assert page.executed.exists() and not page.failed.exists()


def test_the_page_to_copy_is_no_experiment():
    assert "skeletons" not in {each.paper for each in notebooks.experiments()}


def test_the_slowdown_is_an_option_by_its_file(copied):
    """Every tenth computation takes five times as long: 14 computations' time for 10."""
    options = {"workers": 1, "samples": 2000, "batch_size": 20, "worker.launch": 0.1, "gradients": False, "save": False}
    times = [
        lib.train("clicks-light", "sync", "virtual", **options, **slow).summary["virtual_seconds"]
        for slow in ({}, {"slowdown": f"{copied('slowdown')}:Mine"})
    ]
    assert times[1] / times[0] == pytest.approx(1.4, rel=0.02)
