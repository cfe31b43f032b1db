"""Learning rates that fall on the way: what falls, when, and under which rules."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import lib
from lib import Phase, Schedule
from lib.errors import BadOption
from lib.store.optim import SGD, Adagrad, Adam, Momentum
from lib.tasks.flat_model import FlatModel
from lib.tasks.quadratic import QuadraticBowl
from tests.toys import weights

TINY = {"samples": 32 * 24, "batch_size": 32, "fields": 3, "vocabulary": 40, "dim": 4, "hidden": (8,)}
DENSE, ROWS = Momentum(lr=0.05), Adam(lr=0.02)
OPTIMIZERS = {"dense_optimizer": DENSE, "row_optimizer": ROWS}
CLICKS = lib.workloads.get("ctr-synthetic", evaluation_samples=200, lr_gamma=0.2, **OPTIMIZERS, **TINY)
HALF = replace(CLICKS, lr_milestones=(0.5,))


def train(workload, protocol, workers=4, **options):
    cluster = lib.VirtualCluster(workers=workers, servers=2)
    return lib.train(workload, protocol, cluster, save=False, **options)


@pytest.mark.parametrize(
    ("rule", "workers"),
    [("sync", 4), ("gba", 4), ("all-reduce", 4), ("async", 1), ("ds-sync", 1), ("hybrid", 1), ("oac", 1)],
)
def test_a_milestone_is_a_phase_of_another_rate(rule, workers):
    # Where nothing is under way at the milestone a switch of phases leaves no trace, so the two must agree to the bit.
    protocol = lib.protocols.get("hybrid", tau=0) if rule == "hybrid" else rule
    phases = (
        Phase(protocol=protocol, until_samples=CLICKS.samples // 2),
        Phase(protocol=protocol, dense_optimizer=DENSE.scale_lr(0.2), row_optimizer=ROWS.scale_lr(0.2)),
    )
    by_phase = train(CLICKS, Schedule(phases=phases), workers, keep=True)
    falls = train(HALF, protocol, workers, keep=True)
    assert all(np.array_equal(a, b) for a, b in zip(weights(by_phase), weights(falls), strict=True))
    assert falls.digest != train(CLICKS, protocol, workers).digest


def test_rates_fall_as_torch_has_them_fall():
    rates = {"dense_optimizer": SGD(lr=0.1), "lr_milestones": (0.3, 0.6), "lr_gamma": 0.5}
    task = QuadraticBowl(samples=8 * 20, batch_size=8, **rates)
    run = lib.train(task, "sync", lib.VirtualCluster(workers=1), save=False, keep=True)
    model = FlatModel(task.model(0))
    parameter = torch.nn.Parameter(model.vector.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    falling = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 12], 0.5)
    for index in range(20):
        model.load(parameter.detach())
        parameter.grad = model.step(task.batch(0, index), {}).dense
        optimizer.step()
        falling.step()
    np.testing.assert_allclose(run.model.dense["values"], parameter.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adagrad(lr=0.1)])
@pytest.mark.parametrize(("rule", "first"), [("hop-bw", 1), ("async", 1), ("ds-sync", 2)])
def test_from_the_milestone_on_nothing_is_learnt_at_a_rate_of_nothing(optimizer, rule, first):
    # Of eight evaluations by samples that were settled; half of hop-bw's are thrown away, and count as trained on.
    task = replace(CLICKS, dense_optimizer=optimizer, row_optimizer=optimizer, lr_milestones=(0.25,), lr_gamma=1e-12)
    protocol = lib.protocols.get("hop-bw", spare=2) if rule == "hop-bw" else rule
    losses = train(task, protocol, evaluations=8).history["logloss"].dropna().to_numpy()
    assert losses[first:] == pytest.approx(losses[-1], rel=1e-4)
    assert losses[0] != pytest.approx(train(CLICKS, protocol).summary["logloss"], rel=1e-4)


def test_a_timing_run_knows_of_rates():
    assert train(HALF, "gba", gradients=False).summary["qps"] == train(HALF, "gba").summary["qps"]


def test_a_share_is_not_an_epoch():
    with pytest.raises(BadOption, match=r"lr_milestones\[0\] must be at most 1, not 60"):
        lib.workloads.get("ctr-synthetic", lr_milestones=(60, 120))
