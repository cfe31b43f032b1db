"""What an advice hangs on: other clusters in one thing, and what is known of a protocol there."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lib
from lib.cluster.slowdowns import Lognormal, Product
from lib.measure import elsewhere
from lib.measure.advice import Advice
from lib.measure.trial import Trial


def test_each_other_cluster_differs_in_one_thing():
    given = lib.VirtualCluster(speeds=(1.0, 1.0, 0.5), slowdown=0.2, worker=lib.Node(launch=0.001))
    found = elsewhere.others(given)
    assert found["no worker is slower"] == lib.VirtualCluster(workers=3, worker=lib.Node(launch=0.001))
    unlike = found["workers are twice as unlike"]
    assert unlike.speeds == (1.0, 1.0, 0.25) and unlike.slowdown == Product(parts=(Lognormal(sigma=0.2),) * 2)
    slow = found["the network is a quarter as fast"]
    assert slow.worker == lib.Node(launch=0.001, bandwidth=1.25e9 / 4) and slow.server.bandwidth == 3.125e9 / 4
    long = found["a worker's steps take four times as long"].worker
    assert (long.launch, long.flops, long.core_memory) == (0.004, 2e9 / 4, 8e9 / 4)
    even = elsewhere.others(lib.VirtualCluster(workers=8))
    assert even["one worker in four takes twice as long"].speeds == (1.0,) * 6 + (0.5,) * 2 and len(even) == 5
    assert elsewhere.others(lib.LocalCluster()) == {}


def test_seconds_are_those_that_are_known_times_how_much_slower_its_samples_come():
    """Two workers of which one takes twice as long: sync's steps are the slow one's, and without it take half of the time."""
    options = {"speeds": (1.0, 0.5), "worker.launch": 1.0, "worker.latency": 0, "server.latency": 0, "samples": 6400}
    trials = {name: Trial.of("clicks-light", name, "virtual", options) for name in ("sync", "async")}
    found = elsewhere.seconds(trials, {"sync": 100.0, "async": 80.0}, seed=500)
    assert found.loc["all is as given"].tolist() == pytest.approx([100.0, 80.0])
    assert found.loc["no worker is slower", "sync"] == pytest.approx(50, rel=0.05)  # of 13 batches
    assert found.loc["no worker is slower", "async"] == pytest.approx(60, rel=0.05)  # 1.5 batches a second, then 2
    assert found.loc["the network is four times as fast", "sync"] == pytest.approx(100, rel=0.05)  # of 13 batches


def test_what_a_choice_costs_elsewhere_is_told():

    table = pd.DataFrame(
        {"sync": [10.0, 4.0], "gba": [5.0, 6.0], "async": [np.nan] * 2}, ["all is as given", "no worker is slower"]
    )
    advice = Advice(pd.DataFrame(), {}, SimpleNamespace(choice=lambda priority: "gba"), table)
    assert advice.hangs() == [
        "where all is as given: gba still, 2.00 times as soon as sync",
        "where no worker is slower: sync; gba would take 50 % longer",
    ]
