"""Running statistics of batch normalisation: part of what a replica holds, mixed as its rule reads them."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lib
from lib import LocalCluster, Phase, Schedule, VirtualCluster, workloads
from lib.errors import BadOption
from lib.protocols import get
from lib.protocols.mixing import Centre
from lib.tasks.quadratic import Quadratic, QuadraticBowl
from lib.tasks.workload import evaluate
from tests.drivers.composing import rule
from tests.toys import finals, records
from tests.training.stopping import assert_same, killed

READINGS = ("naive", "pooled", "none")
MEANS, VARIANCES = (0, 2, 4, 10), (1, 2, 3, 2)
"""What each of four workers has seen after its first step; later ones show nothing new."""
SMALL = {"samples": 6 * 8, "batch_size": 8, "side": 8, "evaluation_samples": 40, "classes": 3}
IMAGES = workloads.get("cifar10-wrn", norm="running", **SMALL)
UNEVEN = VirtualCluster(workers=4, slowdown=0.7)


class Seen(Quadratic):
    """A bowl that keeps a mean and a variance of what its batches tell."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.register_buffer("running_mean", torch.zeros(1))
        self.register_buffer("running_var", torch.ones(1))

    def forward(self, batch, rows):
        self.running_mean += batch.features["told"][0, 0]
        self.running_var += batch.features["told"][0, 1]
        return super().forward(batch, rows)


@dataclass(frozen=True, kw_only=True)
class ReportingQueue(QuadraticBowl):
    name: ClassVar = "telling"

    def model(self, seed):
        there = super().model(seed)
        return Seen(matrix=there.matrix, optimum=there.optimum, start=there.weights.detach())

    def draw(self, seed, first, size, index):
        batch = super().draw(seed, first, size, index)
        place = first // 4
        told = np.float32([MEANS[place], VARIANCES[place] - 1] if place < 4 else [0, 0])
        return replace(batch, features={**batch.features, "told": np.tile(told, (size, 1))})

    def evaluate(self, model, rows, seed, day=None):
        here = {"mean": model.running_mean.item(), "variance": model.running_var.item(), "training": model.training}
        return super().evaluate(model, rows, seed, day) | here


def bowl(steps, workers=4):
    return ReportingQueue(samples=4 * steps * workers, batch_size=4, dim=3)


def left(protocol, steps, workers=4):
    """Each worker's mean and variance at the end."""
    final = finals(records(bowl(steps, workers), protocol, VirtualCluster(workers=workers)))
    return [tuple(final[f"worker{rank}/replica"]["values"][-2:].tolist()) for rank in range(workers)]


def test_one_mix_by_hand():
    assert left(get("ds-sync"), 1) == [(1, 1.5), (1, 1.5), (7, 2.5), (7, 2.5)]
    assert left(get("ds-sync", buckets="tensor"), 1) == left(get("ds-sync", buckets=2), 1) == left(get("ds-sync"), 1)
    assert left(get("ds-sync", half=True), 1) == [(1, 1.5), (1, 1.5), (7, 2.5), (7, 2.5)]
    assert left(get("ds-sync", statistics="pooled"), 1) == [(1, 2.5), (1, 2.5), (7, 11.5), (7, 11.5)]
    own = list(zip(MEANS, VARIANCES, strict=True))
    assert left(get("ds-sync", statistics="none"), 1) == left(get("all-reduce"), 1) == own


@pytest.mark.parametrize("options", [{}, {"buckets": 2}, {"buckets": "tensor", "overlapped": False}], ids=repr)
def test_gradients_may_bring_them(options):
    """The mean of all four, in every step: 4, of variances 2, and 14 for the variance of the means."""
    for steps in (1, 2):
        assert left(get("all-reduce", statistics="naive", **options), steps) == [(4, 2)] * 4
    assert left(get("all-reduce", statistics="pooled", **options), 1) == [(4, 16)] * 4
    sent = {True: [], False: []}
    for gradients in sent:
        for each in ("none", "naive"):
            made = get("all-reduce", statistics=each, **options)
            run = lib.train(bowl(2), made, VirtualCluster(workers=4), gradients=gradients, save=False)
            sent[gradients].append(run.summary["bytes_by_kind"]["mix gradients"])
    assert sent[True] == sent[False] == [4 * 2 * 4 * 3, 4 * 2 * 4 * 5]


@pytest.mark.parametrize("place", ["before", "beside", "after"])
def test_after_two_steps_everyone_has_the_pooled_statistics_of_all(place):
    """The mean is 4, of variances 2, the variance of means 14; a mix before the step lags by one."""
    steps = 2 if place == "after" else 3
    assert left(get("ds-sync", statistics="pooled", place=place), steps) == [(4, 16)] * 4
    assert left(get("ds-sync", statistics="naive", place=place), steps) == [(4, 2)] * 4


def test_what_is_evaluated_is_the_model_with_its_statistics():
    def shown(name, steps, **options):
        run = lib.train(bowl(steps), get(name, **options), VirtualCluster(workers=4), save=False)
        return [run.summary[key] for key in ("mean", "variance", "mean_of_average", "variance_of_average", "training")]

    assert shown("ds-sync", 1, statistics="pooled") == [1, 2.5, 4, 16, False]
    assert shown("ds-sync", 1) == [1, 1.5, 4, 2, False]
    assert shown("all-reduce", 1)[:2] == [0, 1]


