"""Curves, their best settings, and jobs at them, by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from notebooks import grid_search

BEST = {"sync": (3, 1), "async": (1, 9)}


@pytest.fixture
def curve(monkeypatch):
    """Of two modes on two tasks, whose best rates are known; seeds differ by more than rates do."""

    def swept(jobs):
        assert all(job["on_nan"] == "skip" for job in jobs)
        return [SimpleNamespace(**job) for job in jobs]

    def quality(run, task, protocol):
        assert (run.task, run.protocol) == (task, protocol)
        return run.seed - sum(abs(x / y - 1) for x, y in zip((run.dense, run.rows), BEST[protocol], strict=True))

    monkeypatch.setattr(grid_search, "sweep", swept)
    rates = {"dense": (0.3, 1, 3), "rows": (0.3, 1, 3)}
    return grid_search.curve(dict, quality, rates, [0, 10], task=("a", "b"), protocol=("sync", "async"))


def test_the_best_is_inside_even_where_the_grid_did_not_have_it(curve):
    found = grid_search.best(curve)
    assert found.loc[("a", "sync"), ["dense", "rows"]].tolist() == [3, 1]
    assert found.loc[("b", "async"), "dense"] == 1 and found.loc[("b", "async"), "rows"] == pytest.approx(9, abs=1.1)
    assert found["inside"].eq(1).all() and found.loc[("a", "sync"), "value"] == 5


def test_modes_run_at_their_own_best_or_all_at_the_bases(curve):
    own, one = (grid_search.at_best(dict, curve, "sync", alike) for alike in ((), ("sync", "async")))
    assert own(task="a", protocol="sync", seed=7) == {"task": "a", "protocol": "sync", "seed": 7, "dense": 3, "rows": 1}
    assert own(task="a", protocol="async")["dense"] == 1
    assert one(task="a", protocol="async")["dense"] == 3
    for made in (own, one):
        assert made(task="a", protocol="frozen") == {"task": "a", "protocol": "frozen"}, "nothing of it was tuned"


def test_an_axis_goes_on_within_its_limits(monkeypatch):
    monkeypatch.setattr(grid_search, "sweep", lambda jobs: [SimpleNamespace(**job) for job in jobs])
    found = grid_search.curve(
        dict, lambda run, **_: run.alpha, {"alpha": (0.25, 0.5)}, [0], limits={"alpha": (0, 1)}, mode=["a"]
    )
    assert sorted(found["alpha"]) == [0.25, 0.5, 1] and found["inside"].all(), "an alpha of 1 is the last, and no edge"


def test_quality_against_the_settings_tried_by_hand():
    values = {1.0: (0.5, 0.7), 3.0: (0.4, 0.4), 9.0: (0.9, 0.9)}
    rows = [(rate, seed, x, True, "a", "gba") for rate, of in values.items() for seed, x in enumerate(of)]
    rows += [(1.0, 0, 0.2, False, "a", "sync"), (3.0, 0, 0.3, False, "a", "sync")]
    curve = pd.DataFrame(rows, columns=["rate", "seed", "value", "inside", "task", "mode"])
    found = grid_search.budget(curve)
    assert found[found["mode"] == "gba"][["tried", "value"]].values.tolist() == [[1, 0.6], [2, 0.6], [3, 0.9]]
    assert found[found["mode"] == "sync"][["tried", "value"]].values.tolist() == [[1, 0.2], [2, 0.3]]
    assert grid_search.edges(curve) == ["a, sync"]


def test_a_setting_that_failed_on_one_seed_is_not_the_best():
    values = {1.0: (0.9, np.nan), 3.0: (0.5, 0.5)}
    rows = [(rate, seed, x, True, "gba") for rate, of in values.items() for seed, x in enumerate(of)]
    curve = pd.DataFrame(rows, columns=["rate", "seed", "value", "inside", "mode"])
    assert grid_search.best(curve).loc["gba", "rate"] == 3.0
    assert grid_search.budget(curve)["value"].tolist() == pytest.approx([np.nan, 0.5], nan_ok=True)


def test_the_figure_says_the_budget_that_all_modes_had(curve, reports):
    shown = grid_search.show_budget(curve, "dssync/tables")
    least = grid_search.budget(curve).groupby(["task", "protocol"])["tried"].max().min()
    assert f"at least {least} settings. Each best is inside its grid." in shown.html
