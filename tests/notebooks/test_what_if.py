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
    assert found["no worker is slow"] == lib.VirtualCluster(workers=3, worker=lib.Node(launch=0.001))
    unlike = found["workers differ twice as much"]
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
    assert found.loc["no worker is slow", "sync"] == pytest.approx(50, rel=0.05)  # of 13 batches
    assert found.loc["no worker is slow", "async"] == pytest.approx(60, rel=0.05)  # 1.5 batches a second, then 2
    assert found.loc["the network is four times as fast", "sync"] == pytest.approx(100, rel=0.05)  # of 13 batches


def advice(tried=None, compared=("sync", "gba"), lost=(), updates=500.0, **columns):
    places = [f"place {number}" for number in range(len(next(iter(columns.values()))))] if columns else []
    high = [-1.0 if name in lost else 0.0 for name in compared]
    rows = pd.DataFrame({"protocol": [*compared], "difference, high": high})
    runs = pd.DataFrame({"protocol": [*compared], "best": 1.0})
    comparison = SimpleNamespace(choice=lambda: "gba", summary=lambda: rows, runs=runs)
    return Advice({}, pd.DataFrame(tried or {}), {}, comparison, pd.DataFrame(columns, places), updates)


def test_what_a_choice_costs_elsewhere_is_said():
    assert advice(sync=[10.0, 4.0], gba=[5.0, 6.0], none=[np.nan] * 2).depends_on() == [
        "If place 0: gba stays the fastest, 2.00x as fast as sync.",
        "If place 1: sync is the fastest, and gba takes 50 % longer.",
    ]


def test_a_protocol_that_loses_is_no_rival_elsewhere():
    seconds = {"sync": [10.0, 9.0], "gba": [5.0, 6.0], "async": [1.0, 1.0]}
    found = advice(compared=tuple(seconds), lost=("async",), **seconds)
    assert found.depends_on()[0].endswith("gba stays the fastest, at least 1.50x as fast as the next.")


def test_a_choice_that_holds_everywhere_is_one_sentence():
    start = "On all 3 clusters that were simulated, with other workers, networks and steps, gba stays the fastest, "
    some, alone = ([10.0, 4.0, 9.0], "at least 1.25x as fast as the next."), ([np.nan] * 3, "alone at the goal.")
    for sync, end in (some, alone):
        assert advice(sync=sync, gba=[5.0, 3.2, 3.0]).depends_on() == [start + end]
    only = "If place 0: gba stays the fastest, the only one at the goal."
    assert advice().depends_on() == [] and advice(gba=[5.0]).depends_on() == [only]


def test_runs_that_are_short_and_protocols_that_were_left_out_are_doubts():
    """BSP is GBA to the bit, and so was compared; Async was faster than the choice and was not."""
    tried = {"protocol": ["async", "gba", "bsp", "sync", "ssp"], "as": ["async", "gba", "gba", "sync", "ssp"]}
    tried["time"] = [0.4, 0.5, 0.5, 1.0, np.nan]
    few, left = advice(tried, updates=12.5).doubts()
    assert few.startswith("A run is only 12 updates") and few.endswith("give 8 times the samples.")
    assert left == "Faster than gba on the tuning seed, but not compared on all seeds: async."
    assert advice(tried, compared=("sync", "gba", "async")).doubts() == []


def test_a_best_rate_at_the_edge_of_what_is_tried_is_a_doubt():
    found = advice({"protocol": ["gba", "sync"], "as": ["gba", "sync"], "time": [0.5, 1.0]})
    found.comparison.runs["best"] = [1.0, 81.0]
    assert found.doubts() == ["The best learning rate is the last that is tried: gba."]
