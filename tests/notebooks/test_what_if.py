"""What an advice hangs on: other clusters in one thing, and what is known of a protocol there."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lib
from lib.cluster.slowdowns import Lognormal, Product
from notebooks.advisor import what_if
from notebooks.advisor.advice import Advice
from notebooks.advisor.trial import Trial


def test_each_other_cluster_differs_in_one_thing():
    given = lib.VirtualCluster(speeds=(1.0, 1.0, 0.5), slowdown=0.2, worker=lib.Node(launch=0.001))
    found = what_if.conditions(given)
    assert found["no worker is slower"] == lib.VirtualCluster(workers=3, worker=lib.Node(launch=0.001))
    unlike = found["workers are twice as unlike"]
    assert unlike.speeds == (1.0, 1.0, 0.25) and unlike.slowdown == Product(parts=(Lognormal(sigma=0.2),) * 2)
    slow = found["the network is a quarter as fast"]
    assert slow.worker == lib.Node(launch=0.001, bandwidth=1.25e9 / 4) and slow.server.bandwidth == 3.125e9 / 4
    long = found["a worker's steps take four times as long"].worker
    assert (long.launch, long.flops, long.core_memory) == (0.004, 2e9 / 4, 8e9 / 4)
    even = what_if.conditions(lib.VirtualCluster(workers=8))
    assert even["one worker in four takes twice as long"].speeds == (1.0,) * 6 + (0.5,) * 2 and len(even) == 5
    assert what_if.conditions(lib.LocalCluster()) == {}


def test_seconds_are_those_that_are_known_times_how_much_slower_its_samples_come():
    """Two workers of which one takes twice as long: sync's steps are the slow one's, and without it take half of the time."""
    options = {"speeds": (1.0, 0.5), "worker.launch": 1.0, "worker.latency": 0, "server.latency": 0, "samples": 6400}
    trials = {name: Trial.of("clicks-light", name, "virtual", options) for name in ("sync", "async")}
    found = what_if.seconds(trials, {"sync": 100.0, "async": 80.0}, seed=500)
    assert found.loc["all is as given"].tolist() == pytest.approx([100.0, 80.0])
    assert found.loc["no worker is slower", "sync"] == pytest.approx(50, rel=0.05)  # of 13 batches
    assert found.loc["no worker is slower", "async"] == pytest.approx(60, rel=0.05)  # 1.5 batches a second, then 2
    assert found.loc["the network is four times as fast", "sync"] == pytest.approx(100, rel=0.05)  # of 13 batches


def advice(tried=None, compared=("sync", "gba"), updates=500.0, **columns):
    places = [f"place {number}" for number in range(len(next(iter(columns.values()))))] if columns else []
    comparison = SimpleNamespace(
        choice=lambda priority="time": "gba", first="sync", runs=pd.DataFrame({"protocol": list(compared)})
    )
    return Advice(pd.DataFrame(tried or {}), {}, comparison, pd.DataFrame(columns, places), updates)


def test_what_a_choice_costs_elsewhere_is_told():
    assert advice(sync=[10.0, 4.0], gba=[5.0, 6.0], none=[np.nan] * 2).depends_on() == [
        "where place 0: gba still, 2.00 times as soon as sync",
        "where place 1: sync; gba would take 50 % longer",
    ]


def test_a_choice_that_holds_everywhere_is_one_sentence():
    asked = "in all 3 places that were asked, with other workers, networks and steps: gba, "
    assert advice(sync=[10.0, 4.0, 9.0], gba=[5.0, 3.2, 3.0]).depends_on() == [
        asked + "1.25 times as soon as the next at least"
    ]
    assert advice(sync=[np.nan] * 3, gba=[5.0, 3.2, 3.0]).depends_on() == [asked + "alone at the goal"]
    assert advice().depends_on() == [] and advice(gba=[5.0]).depends_on() == [
        "where place 0: gba still, alone at the goal"
    ]


def test_runs_that_are_short_and_who_was_left_out_are_told():
    """BSP is GBA to the bit, and so was compared; Async was sooner than the choice and was not."""
    tried = {"protocol": ["async", "gba", "bsp", "sync", "ssp"], "as": ["async", "gba", "gba", "sync", "ssp"]}
    tried["time"] = [0.4, 0.5, 0.5, 1.0, np.nan]
    few, left = advice(tried, updates=12.5).doubts()
    assert few.startswith("a run here is 12 batches of every worker; below 100") and few.endswith(
        "give 8 times the samples"
    )
    assert left == "sooner than gba on the seed of the trials, and not compared on all: async"
    assert advice(tried, compared=("sync", "gba", "async")).doubts() == []
