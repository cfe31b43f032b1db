"""What GBA, its relatives and S-EASGD do to a number, told again in a few lines of plain Python and held against whole runs.

The gradients of these workloads do not depend on the parameters: so what a run ends with says which gradients were applied,
with what weight, over what divisor and in which order, and nothing else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from lib import Node, VirtualCluster, protocols
from lib.data.batch import Batch
from lib.store.optim import SGD, Adagrad
from tests.toys import Climb, Letters, finals, records


class Pull(Climb):
    """Loss = -c (sum of the rows + w): every gradient of batch b is -c(b), whatever the parameters are."""

    def loss(self, batch: Batch, scores: torch.Tensor) -> torch.Tensor:
        return -(batch.features["force"] * scores).sum()


def force(batch: int) -> float:
    """Different in every batch, so that no two gradients can stand for each other."""
    return 1 + batch / 64


@dataclass(frozen=True, kw_only=True)
class Forces(Letters):
    """Some letters are read by most batches, others by few: their timestamps lag behind the global step."""

    name: ClassVar[str] = "forces"

    samples: int = 96
    reads: tuple[str, ...] = ("abc", "abd", "ae", "abf", "ag", "abch", "a", "abd")
    row_optimizer: SGD | Adagrad = field(default=SGD(lr=1.0))

    def model(self, seed: int) -> Pull:
        return Pull()

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        batch = super().draw(seed, first, size, index)
        return replace(batch, features={"force": np.array([force(index)], np.float32)})

    def letters(self, batch: int) -> list[int]:
        return [ord(letter) for letter in self.reads[batch % len(self.reads)]]


def noting(rule):
    """The same rule, and the list in which it notes the updates that it decides."""
    noted = []

    class Noting(type(rule)):
        def on_push(self, state, push):
            after, decisions = super().on_push(state, push)
            noted.extend(each for each in decisions if hasattr(each, "weights"))
            return after, decisions

        def on_leave(self, state, worker):
            after, decisions = super().on_leave(state, worker)
            noted.extend(each for each in decisions if hasattr(each, "weights"))
            return after, decisions

    return Noting(**{each.name: getattr(rule, each.name) for each in fields(rule)}), noted


def trained(rule, workload, workers, seed):
    noted_rule, noted = noting(rule)
    cluster = VirtualCluster(workers=workers, slowdown=1.0, server=Node(cores=8))
    final = finals(records(workload, noted_rule, cluster, seed))
    rows = final["server0/rows"]["letter"]
    return (
        final["server0/dense"][0]["values"].item(),
        dict(zip(rows.ids.tolist(), rows.values[:, 0], strict=True)),
        noted,
    )


def algorithm_2(workload: Forces, noted, iota: float) -> tuple[float, Mapping[int, float], Counter]:
    """GBA's Algorithm 2, lines 17 to 23, for the updates' pushes in order: w, the rows, and what was decayed."""
    w, rows, sums, stamps, decayed = 0.0, defaultdict(float), defaultdict(float), defaultdict(int), Counter()
    for step, update in enumerate(noted):
        total, met, kept, gathered = 0.0, Counter(), set(), defaultdict(float)
        for push in update.pushes:
            keep = step - push.token <= iota  # line 20
            total += keep * force(push.batch)
            decayed["rows, had they the dense weight"] += (not keep) * len(workload.letters(push.batch))
            for letter in workload.letters(push.batch):
                keep = stamps[letter] - push.token <= iota  # line 21: by the step at which its id was last updated
                gathered[letter] += keep * force(push.batch)
                decayed["rows"] += not keep
                met[letter] += 1
                kept |= {letter} if keep else set()
        w += total / len(update.pushes)  # line 22: over N_a
        for letter in kept:  # what nothing is left of is not updated
            gradient = gathered[letter] / met[letter]  # line 23: over the workers that met the id
            sums[letter] += gradient**2
            rate = 1 / (np.sqrt(sums[letter]) + 1e-10) if isinstance(workload.row_optimizer, Adagrad) else 1
            rows[letter] += rate * gradient
            stamps[letter] = step + 1  # the version of the parameters that it belongs to
    return w, rows, decayed


@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), Adagrad(lr=1.0)], ids=["sgd", "adagrad"])
@pytest.mark.parametrize("iota", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_gba_is_algorithm_2_row_by_row(optimizer, iota, seed):
    workload = Forces(row_optimizer=optimizer)
    w, rows, noted = trained(protocols.get("gba", iota=iota, size=4), workload, workers=6, seed=seed)
    expected_w, expected_rows, decayed = algorithm_2(workload, noted, iota)
    assert decayed["rows, had they the dense weight"] > decayed["rows"] > 0  # so the one is not the other
    assert w == pytest.approx(expected_w, rel=1e-5)
    assert rows == pytest.approx(expected_rows, rel=1e-5)


@pytest.mark.parametrize("name, options", [("sync", {}), ("bsp", {"size": 3}), ("hop-bw", {"spare": 2})])
@pytest.mark.parametrize("divided", ["met", "all"])
def test_a_mean_is_over_those_who_met_the_id_or_over_all(name, options, divided):
    """The same without decay; or every row's gradient over the update's divisor."""
    rule = protocols.get(name, rows_divided_by=divided, **options)
    w, rows, noted = trained(rule, workload := Forces(), workers=6, seed=1)
    expected = defaultdict(float)
    for update in noted:
        met = Counter(letter for push in update.pushes for letter in workload.letters(push.batch))
        for push in update.pushes:
            for letter in workload.letters(push.batch):
                expected[letter] += force(push.batch) / (met[letter] if divided == "met" else len(update.pushes))
    assert rows == pytest.approx(expected, rel=1e-5)
    assert w == pytest.approx(sum(force(p.batch) / len(u.pushes) for u in noted for p in u.pushes), rel=1e-5)


@pytest.mark.parametrize("name", ["async", "hop-bs"])
def test_what_is_applied_at_arrival_is_applied_once(name):
    """Adagrad's sum sees each gradient once, so a row ends where its gradients lead in the order of the updates."""
    workload = Forces(row_optimizer=Adagrad(lr=1.0))
    w, rows, noted = trained(protocols.get(name), workload, workers=6, seed=2)
    assert Counter(push.batch for update in noted for push in update.pushes) == Counter(range(96))
    assert w == pytest.approx(sum(map(force, range(96))), rel=1e-5)
    sums, expected = defaultdict(float), defaultdict(float)
    for update in noted:
        for letter in workload.letters(update.pushes[0].batch):
            sums[letter] += force(update.pushes[0].batch) ** 2
            expected[letter] += force(update.pushes[0].batch) / np.sqrt(sums[letter])
    # Updates that run side by side may begin in another order than they were decided.
    assert rows == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("alpha", [0.25, 0.5])
