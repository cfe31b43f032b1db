"""Differences run by run."""

import pandas as pd
import pytest

from notebooks import study


def test_each_run_is_held_against_that_of_its_own_seed():
    """Worlds 0.5 apart, modes 0.1: unpaired, the spread of the worlds would hide them."""
    rows = [("sync", 1, 0.5), ("sync", 2, 1.0), ("async", 1, 0.4), ("async", 2, 0.9), ("async", 3, 0.7)]
    data = pd.DataFrame(rows, columns=["protocol", "seed", "auc"])
    found = study.differences(data, ["auc"], ["seed"], protocol="sync")
    assert found["auc less sync's"].tolist()[:4] == pytest.approx([0, 0, -0.1, -0.1])
    assert found["auc less sync's"].isna().tolist() == [False] * 4 + [True], "nobody to be held against"
    assert "auc less sync's" not in data
