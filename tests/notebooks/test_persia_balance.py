"""Persia's load balance: what is foretold, by hand, and that runs keep to it."""

import numpy as np
import pytest

import lib
from notebooks import loads
from notebooks.persia import balance

SHAPE = {"batch": 64, "steps": 60, "width": 128}


def test_what_is_foretold_by_hand():
    """Of servers that are 0.8 busy where even, one with half as much again leaves 1 / 1.2 of the pace; with a tenth more, all."""
    assert balance.predict(np.array([1.0, 1.0])) == {"imbalance": 1.0, "pace": 1.0}
    assert balance.predict(np.array([1.5, 0.5])) == {"imbalance": 1.5, "pace": pytest.approx(1 / 1.2)}
    assert balance.predict(np.array([2.2, 1.8]))["pace"] == 1.0


def test_every_row_is_asked_of_one_server_whatever_the_placement():
    task = balance.workload(0, 64, 4, 128)
    rows = sum(ids.size for each in balance.distinct_ids(task, 0) for ids in each.values())
    for placement in balance.PLACEMENTS:
        work = balance.requests(placement, 4, 0, task)
        assert work.sum() == rows and work.size == 4


def test_a_full_server_sets_the_pace_and_even_ones_do_not():
    """Five bytes for every byte of a row, as a quarter more than the GPUs need: 0.8 of the time where work is even."""
    free = lib.train(**balance.free_job(0, **SHAPE), save=False)
    pace, found = balance.late_pace(free), {}
    for placement in ("feature groups", "uniform shuffle"):
        run = lib.train(**balance.job(placement, 8, 0, pace, **SHAPE), save=False)
        found[placement] = balance.figures(placement, 8, 0, run, pace, **SHAPE)
        assert found[placement]["imbalance"] == pytest.approx(found[placement]["imbalance foretold"], rel=0.05)
        assert found[placement]["pace"] == pytest.approx(found[placement]["pace foretold"], rel=0.1)
    groups, shuffle = found.values()
    assert groups["imbalance"] > 1.5 > 1.05 > shuffle["imbalance"] and groups["queue"] > 2 * shuffle["queue"]
    assert shuffle["busiest"] == pytest.approx(loads.LOAD, abs=0.06) and groups["busiest"] > 0.9
