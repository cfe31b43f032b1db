"""What GBA's tables of speed are fitted to and read off, with numbers that can be checked by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lib
from notebooks.gba import throughput
from notebooks.gba.tasks import TASKS


def test_a_spread_is_found_between_two_that_were_tried():
    tried = {0.2: math.exp(-1), 0.4: math.exp(-2), 0.6: math.exp(-4)}
    assert throughput.fit_sigma(tried, math.exp(-2)) == pytest.approx(0.4)
    assert throughput.fit_sigma(tried, math.exp(-3)) == pytest.approx(0.5)
    assert throughput.fit_sigma(tried, math.exp(-1.5)) == pytest.approx(0.3)


def test_at_the_three_times_a_worker_of_async_is_as_fast_as_the_paper_says():
    """A lognormal factor takes exp(sigma^2 / 2) times as long on average; drawn as well as computed."""
    z = np.random.default_rng(1).standard_normal(1_000_000)
    speeds = {time: 1 / np.exp(sigma * z).mean() for time, sigma in throughput.STATUS.items()}
    assert throughput.STATUS["normal"] == pytest.approx(throughput.SIGMA)
    assert speeds["busy"] / speeds["normal"] == pytest.approx(78 / 90, rel=0.005)
    assert speeds["quiet"] / speeds["normal"] == pytest.approx(99 / 90, rel=0.005)


def test_how_far_a_worker_is_behind_the_fastest():
    """Fast ends at 1, 2, 3, 4; slow at 2.5 and 4.5, with 1 where fast has 2, and 2 where it has 4. Of six batches the first
    is left out of the mean."""
    rows = [("fast", end) for end in (1, 2, 3, 4)] + [("slow", 2.5), ("slow", 4.5)]
    trace = pd.DataFrame(rows, columns=["node", "end"]).assign(kind="compute")
    run = SimpleNamespace(trace=pd.concat([trace, trace.assign(kind="push")]))
    assert throughput.lags(run) == {"mean": pytest.approx(3 / 5), "max": 2}


def test_under_hop_bs_nobody_is_more_steps_behind_than_its_bound():
    job = TASKS["criteo"].at("smoke").speed_job("smoke", "hop-bs", 1, 1.0, 6) | {"trace": True, "save": False}
    mean, most = throughput.lags(lib.train(**job)).values()
    assert 0 < mean < most == TASKS["criteo"].bound


def test_of_the_slow_quarter_is_said_what_is_used_and_how_old_it_is():
    worker = {"gradients": 10, "decayed": 0, "dropped": 0, "staleness": 1.0}
    slow = {"gradients": 4, "decayed": 1, "dropped": 2, "staleness": 7.0}
    run = SimpleNamespace(
        summary={"by_worker": {"worker0": worker, "worker1": slow, "worker2": worker, "worker3": worker}}
    )
    found = throughput.slow_quarter(run)
    assert (found["slow: used"], found["others: used"], found["slow_used"]) == (0.25, 1.0, 0.25)
    assert (found["slow: age"], found["others: age"]) == (7.0, 1.0)


def test_rows_on_the_workers_machines_are_the_same_training_from_all_to_all():
    """A quarter of the rows is on the machine that reads it: over the machines' interfaces go the others, and the ring."""
    few = lib.VirtualCluster(workers=4, servers=1, slowdown=0.6)
    task = lib.workloads.get("ctr-synthetic", samples=4 * 64 * 10, batch_size=64)
    one, all_ = (
        lib.train(task, "all-reduce", cluster, seed=500, keep=True, save=False)
        for cluster in (few, throughput.rows_on_workers(few))
    )
    assert np.array_equal(one.model.dense["values"], all_.model.dense["values"])
    assert all(np.array_equal(rows.values, all_.model.rows[table].values) for table, rows in one.model.rows.items())
    kinds = all_.summary["bytes_by_kind"]
    crossing = all_.usage.loc[all_.usage["name"].str.startswith("uplink"), "bytes_sent"].sum()
    rows = sum(size for kind, size in kinds.items() if kind != "mix gradients")
    ring = 2 * 3 / 4 * kinds["mix gradients"]  # which counts every worker's vector once
    assert crossing == pytest.approx(ring + 0.75 * rows, rel=0.01)  # messages without rows or gradients are the rest
