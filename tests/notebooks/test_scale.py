"""The page about thousands of workers: servers that grow, and what a failure costs at the real rate."""

import pandas as pd
import pytest

from notebooks import scale


def test_servers_grow_with_the_workers():
    few, many = (scale.cluster(workers).server for workers in (32, 3_200))
    assert (many.cores, many.bandwidth) == (100 * few.cores, 100 * few.bandwidth) and few.cores == 8


def test_ideal_is_the_speed_at_which_no_worker_waits():
    """Async waits for nothing but the network, Sync for the slowest of eight."""
    data, runs = scale.measure(["async", "sync"], [8], 10)
    speed = (data["samples/s"] / data["ideal"]).tolist()
    assert speed[0] == pytest.approx(1, abs=0.15) and speed[1] < 0.8
    assert data["gradients"].tolist() == [80, 80] and len(runs) == 2


def test_a_failure_costs_what_it_costs_at_the_rate_of_real_machines():
    """A run of 10,000 workers takes two steps longer; real ones fail every 5.07 hours, of which 0.02 s are a millionth."""
    columns = {"protocol": ["sync"], "workers": [10_000], "lost": [3], "seconds": [0.20]}
    without = pd.DataFrame(columns)
    found = scale.cost(without, pd.DataFrame(columns | {"seconds": [0.22]})).iloc[0]
    assert found["steps that one failure costs"] == pytest.approx(2)
    assert found["% of the time at the real rate"] == pytest.approx(100 * 0.02 / (50_700 / 10_000 * 3600))
