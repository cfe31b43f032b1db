"""The norms of updates, as a run writes them down."""

import numpy as np
import pytest

import lib
from lib.tasks.flat_model import FlatModel
from lib.tasks.quadratic import QuadraticBowl

BOWL = QuadraticBowl(samples=48, batch_size=8, dim=6)


def train(protocol, workload=BOWL, **cluster):
    return lib.train(workload, protocol, lib.VirtualCluster(**cluster), seed=3, save=False)


def applied(run):
    return run.trace[run.trace["kind"] == "apply"].groupby("batch")["norm"]


@pytest.mark.parametrize("servers", [1, 2])
def test_an_update_has_the_norm_of_its_mean_gradient(servers):
    model = FlatModel(BOWL.model(3))
    gradients = np.stack([model.step(BOWL.batch(3, index), {}).dense.numpy() for index in range(3)])
    first = applied(train("sync", workers=3, servers=servers)).get_group(0)
    assert len(first) == servers  # a server has the norm of its share
    assert np.linalg.norm(first) == pytest.approx(np.linalg.norm(gradients.mean(0)), rel=1e-6)


def test_every_update_has_one_and_nothing_else_has():
    run = train("async", workers=3)
    norms = applied(run)
    assert norms.size().tolist() == [1] * 6 and norms.first().gt(0).all()
    assert run.trace.loc[run.trace["kind"] != "apply", "norm"].isna().all()


def test_where_workers_hold_the_dense_parameters_servers_have_no_norms():
    clicks = lib.workloads.get("ctr-synthetic", samples=1_000, evaluation_samples=100)
    assert train("all-reduce", clicks, workers=2).trace["norm"].isna().all()
