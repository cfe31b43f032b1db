"""A new background algorithm is one file with one rule: it trains everywhere, and nothing else was touched for it."""

import ast
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import lib
from lib import LocalCluster, VirtualCluster, protocols, workloads
from lib.command_line import main
from lib.protocols.mixing import Mix
from tests.protocols import in_parts
from tests.protocols.in_parts import InParts
from tests.protocols.test_replica_protocols import RATE, Serial, bowl, replicas, same
from tests.toys import Climb, Letters, finals, records

FILE = in_parts.__file__
CLICKS = workloads.get("ctr-synthetic", samples=16 * 41 - 3, batch_size=16, vocabulary=30, evaluation_samples=50)


def test_it_needs_one_short_class_and_the_contract():
    nodes = ast.walk(ast.parse(inspect.getsource(in_parts)))
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module.startswith("lib")}
    contract = {"baselines", "mixing", "replica_rule"}
    assert imported == {"lib.options.checked", *(f"lib.protocols.{name}" for name in contract)}
    assert len(inspect.getsource(InParts).splitlines()) <= 35
    told = [path for path in Path(lib.__file__).parent.rglob("*.py") if InParts.name in path.read_text()]
    assert not told and InParts.name not in protocols.ALL


@pytest.mark.parametrize("cluster", [VirtualCluster(workers=4, slowdown=0.6), LocalCluster(workers=2)])
def test_it_trains_in_virtual_time_and_on_real_threads(cluster):
    """From its file, by name, with its own options and those of all replica rules."""
    run = lib.train(CLICKS, FILE, cluster, parts=3, worker_threads=2, evaluations=2, save=False)
    assert run.summary["issued"] == run.summary["applied"] == 41
    assert np.isfinite(run.summary["auc"]) and (run.trace["kind"] == "mix").any()


def test_it_trains_from_the_command_line(capsys):
    arguments = ["train", "ctr-synthetic", FILE, "virtual", "--samples", "640", "-o", "parts=2", "--json"]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["digest"] == lib.train("ctr-synthetic", InParts(parts=2), "virtual", samples=640, save=False).digest


def test_what_it_says_is_checked_as_of_any_rule():
    with pytest.raises(lib.errors.BadOption, match="in-parts: parts must be"):
        lib.train(CLICKS, FILE, "virtual", parts=0, save=False)


def test_one_mix_by_hand():
    """Two halves of four numbers, half of the way; `mine` went on by 10 since it was sent."""
    rule, mine = InParts(parts=2), np.array([0.0, 2, 4, 6])
    sent = rule.send(None, mine, 3)
    assert sent.tolist() == [4, 6]
    _, moved = rule.merge(None, mine + 10, Mix(3, (0, 1), sent, np.array([8.0, 2])))
    assert moved.tolist() == [10, 12, 16, 14]


def test_its_recursion():
    """Steps that last longer than messages: a mix falls into the next step, whose gradient is that of before."""
    workers, steps, rule = 3, 9, InParts(parts=2)
    ours, _ = replicas(workload := bowl(steps, workers), rule, workers)
    serial = Serial(workload, workers)
    for round in range(-1, steps):
        gradients = serial.gradients(round + 1)
        if round >= 0:
            part = serial.x[:, rule._part(serial.x.shape[1], round)]
            part += 0.5 * (part.mean(0) - part)
        if round + 1 < steps:
            serial.x -= RATE * gradients
    same(ours, serial.x)


class Seven(Climb):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(7))

    def forward(self, batch, rows):
        return rows["letter"].sum() + self.w.sum()


@dataclass(frozen=True, kw_only=True)
class SevenLetters(Letters):
    name: ClassVar = "seven-letters"

    def model(self, seed):
        return Seven()


@pytest.mark.parametrize("cluster", [VirtualCluster(workers=3, slowdown=1.0), LocalCluster(workers=3)])
def test_it_loses_no_step_at_any_speeds(cluster):
    """Every step adds 1 to each of seven numbers, and a mix moves what it takes: the sums of all replicas count the steps."""
    parts = records(SevenLetters(samples=60), InParts(parts=3), cluster)
    final = finals(parts)
    assert sum(final[f"worker{rank}/replica"]["values"] for rank in range(3)) == pytest.approx(np.full(7, 60), abs=1e-3)
    mixed = sum(part.bytes["mix dense"] for part in parts)
    mixes = sum(len(part.steps_between_mixes) for part in parts)
    assert mixes > 0 and 2 * 4 * mixes <= mixed <= 3 * 4 * mixes  # two or three of the seven numbers each time
