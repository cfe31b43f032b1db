"""Averaging in buckets beside backward: the same bits, sooner."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import lib
from lib import LocalCluster, Lognormal, Node, VirtualCluster, workloads
from lib.drivers.trainer import FORWARD
from lib.errors import BadOption
from lib.protocols.all_reduce import AllReduce
from lib.protocols.baselines import Async
from lib.protocols.dssync import DSSync
from lib.protocols.mixing import Mean
from lib.tasks.flat_model import FlatModel
from tests.drivers.composing import rule as composed
from tests.toys import clicks

CLICKS = clicks(2_000, 50, hidden=(32, 16))


def test_buckets_cover_the_gradient_once_from_its_end_and_a_step_tells_them_in_order():
    model, batch = FlatModel(CLICKS.model(0)), CLICKS.batch(0, 0)
    rows = {name: np.zeros((ids.size, CLICKS.tables()[name].dim), np.float32) for name, ids in batch.ids.items()}
    whole = model.step(batch, rows).dense
    for count in (*range(1, 13), "tensor"):
        buckets, told = model.buckets(count), []
        result = model.step(batch, rows, buckets, lambda k, part, told=told: told.append((k, part)))
        assert buckets[0].stop == model.size and buckets[-1].start == 0
        assert all(later.stop == earlier.start for earlier, later in pairwise(buckets))
        assert [k for k, _ in told] == list(range(len(buckets)))
        assert all(np.array_equal(part, result.dense[buckets[k]].numpy()) for k, part in told)
        assert torch.equal(result.dense, whole)
        if count == "tensor":
            sizes = [parameter.numel() for parameter in model.module.parameters()]
            assert [part.stop - part.start for part in buckets] == sizes[::-1]
        else:
            assert min(count, 3) <= len(buckets) <= count
    assert torch.equal(model.step(batch, rows).dense, whole)  # hooks are gone


@pytest.mark.parametrize("kind", [VirtualCluster, LocalCluster])
def test_the_result_is_the_same_to_the_bit(kind):
    rules = [AllReduce(buckets=buckets) for buckets in (1, 2, 5, "tensor")]
    rules += [AllReduce(buckets=buckets, overlapped=False) for buckets in (2, "tensor")]
    assert len({lib.train(CLICKS, rule, kind(workers=3), save=False).digest for rule in rules}) == 1
    averages = [DSSync(buckets=buckets) for buckets in (1, 3, "tensor")]
    assert len({lib.train(CLICKS, rule, kind(workers=4), save=False).digest for rule in averages}) == 1


@pytest.mark.parametrize("rule, members", [(AllReduce, 4), (DSSync, 2)])
def test_collectives_after_backward_follow_each_other(rule, members):
    """Each of a ring's 2 (N - 1) steps takes a latency, and so it does in each collective of a tensor."""
    task, latency = workloads.get("cifar10-wrn", samples=4 * 5 * 8, batch_size=8), 0.1
    tensors = len(FlatModel(task.model(0)).buckets("tensor"))
    fast = {"flops": 1e30, "core_memory": 1e30, "bandwidth": 1e30}
    nodes = {"worker": Node(latency=latency, **fast), "server": Node(latency=0.0, **fast)}
    there = VirtualCluster(workers=4, collective="ring", **nodes)

    def seconds(**options):
        return lib.train(task, rule(**options), there, save=False, gradients=False).summary["virtual_seconds"]

    more = {"overlapped": False} if rule is AllReduce else {}
    apart = seconds(buckets="tensor", **more) - seconds()
    assert tensors > 20 and apart == pytest.approx(5 * (tensors - 1) * 2 * (members - 1) * latency)


@pytest.mark.parametrize("exchange, collectives", [(Mean(), 1), (Mean(buckets=2), 2), (Mean(buckets=3), 3)])
def test_parameters_travel_in_one_collective_unless_their_rule_says_otherwise(exchange, collectives):
    """Each of a ring's 2 (N - 1) steps takes a latency."""
    node = Node(latency=0.1, flops=1e30, core_memory=1e30, bandwidth=1e30)
    there = VirtualCluster(workers=4, collective="ring", worker=node)
    trace = lib.train(CLICKS, composed(exchange=exchange, rows=Async()), there, save=False, gradients=False).trace
    mixes = trace[trace["kind"] == "mix"]
    took = (mixes["end"] - mixes["start"]).to_numpy()
    assert len(took) > 8 and took == pytest.approx(collectives * 2 * 3 * 0.1, rel=1e-4)


def test_the_time_of_a_step_by_hand():
    """Bucket k is averaged from when it is ready and the one before is through; the last ends the step. The rows that
    travel over the same interface cost another few percent."""
    assert len(FlatModel(workloads.get("quadratic").model(0)).buckets(8)) == 1  # one parameter: nothing to overlap
    workers, bandwidth = 4, 2e5
    compute = CLICKS.work().flops / 1e6
    node = Node(flops=1e6, bandwidth=bandwidth, latency=0.0)

    def step(buckets):
        cluster = VirtualCluster(workers=workers, worker=node, slowdown=Lognormal(sigma=0.0))
        run = lib.train(CLICKS, AllReduce(buckets=buckets), cluster, save=False)
        starts = run.trace[(run.trace["kind"] == "compute") & (run.trace["node"] == "worker0")]["start"].to_numpy()
        mixes = run.trace[(run.trace["kind"] == "mix") & (run.trace["node"] == "worker0")]["end"].to_numpy()
        return (mixes - starts).mean()

    sizes = [bucket.stop - bucket.start for bucket in FlatModel(CLICKS.model(0)).buckets(3)]
    ring = [2 * (workers - 1) / workers * 4 * size / bandwidth for size in sizes]
    done, end = 0, 0.0
    for size, seconds in zip(sizes, ring, strict=True):
        done += size
        end = max(end, compute * (FORWARD + (1 - FORWARD) * done / sum(sizes))) + seconds
    assert step(3) == pytest.approx(end, rel=0.04)
    assert step(1) == pytest.approx(compute + sum(ring), rel=0.04)
    assert end < compute + sum(ring) - 0.9 * ring[0]


def test_no_bucket_is_no_option():
    with pytest.raises(BadOption, match="buckets must be at least 1"):
        AllReduce(buckets=0)
