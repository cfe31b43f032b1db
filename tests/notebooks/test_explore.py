"""Exploring: what the sliders change, and how soon they answer."""

import time

import pytest

from notebooks import explore

START = {"protocol": "ssp", "workers": 8, "slowdown": 1.0, "network": "10Gbit/s", "batch": 32, "bound": 0}


def mean_age(runs):
    return list(runs.values())[-1].summary["staleness_mean"]


def test_a_larger_bound_makes_gradients_older_and_training_faster():
    tight, loose = (explore.timing(**START | {"bound": bound}) for bound in (0, 12))
    assert mean_age(loose) > 2 * mean_age(tight) and loose["ssp"].steady_qps > 1.2 * tight["ssp"].steady_qps
    assert loose["sync"] is tight["sync"], "Sync has no bound, so its run is kept"


def test_equal_workers_behind_a_fast_network_make_protocols_equal():
    fast = START | {"protocol": "gba", "workers": 16, "batch": 64, "slowdown": 0.0, "network": "100Gbit/s"}
    runs = explore.timing(**fast)
    assert runs["gba"].steady_qps == pytest.approx(runs["sync"].steady_qps, rel=0.15)


def test_the_histogram_is_a_share_of_all_gradients():
    data = explore.figures(explore.timing(**START | {"bound": 4}))
    assert data.groupby("protocol")["share"].sum().tolist() == pytest.approx([1, 1])
    assert data.query("protocol == 'sync'")["age"].tolist() == [0]


def test_a_slider_answers_within_a_second_of_processor_time():
    panel = explore.panel(**START | {"protocol": "gba", "bound": 3})
    _, workers, slowdown, *_, line, _ = panel.children
    for control, value in ((workers, 16), (slowdown, 0.5)):
        before, began = line.outputs, time.process_time()
        control.value = value
        assert time.process_time() - began < 1 and line.outputs != before
    assert "gba trains" in line.outputs[0]["text"]


def test_real_gradients_on_demand():
    runs = explore.training(8_000, **START | {"bound": 2})
    assert all(len(run.history["auc"].dropna()) >= 10 for run in runs.values())
    assert all(run.summary["auc"] > 0.55 for run in runs.values())
