"""Persia's Figure 6: times to an AUC in runs."""

import pytest

import lib
from notebooks import study
from notebooks.persia import convergence, tasks


def test_runs_are_held_against_sync_of_their_seed():
    places = study.grid(task=["taobao"], protocol=("sync", "hybrid", "async (32)", "frozen"), seed=[0])
    runs = [lib.train(**tasks.job(**place, samples=8_000, evaluations=4), save=False) for place in places]
    data = convergence.time_to_auc(places, runs).set_index("protocol")
    assert list(data.index) == ["sync", "hybrid", "async (32)"] and data.loc["sync", "times as fast as sync"] == 1
    ends = [run.quality("expected_auc") for run in runs]
    assert data["goal"].tolist() == [pytest.approx(ends[0] - 0.1 * (ends[0] - ends[3]))] * 3
    assert 0 < data.loc["sync", "seconds"] < runs[0].summary["virtual_seconds"]
    assert data.loc["async (32)", "times as fast as sync"] == 0 < data.loc["hybrid", "times as fast as sync"]


def test_a_slow_look_up_holds_sync_up_and_not_the_hybrid():
    pace = {}
    for mode in ("sync", "hybrid"):
        usual, slow = (convergence.slow_server_job("taobao", mode, 0, wait, samples=8_000) for wait in (0.0, 0.03))
        assert usual == tasks.job("taobao", mode, 0, samples=8_000)
        pace[mode] = [lib.train(**job, save=False).summary["virtual_seconds"] for job in (usual, slow)]
    steps = 8_000 / 64 / 8
    assert pace["sync"][1] - pace["sync"][0] > steps * 0.03 and pace["hybrid"][1] - pace["hybrid"][0] < steps * 0.01


def test_rarer_ids_have_fewer_samples_each():
    found = convergence.by_rareness(["sync", "hybrid"], (1, 16), [0], 2_000)
    assert (found["sync"] == 0).all() and found["hybrid"].notna().all()
    assert found.index[0] > 1.4 * found.index[1]