@pytest.mark.parametrize("servers", [1, 2])
def test_s_easgd_is_its_two_interpolations_in_the_order_in_which_they_happened(alpha, servers, workers=3):
    """Algorithm 2 of ShadowSync, both lines, replayed from when the replicas stepped and mixed and the centre answered."""
    rule = protocols.get("s-easgd", alpha=alpha, sync_servers=servers)
    # An answer takes longer than a step, so that steps are made meanwhile.
    distant = {f"sync{number}": Node(latency=2e-3) for number in range(servers)}
    cluster = VirtualCluster(workers=workers, slowdown=0.8, nodes=distant)
    workload = Forces(samples=240)
    parts = records(workload, rule, cluster, seed=4)
    spans = [(part.node, *span) for part in parts for span in part.spans]
    events = [(end, node, "step", label) for node, kind, _, end, label in spans if kind == "apply" and "worker" in node]
    events += [(start, node, "send", None) for node, kind, start, _, _ in spans if kind == "mix"]
    events += [(end, node, "merge", None) for node, kind, _, end, _ in spans if kind == "mix"]
    # One float is all on the last of the sync servers.
    events += [(start, f"worker{rank}", "meet", None) for node, kind, start, _, rank in spans
               if kind == "absorb" and node == f"sync{servers - 1}"]  # fmt: skip
    replicas, centre, sent, answers, meanwhile = defaultdict(float), 0.0, {}, {}, 0
    order = ("step", "meet", "merge", "send")  # of what happens at one moment: the next mix begins when one ends
    for _, node, what, batch in sorted(events, key=lambda event: (event[0], order.index(event[2]))):
        if what == "step":
            replicas[node] += force(batch)
        elif what == "send":
            sent[node] = replicas[node]
        elif what == "meet":
            centre = answers[node] = (1 - alpha) * centre + alpha * sent[node]
        else:
            meanwhile += replicas[node] != sent[node]
            replicas[node] = (1 - alpha) * replicas[node] + alpha * answers[node]
    assert meanwhile > 10
    assert sum(event[2] == "merge" for event in events) > 30
    final = finals(parts)
    for rank in range(workers):
        assert final[f"worker{rank}/replica"]["values"].item() == pytest.approx(replicas[f"worker{rank}"], rel=1e-4)
    assert final[f"sync{servers - 1}/centre"].item() == pytest.approx(centre, rel=1e-4)
