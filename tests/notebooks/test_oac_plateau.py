"""When a curve is near its plateau, and what a row of the page's table is read off."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lib
from notebooks import study
from notebooks.oac import plateau


def test_seconds_to_a_height():
    """A quarter of the way from 0.2 at 10 s to 0.4 at 20 s, and on the way from nothing to the first point."""
    times, values = [10.0, 20.0, 30.0], [0.2, 0.4, 0.3]
    assert plateau.seconds_to(times, values, 0.25) == pytest.approx(12.5)
    assert plateau.seconds_to(times, values, 0.1) == pytest.approx(5.0)
    assert plateau.seconds_to(times, values, 0.41) == math.inf


def test_a_curve_that_falls_back_was_there_before():
    assert plateau.seconds_to([1.0, 2.0, 3.0], [0.4, 0.1, 0.4], 0.4) == pytest.approx(1.0)


def test_a_plateau_is_the_mean_of_ten_evaluations_and_what_learns_nothing_is_evaluated_once():
    few = plateau.Study(2, plateau.SMALL)
    assert few.job("setup 1", "oac", 3)["evaluations"] == study.marks(4)
    assert few.job("setup 1", plateau.UNTRAINED, 3)["evaluations"] == 1


def test_rows_that_meet_in_the_paper():
    """2 of 86 million rows and 79 other batches; 1 of 86 and 19."""
    assert plateau.paper_conflicts("setup 1") == pytest.approx(1 - (84 / 86) ** 79)
    assert plateau.paper_conflicts("setup 2") == pytest.approx(1 - (85 / 86) ** 19)


def test_rows_of_the_table():
    """On a small graph: OAC is replayed to the byte, never loses what a serial run has, and counts what meets."""
    made = plateau.Study(1, plateau.SMALL)
    places = study.grid(seed=[3], setting=["setup 2"], mode=("sequential", "pipelined", "oac", plateau.UNTRAINED))
    jobs = [made.job(**place) for place in places]
    data = plateau.claim_table(places, lib.sweep(jobs), jobs).set_index("mode")
    assert data.loc["oac", "equal"] == 1 and data["equal"].notna().sum() == 1
    assert data.loc["sequential", "mrr over sequential's"] == 1
    assert data.loc["oac", "seconds"] < data.loc["sequential", "seconds"]
    assert (data["met"] == data.loc["oac", "conflicts"]).all() and data.loc["oac", "conflicts"] > 0.5
    assert data.loc["oac", "brings"] == data.loc["sequential", "mrr"] - data.loc[plateau.UNTRAINED, "mrr"]


def test_a_real_graph_has_the_skew_that_it_has(monkeypatch):
    assert "20 of 256, flat" in plateau.Study(1).around
    monkeypatch.setattr(plateau.page, "data", lambda: "folder")
    assert not any("flat" in name or "steep" in name for name in plateau.Study(1).around)


def test_where_asynchrony_is_measurably_worse():
    """Two settings, three seeds each: below one by 0.1 with little spread, and around one; in the order of what meets."""
    ratios = {"often": [0.9, 0.91, 0.89], "seldom": [1.0, 1.01, 0.99]}
    rows = [
        {"mode": "pipelined", "setting": name, "met": met, "mrr over sequential's": x}
        for name, met in (("often", 0.8), ("seldom", 0.2))
        for x in ratios[name]
    ]
    found = plateau.by_conflicts(pd.DataFrame(rows))
    assert list(found.index) == ["seldom", "often"]
    assert found["measurably worse"].to_list() == [False, True]
    half = 4.303 * 0.01 / np.sqrt(3)
    assert found.loc["often", "to"] == pytest.approx(0.9 + half, abs=1e-4)
    assert plateau.edge(found) == "Measurably worse at 80% of the rows; not shown at 20%."
    assert plateau.edge(found[found["measurably worse"]]) == "Measurably worse at 80% of the rows."
    assert plateau.edge(found[~found["measurably worse"]]) == "Nowhere measurably worse."


def test_a_setting_without_a_shown_loss_may_have_more_conflicts_than_one_with_a_loss():
    found = pd.DataFrame({"rows that meet": [0.36, 0.37, 0.5, 0.82], "measurably worse": [True, False, True, True]})
    edge = "Measurably worse at 36% of the rows and at 2 of the 3 settings with more; not shown at 37%."
    assert plateau.edge(found) == edge


def test_early_is_where_sequential_has_what_the_paper_has_after_an_epoch():
    """0.7175 of 0.73: of a plateau of 1 the second point, whatever the others have there."""
    curves = {"sequential": [0.5, 0.99, 1.0, 1.0, 1.0, 1.0], "pipelined": [0.1, 0.7, 0.8, 0.9, 0.9, 0.9]}
    places = [{"seed": 3, "setting": "setup 1", "mode": mode} for mode in curves]
    provenance = {"workload": {"batch_size": 8}}
    runs = [
        SimpleNamespace(
            history=pd.DataFrame({"time": range(1, 7), "mrr": mrr}),
            summary={},
            provenance=provenance,
            steady_qps=80.0,
            history_column=lambda metric: metric,
            quality=lambda metric, mrr=mrr: mrr[-1],
        )
        for mrr in curves.values()
    ]
    data = plateau.claim_table(places, runs, [{}, {}]).set_index("mode")
    assert data["early"].to_dict() == {"sequential": 0.99, "pipelined": 0.7}
    assert data["seconds"].to_dict() == pytest.approx({"sequential": 1.816, "pipelined": 4.0}, abs=1e-3)


def test_tuned_asynchrony_is_tuned_by_how_soon_it_is_near(monkeypatch):
    """Of made-up courses: few in flight learn as one batch after another, many sooner but less; four are near soonest."""

    def tried(job, figure, axes, seeds, **whose):
        asked.append((axes, whose["mode"], seeds))
        first = {name: values[0] for name, values in axes.items()}
        made = job(setting="setup 1", mode=whose["mode"][0], seed=0, **first)
        asked.append((made["protocol"].in_flight, made["workload"].row_optimizer.lr))
        run = SimpleNamespace(history=pd.DataFrame({"time": [10.0, 20.0], "mrr": [0.4, 0.5]}))
        return figure(run, setting="setup 1", mode=whose["mode"][0])

    asked = []
    monkeypatch.setattr(plateau.grid_search, "curve", tried)
    index = pd.MultiIndex.from_product([["setup 1"], ["sequential"]])
    found = pd.DataFrame({"rate": 0.3, "value": 0.5}, index=index)
    values = plateau.Study(1, plateau.SMALL).by_hand(found)
    assert values == pytest.approx((1 / 15, 1 / 15))  # 0.45, half of the way from 10 to 20 s
    assert asked[1] == (2, 0.3) and asked[3] == (2, 0.03)  # sequential's rate, then one of its own
