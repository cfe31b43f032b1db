"""The page on alpha: what its modes are, what is paired, and what so many seeds can tell, by hand."""

import pandas as pd
import pytest

import lib
from notebooks import study
from notebooks.shadowsync import alphas, quality, tasks
from reports.claims.statistics import interval, smallest_effect


def test_modes_are_the_shadow_its_twins_and_two_controls():
    made = {
        mode: alphas.job(5, mode, 500, samples=1_000, alpha=0.25, rate=0.1, rows=0.3)["protocol"]
        for mode in alphas.MODES
    }
    assert made["s-easgd"].alpha == 0.25 and made["fr-easgd (30)"].alpha == 0.25 and made["fr-easgd (30)"].every == 30
    assert made["never"].alpha == 0 and type(made["never"]) is type(made["s-easgd"])
    task = alphas.job(5, "never", 500, samples=1_000, rate=0.1, rows=0.3)["workload"]
    assert (task.dense_optimizer.lr, task.row_optimizer.lr, task.world) == (0.1, 0.3, 500)


@pytest.mark.nightly
def test_the_shadow_is_at_the_calibrated_gap_on_light_clicks():
    """Two links take 125 copies a second, so each of 20 trainers has 6.25 mixes, and 74.9 steps, a second: 11.98 in between."""
    run = lib.train(**study.timing(alphas.job(20, "s-easgd", 500, samples=40_000)), save=False)
    assert run.summary["sync_gap"] == pytest.approx(tasks.STEPS * 20 / tasks.syncs(2), rel=0.1)


def test_what_never_trains_brings_nothing():
    run = lib.train(**alphas.job(5, "frozen", 500, samples=2_000), save=False)
    assert run.history["ne"].dropna().nunique() == 1
    figures = quality.figures(run)
    assert figures["ne"] == figures[quality.ONE_COPY] == pytest.approx(run.history["expected_ne"].dropna().iloc[0])


def test_entropy_less_a_modes_is_of_the_same_place():
    rows = [
        (crew, mode, seed, ne + seed) for crew in (5, 20) for seed in (1, 2) for mode, ne in (("a", 0.5), ("b", 0.75))
    ]
    data = pd.DataFrame(rows, columns=["trainers", "mode", "seed", "ne"])
    found = alphas.differences(data, ["trainers", "seed"], "a", "b")
    assert set(found.loc[found["mode"] == "b", "ne less a's"]) == {0.25}
    assert set(found.loc[found["mode"] == "a", "ne less b's"]) == {-0.25}


def test_the_mean_its_interval_and_the_smallest_effect_stand_together():
    data = pd.DataFrame({"trainers": [5] * 3, "x": [1.0, 2.0, 3.0]})
    found = alphas.intervals(data, ["x"], ["trainers"]).loc[(5, "x")]
    mean, low, _ = interval([1.0, 2.0, 3.0])
    assert (
        found.tolist() == pytest.approx([2, mean - low, smallest_effect(mean - low, 3)])
        and found["tells"] > found["+-"]
    )
