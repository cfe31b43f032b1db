"""Persia's Figure 6: times to an AUC, by hand and in a run."""

from __future__ import annotations

import math

import pandas as pd
import pytest

import lib
from notebooks.persia import tasks, time_to_auc


@pytest.mark.parametrize(
    "goal, seconds, samples",
    [(0.5, 0, 0), (0.55, 1, 50), (0.6, 2, 100), (0.65, 6, 150), (0.7, 10, 200), (0.71, math.inf, math.inf)],
)
def test_the_time_to_an_auc_by_hand(goal, seconds, samples):
    """0.5 at the start, 0.6 after two seconds and 0.7 after ten: 0.65 is half of the way from the one to the other."""
    course = pd.DataFrame({"time": [2.0, 10.0], "samples": [100.0, 200.0], "auc": [0.6, 0.7]})
    assert time_to_auc.reached(course, 0.5, goal) == pytest.approx((seconds, samples))


def test_a_fall_between_two_evaluations_is_crossed_on_the_way_up_again():
    """From 0.5 up to 0.6, down to 0.4 and up to 0.8: at 0.7 three quarters of the last way are done."""
    course = pd.DataFrame({"time": [1.0, 2.0, 6.0], "samples": [10.0, 20.0, 60.0], "auc": [0.6, 0.4, 0.8]})
    assert time_to_auc.reached(course, 0.5, 0.7) == pytest.approx((5, 50))


def test_runs_are_held_against_sync_of_their_seed():
    places = [("taobao", mode, 0) for mode in ("sync", "hybrid", "async (32)", "frozen")]
    runs = [lib.train(**tasks.job(*place, samples=8_000, evaluations=4), save=False) for place in places]
    data = time_to_auc.waited(places, runs).set_index("protocol")
    assert list(data.index) == ["sync", "hybrid", "async (32)"] and data.loc["sync", "times as fast as sync"] == 1
    ends = [run.summary["auc"] for run in runs]
    assert data["goal"].tolist() == [pytest.approx(ends[0] - 0.1 * (ends[0] - ends[3]))] * 3
    assert 0 < data.loc["sync", "seconds"] < runs[0].summary["virtual_seconds"]
    assert data.loc["async (32)", "times as fast as sync"] == 0 < data.loc["hybrid", "times as fast as sync"]


def test_a_slow_look_up_holds_sync_up_and_not_the_hybrid():
    pace = {}
    for mode in ("sync", "hybrid"):
        usual, slow = (time_to_auc.slow("taobao", mode, 0, wait, samples=8_000) for wait in (0.0, 0.03))
        assert usual == tasks.job("taobao", mode, 0, samples=8_000)
        pace[mode] = [lib.train(**job, save=False).summary["virtual_seconds"] for job in (usual, slow)]
    steps = 8_000 / 64 / 8
    assert pace["sync"][1] - pace["sync"][0] > steps * 0.03 and pace["hybrid"][1] - pace["hybrid"][0] < steps * 0.01
