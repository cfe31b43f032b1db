"""DS-Sync's theory and its tables of accuracy, against numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lib.papers.dssync import quality, theory


def test_a_step_without_noise_by_hand(monkeypatch):
    monkeypatch.setattr(theory, "NOISE", 0.0)
    found = {rule: theory.course(rule, 4, 3, 0) for rule in theory.RULES}
    for course in found.values():  # equal workers stay equal, whoever averages
        pd.testing.assert_series_equal(course["distance"], found["bsp"]["distance"])
        assert course["apart"].max() < 1e-20
    first = found["ds-sync"].iloc[0]
    least, most = ((1 - theory.rate(1) * c) ** 2 * theory.FAR**2 for c in (1.0, theory.MU))
    assert least < first["distance"] < most


def test_bounds_by_hand():
    found = pd.DataFrame({"step": [1, 2], "gradient": [2.0, 1.0]})
    limits = theory.bounds(found, 4)
    v = max(4 * (16 / 2 + 8 * 2) / 0.0625, 33 * 9)
    np.testing.assert_allclose(limits["distance"], [v / 33, v / 34])
    np.testing.assert_allclose(limits["loss"], limits["distance"] / 2)
    assert limits["loss, Eq. 21"].iloc[0] == pytest.approx(8 / 33 * (24 / 0.25 + 18))


def test_one_deviation_below_bsp_by_hand():
    best = {"BSP": [0.5, 0.7], "DS-Sync": [0.6, 0.4]}
    data = pd.DataFrame(
        [{"task": "images", "mode": m, "seed": s, "best": b[s]} for m, b in best.items() for s in (0, 1)]
    )
    above = quality.judged(data).set_index(["subject", "seed"])["above"]
    floor = 0.6 - np.std([0.5, 0.7], ddof=1)
    assert above["images, DS-Sync", 0] == pytest.approx(0.6 - floor) and above["images, DS-Sync", 1] == pytest.approx(
        0.4 - floor
    )


def test_all_modes_try_the_same_rates_on_the_same_data():
    jobs = [quality.job("clicks", mode, 3.0, 7, 5, 2) for mode in (*quality.MODES, quality.FROZEN)]
    assert len({job["workload"] for job in jobs}) == 1 and jobs[0]["workload"].world == 7
    own = quality.TASKS["clicks"].workload
    assert jobs[0]["workload"].dense_optimizer.lr == pytest.approx(3 * own.dense_optimizer.lr)
    assert jobs[0]["workload"].batches() == 4 * 5
