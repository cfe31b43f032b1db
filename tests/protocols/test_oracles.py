"""What GBA, its relatives and S-EASGD do to a number, told again in a few lines of plain Python and held against whole runs.

The gradients of these workloads do not depend on the parameters: so what a run ends with says which gradients were applied,
with what weight, over what divisor and in which order, and nothing else.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import Node, VirtualCluster, protocols
from lib.drivers.shard import _mean
from lib.protocols.gba import GBA
from lib.protocols.server_rule import Push
from lib.store.optim import SGD, Adagrad
from lib.tasks.flat_model import Batch
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
            return self._noted(super().on_push(state, push))

        def on_leave(self, state, worker):
            return self._noted(super().on_leave(state, worker))

        def _noted(self, result):
            noted.extend(each for each in result[1] if hasattr(each, "weights"))
            return result

    return Noting(**{each.name: getattr(rule, each.name) for each in fields(rule)}), noted


def trained(rule, workload, workers, seed):
    noted_rule, noted = noting(rule)
    cluster = VirtualCluster(workers=workers, slowdown=1.0, server=Node(cores=8))
    final = finals(records(workload, noted_rule, cluster, seed))
    rows = final["server0/rows"]["letter"]
    found = dict(zip(rows.ids.tolist(), rows.values[:, 0], strict=True))
    return final["server0/dense"][0]["values"].item(), found, noted


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


@given(
    pushes=st.lists(st.tuples(st.integers(0, 6), st.floats(-1, 1, width=32)), min_size=1, max_size=60),
    size=st.integers(1, 6),
    iota=st.integers(0, 3),
)
def test_gba_s_weighted_sum_may_be_made_in_advance(pushes, size, iota):
    """Appendix B: a gradient's weight, and a row's, are known when it arrives, since no step ends before its update does. So one
    running sum is the sum of all M gradients at the update, to rounding."""
    rule = GBA(iota=iota, size=size)
    state, gradients, in_advance = rule.init(6), {}, np.zeros(1, np.float32)
    for place, (token, gradient) in enumerate(pushes):
        batch = place * 37 % 61  # batches arrive in another order than their own
        push = Push(worker=place % 6, token=token, batch=batch)
        gradients[push.batch] = np.array([gradient], np.float32)
        in_advance += rule._keeps(token, state.step) * gradients[push.batch]
        state, decisions = rule.on_push(state, push)
        for update in decisions:
            own = sorted(zip(update.pushes, update.weights, strict=True), key=lambda pair: pair[0].batch)
            at_once = _mean([gradients[each.batch] for each, _ in own], [weight for _, weight in own], update.divisor)
            np.testing.assert_allclose(in_advance / size, at_once, atol=1e-6)
            in_advance = np.zeros(1, np.float32)
    assert len(state.pending) == len(pushes) % size


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


ROOMY = Node(cores=3)
"""Nobody waits for a core: what takes effect does so when its span begins."""


def happened(parts):
    """When replicas stepped, sent, met the last of the sync servers and merged, in the order in which it happened."""
    spans = [(part.node, *span) for part in parts for span in part.spans]
    order = {"step": 0, "meet": 1, "merge": 2, "send": 3}  # at one moment: the next mix begins when one ends
    events = []
    for node, kind, start, end, label, _ in spans:
        if kind == "apply" and node.startswith("worker"):
            events.append((start, "step", node, label))
        if kind == "mix":
            group = tuple(other for other, also, there, *_ in spans if also == "mix" and abs(there - start) < 1e-6)
            events += [(start, "send", node, None), (max(end, start + 1e-12), "merge", node, group)]
        # One float is all on the last of the sync servers.
        events += [(start, "meet", f"worker{label}", None)] if kind == "absorb" and node == "sync1" else []
    return sorted(events, key=lambda event: (event[0], order[event[1]]))


@pytest.mark.parametrize("alpha", [0.25, 0.5])
@pytest.mark.parametrize("answer", ["new", "old"])
@pytest.mark.parametrize("name, threads", [("s-easgd", 1), ("s-easgd", 2), ("fr-easgd", 1)])
def test_easgd_is_its_two_interpolations_in_the_order_in_which_they_happened(name, threads, answer, alpha):
    """Algorithm 2 of ShadowSync, both lines, replayed from when the replicas stepped and mixed and the centre answered."""
    rule = protocols.get(name, alpha=alpha, sync_servers=2, answer=answer, worker_threads=threads)
    # An answer takes longer than a step, so that steps are made meanwhile.
    distant = {f"sync{number}": Node(latency=2e-3) for number in range(2)}
    cluster = VirtualCluster(workers=3, slowdown=0.8, worker=ROOMY, nodes=distant)
    parts = records(Forces(samples=240), rule, cluster, seed=4)
    replicas, centre, sent, answers, meanwhile, merges = defaultdict(float), 0.0, {}, {}, 0, 0
    for _, what, node, said in happened(parts):
        if what == "step":
            replicas[node] += force(said)
        elif what == "send":
            sent[node] = replicas[node]
        elif what == "meet":
            before, centre = centre, (1 - alpha) * centre + alpha * sent[node]
            answers[node] = centre if answer == "new" else before
        else:
            merges += 1
            meanwhile += replicas[node] != sent[node]
            replicas[node] = (1 - alpha) * replicas[node] + alpha * answers[node]
    assert merges > 15 and (meanwhile > 5) == (name == "s-easgd")
    assert finals(parts)["sync1/centre"].item() == pytest.approx(centre, rel=1e-4)
    assert_replicas(parts, replicas)


@pytest.mark.parametrize("eta, momentum", [(None, 0), (1.0, 0.0), (0.6, 0.0), (0.6, 0.3)])
@pytest.mark.parametrize("place, threads", [("s", 1), ("s", 2), ("fr", 1), ("fr", 2)])
def test_ma_and_bmuf_move_towards_the_mean_or_what_follows_it(place, threads, eta, momentum, alpha=0.4):
    """Algorithms 3 and 4 of ShadowSync; without eta it is model averaging."""
    options = {} if eta is None else {"eta": eta, "momentum": momentum}
    name = f"{place}-{'ma' if eta is None else 'bmuf'}"
    rule = protocols.get(name, alpha=alpha, worker_threads=threads, **options)
    parts = records(Forces(samples=240), rule, VirtualCluster(workers=3, slowdown=0.8, worker=ROOMY), seed=4)
    replicas, sent, meanwhile, groups = defaultdict(float), {}, 0, 0
    whole, steps = defaultdict(float), defaultdict(float)
    for _, what, node, said in happened(parts):
        if what == "step":
            replicas[node] += force(said)
        elif what == "send":
            sent[node] = replicas[node]
        else:
            groups += len(said) > 1
            meanwhile += replicas[node] != sent[node]
            mean = sum(sent[member] for member in said) / len(said)
            steps[node] = momentum * steps[node] + (eta or 1) * (mean - whole[node])
            whole[node] = whole[node] + steps[node] if eta else mean
            replicas[node] = (1 - alpha) * replicas[node] + alpha * whole[node]
    assert groups > 5 and (meanwhile > 5) == (place == "s")
    assert_replicas(parts, replicas)


def assert_replicas(parts, expected):
    found = {node: finals(parts)[f"{node}/replica"]["values"].item() for node in expected}
    assert len(found) == 3 and found == pytest.approx(expected, rel=1e-4)
