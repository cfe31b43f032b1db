"""Threads that train on one replica and its optimiser's state."""

import threading
import time
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from lib import LocalCluster, Node, VirtualCluster
from lib.protocols import get
from lib.protocols.baselines import Async
from lib.protocols.mixing import Background, Centre, Loop, Mean
from lib.store.optim import SGD
from lib.tasks.flat_model import Batch
from tests.drivers.composing import BOWL, ends, records, rule, train
from tests.toys import Letters


def test_threads_share_a_replica_and_a_nodes_cores():
    """Four threads on four cores: four times the steps a second; on one core they take turns."""
    shadow = get("s-easgd")
    node = {cores: VirtualCluster(workers=2, worker=Node(flops=1e4, cores=cores)) for cores in (1, 4)}
    one, turns, four = (
        train(replace(shadow, worker_threads=threads), BOWL, node[cores]).summary["qps"]
        for threads, cores in ((1, 4), (4, 1), (4, 4))
    )
    assert turns == pytest.approx(one, rel=0.1) and four == pytest.approx(4 * one, rel=0.1)


def test_no_step_of_any_thread_is_lost():
    """Every step adds 1; replicas that do not mix have them all, whatever the threads did at the same time."""
    alone = rule(when=Loop(every=10), rows=Async(), merge=lambda self, memory, mine, mix: (memory, mine))
    for cluster in (VirtualCluster(workers=2, worker=Node(cores=3)), LocalCluster(workers=2, threads=4)):
        final, _ = ends(Letters(samples=60), replace(alone, worker_threads=3), cluster)
        assert final.sum() == 60


def keep_both(self, centre, message):
    return centre, message


@pytest.mark.parametrize("exchange", [Mean(), Centre()], ids=["together", "each"])
def test_threads_mix_as_one_or_each_for_itself(exchange):
    """12 steps of 3 threads, a mix every second step: 6 of the replica, or 2 of each thread with its 4 steps."""
    mixing = rule(exchange=exchange, when=Loop(every=2), worker_threads=3, update_centre=keep_both)
    workload = replace(BOWL, samples=4 * 24)
    run = train(mixing, workload, VirtualCluster(workers=2, worker=Node(flops=1e4, cores=3)))
    mixes = run.trace[run.trace["kind"] == "mix"].groupby("node").size()
    assert mixes.tolist() == [6, 6]
    assert run.summary["sync_gap"] == 2


def test_threads_that_mix_as_one_do_so_once_when_the_time_has_come():
    """Not once for each thread that begins a step meanwhile."""
    workload = replace(BOWL, samples=4 * 240)
    cluster = VirtualCluster(workers=2, worker=Node(flops=1e4, cores=3))
    step = workload.work().flops / 1e4
    run = train(rule(when=Loop(seconds=6 * step), worker_threads=3), workload, cluster)
    mixes = run.trace[run.trace["kind"] == "mix"].groupby("node")["end"]
    assert mixes.size().min() >= 3 and mixes.apply(lambda ends: ends.diff().min()).min() >= 5.9 * step


def test_threads_stand_still_while_their_replica_is_replaced():
    """Every step adds 1, and a mean keeps the sum: a step between the sending and the merging would be lost."""
    mixing = rule(when=Loop(every=4), rows=Async(), worker_threads=3)
    final, _ = ends(Letters(samples=60), mixing, VirtualCluster(workers=2, worker=Node(cores=3), slowdown=0.5))
    assert final.sum() == pytest.approx(60, abs=1e-4)


def test_a_merge_in_the_background_stops_no_thread_and_undoes_no_step():
    """Every step adds 1 while merges, which change nothing, take their time."""

    def slow(self, memory, mine, mix):
        time.sleep(0.02)
        return memory, mine

    shadow = rule(exchange=Mean(ahead=False), when=Background(), rows=Async(), worker_threads=3, merge=slow)
    parts = records(Letters(samples=300), shadow, LocalCluster(workers=2, threads=4))
    assert sum(part.final["replica"]["values"].sum() for part in parts if "replica" in part.final) == 300
    assert sum(part.extra["updates during a merge"] for part in parts) > 0


def test_what_a_shadow_sent_stays_as_it_was_while_the_worker_trains():
    sent, moved = [], []

    def send(self, memory, mine, round):
        sent.append(mine.copy())
        return mine

    def merge(self, memory, mine, mix):
        assert any(np.array_equal(mix.sent, each) for each in sent)
        moved.append(not np.array_equal(mine, mix.sent))
        return memory, mine + mix.theirs - mix.sent

    shadow = rule(exchange=Mean(ahead=False), when=Background(), rows=Async(), send=send, merge=merge)
    step = Letters().work().flops / 1e3
    cluster = VirtualCluster(workers=2, worker=Node(flops=1e3, latency=2 * step), slowdown=0.6)
    records(Letters(samples=60), shadow, cluster)
    assert any(moved), "it trains while it mixes"


class Meets(torch.nn.Module):
    """Three threads meet in its forward pass, or nobody comes out."""

    meet = threading.Barrier(3, timeout=300)

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(200_000))

    def forward(self, batch, rows):
        self.meet.wait()
        time.sleep(0.02)
        return self.w.sum()

    def loss(self, batch, scores):
        return -scores.sum()


@dataclass(frozen=True, kw_only=True)
class StepsThatMeet(Letters):
    """Steps of 20 ms without a processor, which three threads make together."""

    name: ClassVar = "steps-that-meet"
    samples: int = 12
    dense_optimizer: SGD = field(default=SGD(lr=1.0))

    def tables(self):
        return {}

    def model(self, seed):
        return Meets()

    def draw(self, seed, first, size, index):
        return Batch.of(index=index, raw={}, size=1, features={})

    def evaluation_ids(self, seed, day=None):
        return {}

    def evaluate(self, model, rows, seed, day=None):
        return {"loss": float(model.w.detach()[0])}


def test_threads_are_real_on_a_real_machine():
    run = train(rule(worker_threads=3, when=Loop(every=12)), StepsThatMeet(), LocalCluster(workers=1, threads=3))
    assert run.summary["loss"] == 12


def test_a_merge_and_an_update_never_start_from_the_same_values():
    """A shadow that puts back what it took, slowly: without a gate it would take back the steps made meanwhile."""

    def merge(self, memory, mine, mix):
        time.sleep(0.01)
        return memory, mine

    shadow = rule(worker_threads=3, exchange=Centre(), when=Background(), update_centre=keep_both, merge=merge)
    run = train(shadow, replace(StepsThatMeet(), samples=30), LocalCluster(workers=1, threads=3))
    assert run.summary["loss"] == 30


@pytest.mark.parametrize("threads, waits", [(1, 0.0), (2, 0.8)])
def test_the_rendezvous_answers_while_the_one_thread_of_a_worker_computes(threads, waits):
    """A step takes a second, and question and answer 0.8; threads that mix as one cannot ask before all are done."""
    worker = Node(flops=BOWL.work().flops, cores=threads, latency=0.0, bandwidth=1e30, core_memory=1e30)
    cluster = VirtualCluster(workers=2, worker=worker, nodes={"master": Node(latency=0.4, bandwidth=1e30)})
    trace = train(rule(when=Loop(), worker_threads=threads), BOWL, cluster).trace
    waited = trace[(trace["kind"] == "wait") & (trace["end"] < trace["end"].max() - 1)]
    assert len(waited) > 4 and (waited["end"] - waited["start"]).min() == pytest.approx(waits, abs=1e-3)