def test_what_goes_over_to_another_phase_is_pooled_too():
    phases = (Phase(protocol=get("ds-sync", statistics="pooled"), until_samples=16), Phase(protocol=get("all-reduce")))
    run = lib.train(bowl(3), Schedule(phases=phases), VirtualCluster(workers=4), save=False)
    assert run.summary["mean"] == 4 and run.summary["variance"] == 16


def test_readings_train_the_same_parameters_and_so_does_a_model_without_statistics():
    """They are looked at in evaluations alone."""
    runs = [finals(records(IMAGES, get("ds-sync", statistics=each), UNEVEN)) for each in READINGS]
    runs.append(finals(records(replace(IMAGES, norm="settled"), get("ds-sync"), UNEVEN)))
    trained = [run["worker2/replica"]["values"][: runs[-1]["worker2/replica"]["values"].size] for run in runs]
    assert all(np.array_equal(each, trained[-1]) for each in trained)


@pytest.mark.parametrize("name, options", [("ds-sync", {}), ("all-reduce", {"overlapped": False})])
def test_they_are_behind_the_last_of_several_buckets(name, options):
    """A network has many tensors, where the bowl has one, which no bucket cuts."""
    made = [get(name, statistics="naive", buckets=buckets, **options) for buckets in (1, "tensor")]
    once, apart = (finals(records(IMAGES, rule, UNEVEN))["worker2/replica"]["values"] for rule in made)
    np.testing.assert_array_equal(once, apart)


def test_one_worker_is_plain_torch():
    run = lib.train(IMAGES, "ds-sync", VirtualCluster(workers=1), save=False)
    model = IMAGES.model(0)
    own = IMAGES.dense_optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=own.lr, momentum=own.momentum)
    for index in range(IMAGES.batches()):
        batch = IMAGES.batch(0, index).to(torch.device("cpu"))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch, {}), batch.labels)
        decay = sum(parameter.square().sum() for parameter in model.parameters())
        (loss + 0.5 * IMAGES.weight_decay * decay).backward()
        optimizer.step()
    expected = evaluate(IMAGES, model.eval(), {}, 0)
    assert {name: run.summary[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    final = finals(records(IMAGES, get("ds-sync"), VirtualCluster(workers=1)))["worker0/replica"]["values"]
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    running = torch.cat([norm.running_mean for norm in norms] + [norm.running_var for norm in norms]).numpy()
    np.testing.assert_allclose(final[-running.size :], running, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "protocol",
    [get("ds-sync", statistics="pooled"), get("all-reduce", buckets=2), get("all-reduce", statistics="naive")],
    ids=repr,
)
def test_a_cut_has_them(protocol, reports, monkeypatch):
    options = {"evaluations": 3, "checkpoint_every": 12, "save": False}
    workload = bowl(5)
    whole = lib.train(workload, protocol, UNEVEN, **options)
    with killed(monkeypatch, 13):
        lib.train(workload, protocol, UNEVEN, **options)
    assert list((reports / "checkpoints").glob("*/stage-0000.pt"))
    assert_same(lib.train(workload, protocol, UNEVEN, resume=True, **options), whole)
    assert whole.summary["mean"] == (0 if protocol.statistics == "none" else 4)


@pytest.mark.parametrize("gradients", [True, False])
def test_messages_weigh_what_they_carry(gradients):
    """Three parameters and two statistics, of four bytes or two each; a timing run sends as much."""
    rules = [(get("ds-sync", statistics=each), 4 * (3 if each == "none" else 5)) for each in READINGS]
    for sender, size in [*rules, (get("ds-sync", half=True), 2 * 5)]:
        run = lib.train(bowl(2), sender, VirtualCluster(workers=4), gradients=gradients, save=False)
        assert run.summary["bytes_by_kind"]["mix dense"] == 4 * 2 * size


def test_threads_of_a_real_cluster_have_them():
    run = lib.train(bowl(2), get("ds-sync", statistics="pooled"), LocalCluster(workers=4), save=False)
    assert (run.summary["mean"], run.summary["variance"]) == (4, 16)


@pytest.mark.parametrize("name", ["sync", "async", "gba", "s-easgd", "s-ma", "prague"])
def test_rules_that_do_not_say_what_a_mix_makes_of_them_refuse_them(name):
    words = rf"{name}: the model's running statistics \('running_mean'\) .* ds-sync, all-reduce"
    with pytest.raises(BadOption, match=words):
        lib.train(bowl(2), name, VirtualCluster(workers=2), save=False)


def test_a_rule_without_groups_in_the_loop_cannot_say_it():
    with pytest.raises(BadOption, match="mine: running statistics are mixed by groups in the loop"):
        rule(exchange=Centre(), statistics="naive", rows="local", name="mine")


def test_a_norm_that_weighs_by_its_count_of_batches_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Counted(ReportingQueue):
        def model(self, seed):
            model = super().model(seed)
            model.norm = torch.nn.BatchNorm1d(2, momentum=None)
            return model

    with pytest.raises(BadOption, match="norm 'norm' has momentum=None"):
        lib.train(Counted(samples=8, batch_size=4, dim=3), "ds-sync", VirtualCluster(workers=1), save=False)
