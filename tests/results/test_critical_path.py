"""The critical path on traces that a reader can follow."""

from __future__ import annotations

import pandas as pd
import pytest

import lib
from lib import Node, VirtualCluster
from lib.results.critical_path import breakdown, critical_path


def trace(*rows):
    return pd.DataFrame(rows, columns=["node", "kind", "start", "end", "batch"])


def test_a_barrier_is_explained_by_the_slowest():
    path = critical_path(
        trace(
            ("worker0", "compute", 0, 1, 0),
            ("worker1", "compute", 0, 3, 1),
            ("server0", "apply", 3, 4, 0),
            ("worker0", "wait", 1, 4, 2),
            ("worker0", "compute", 4, 5, 2),
        )
    )
    assert list(zip(path["node"], path["kind"], strict=True)) == [
        ("worker1", "compute"),
        ("server0", "apply"),
        ("worker0", "compute"),
    ]
    assert breakdown(path).to_dict() == {"compute": 0.8, "apply": 0.2, "idle": 0.0}


def test_a_gap_that_nothing_explains_is_idle():
    path = critical_path(trace(("worker0", "compute", 0, 1, 0), ("worker0", "compute", 3, 4, 1)))
    assert breakdown(path)["idle"] == 0.5


def test_an_empty_trace():
    assert breakdown(critical_path(trace())).empty


@pytest.mark.parametrize(("bandwidth", "dominant"), [(1e12, "compute"), (1e5, "pull")])
def test_the_bottleneck_of_a_run_shows(bandwidth, dominant):
    node = Node(flops=1e7, bandwidth=bandwidth, latency=0.0)
    cluster = VirtualCluster(workers=4, worker=node, server=node)
    run = lib.train("ctr-synthetic", "sync", cluster, samples=2_000, save=False)
    shares = breakdown(critical_path(run.trace))
    assert shares.sum() == pytest.approx(1, abs=0.05)
    assert shares.idxmax() in (dominant, "push" if dominant == "pull" else dominant)
