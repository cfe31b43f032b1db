"""A workload's mistakes are named where they are made: each was trained on, or ended in a traceback, before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import lib
from lib import LocalCluster, VirtualCluster
from lib.errors import BadOption
from lib.workloads.ctr import ClickThrough

SMALL = {"samples": 256, "batch_size": 32, "vocabulary": 20, "fields": 2, "hidden": (4,), "evaluation_samples": 100}


def train(workload, protocol="sync", cluster=None):
    return lib.train(workload, protocol, cluster or VirtualCluster(workers=2), save=False)


@dataclass(frozen=True, kw_only=True)
class Mine(ClickThrough):
    """Clicks, and one mistake."""

    name: ClassVar = "mine"
    mistake: str

    def model(self, seed):
        model = super().model(seed)
        if self.mistake == "norm":
            model.deep = torch.nn.Sequential(model.deep, torch.nn.BatchNorm1d(1))
        if self.mistake == "counts":
            model.register_buffer("seen", torch.zeros(1))
            model.register_forward_hook(lambda module, *_: setattr(module, "seen", module.seen + 1))
        if self.mistake == "seed":
            torch.nn.init.normal_(next(model.parameters()))
        return None if self.mistake == "no model" else model

    def draw(self, seed, first, size, index):
        if self.mistake == "dry" and first >= 128:
            raise StopIteration
        batch = super().draw(seed, first, size, index)
        if self.mistake == "list":
            return [batch]
        if self.mistake == "labels":
            return replace(batch, labels=batch.labels[1:])
        if self.mistake == "size":
            return super().draw(seed, first, size + 1, index)
        if self.mistake == "table":
            return replace(batch, ids={**batch.ids, "usr": np.arange(3)})
        return batch

    def evaluate(self, model, rows, seed, day=None):
        found = super().evaluate(model, rows, seed, day)
        return {"none": None, "words": {"auc": "good"}, "number": found["auc"]}.get(self.mistake, found)


WORDS = {
    "counts": r"buffer 'seen' changes in a step: .*lib\.models\.layers\.Norm",
    "seed": r"workload 'mine': model\(seed=0\) gives another model each time; .*torch\.manual_seed",
    "no model": r"workload 'mine': model must return a torch\.nn\.Module, not None",
    "dry": r"workload 'mine': draw\(first=128, size=32\) ran dry: StopIteration\(\); .* with samples=128",
    "list": r"workload 'mine': draw\(first=0, size=32\) must return a Batch, .* not \[",
    "labels": r"draw\(first=0, size=32\) returned a batch of size 32 with 31 labels",
    "size": r"draw\(first=0, size=32\) returned a batch of size 33 with 33 labels",
    "table": r"draw\(first=0, size=32\) has ids of a table 'usr', which tables\(\) does not name; there: ",
    "words": r"evaluate must return metrics by name, as {'auc': 0\.7}, not {'auc': 'good'}",
    "number": r"evaluate must return metrics by name, as {'auc': 0\.7}, not 0\.\d+",
}


@pytest.mark.parametrize("mistake", WORDS)
def test_a_mistake_is_named(mistake):
    with pytest.raises(BadOption, match=WORDS[mistake]):
        train(Mine(mistake=mistake, **SMALL))


def test_what_is_advised_where_a_stream_ends_helps():
    run = lib.train(Mine(mistake="dry", **SMALL), "sync", VirtualCluster(workers=2), samples=128, save=False)
    assert run.summary["samples"] == 128


@pytest.mark.parametrize("protocol", ["sync", "s-easgd", "oac"])
@pytest.mark.parametrize("cluster", [VirtualCluster, LocalCluster])
def test_running_statistics_are_refused_in_every_family(protocol, cluster):
    """torch's BatchNorm1d reached an AUC of 0.75 where 0.89 is right, without a word."""
    with pytest.raises(BadOption, match=rf"{protocol}: the model's running statistics \('deep\.1\.running_mean'\)"):
        train(Mine(mistake="norm", **SMALL), protocol, cluster(workers=None if protocol == "oac" else 2))


def test_a_model_that_draws_from_the_global_stream_and_is_right_may():
    @dataclass(frozen=True, kw_only=True)
    class Seeded(ClickThrough):
        def model(self, seed):
            torch.manual_seed(seed)
            model = super().model(seed)
            torch.nn.init.normal_(next(model.parameters()), std=0.1)
            return model

    assert train(Seeded(**SMALL)).digest == train(Seeded(**SMALL)).digest
