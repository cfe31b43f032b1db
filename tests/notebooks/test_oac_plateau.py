"""When a curve is near its plateau, and what a row of the page's table is read off."""

from __future__ import annotations

import math

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


def test_the_plateau_is_the_last_third():
    assert plateau.plateau([0.1, 0.2, 0.3, 0.4, 0.5, 0.7]) == pytest.approx(0.6)
    assert plateau.plateau([0.1]) == 0.1


def test_rows_that_meet_in_the_paper():
    """2 of 86 million rows and 79 other batches; 1 of 86 and 19."""
    assert plateau.met("setup 1") == pytest.approx(1 - (84 / 86) ** 79)
    assert plateau.met("setup 2") == pytest.approx(1 - (85 / 86) ** 19)


def test_rows_of_the_table():
    """On a small graph: OAC is replayed to the byte, never loses what a serial run has, and counts what meets."""
    made = plateau.Study(1, None, plateau.SMALL)
    places = study.grid(seed=[3], setting=["setup 2"], mode=("sequential", "pipelined", "oac", plateau.UNTRAINED))
    jobs = [made.job(**place) for place in places]
    data = plateau.judged(places, lib.sweep(jobs), jobs).set_index("mode")
    assert data.loc["oac", "equal"] == 1 and data["equal"].notna().sum() == 1
    assert data.loc["sequential", "mrr over sequential's"] == 1
    assert data.loc["oac", "seconds"] < data.loc["sequential", "seconds"]
    assert (data["met"] == data.loc["oac", "conflicts"]).all() and data.loc["oac", "conflicts"] > 0.5
    assert data.loc["oac", "brings"] == data.loc["sequential", "mrr"] - data.loc[plateau.UNTRAINED, "mrr"]


def test_a_real_graph_has_the_skew_that_it_has():
    assert "20 of 256, flat" in plateau.Study(1).around
    assert not any("flat" in name or "steep" in name for name in plateau.Study(1, "folder").around)


def test_where_asynchrony_is_measurably_worse():
    """Two settings, three seeds each: below one by 0.1 with little spread, and around one; in the order of what meets."""
    ratios = {"often": [0.9, 0.91, 0.89], "seldom": [1.0, 1.01, 0.99]}
    rows = [
        {"mode": "pipelined", "setting": name, "met": met, "mrr over sequential's": x}
        for name, met in (("often", 0.8), ("seldom", 0.2))
        for x in ratios[name]
    ]
    found = plateau.breaks(pd.DataFrame(rows))
    assert list(found.index) == ["seldom", "often"]
    assert found["measurably worse"].to_list() == [False, True]
    half = 4.303 * 0.01 / np.sqrt(3)
    assert found.loc["often", "to"] == pytest.approx(0.9 + half, abs=1e-4)
