"""Readers: nodes that make the batches for the workers, who train on the same ones and wait less for them."""

import pytest

import lib
from lib import Failure, LocalCluster, Node, VirtualCluster, workloads
from lib.cluster.base import nbytes
from lib.errors import BadOption
from tests.toys import clicks

CLICKS = clicks(16 * 41 - 5, 16, evaluation_samples=100)
BATCHES = sum(nbytes(CLICKS.batch(0, index)) for index in range(CLICKS.batches()))
BOWL = workloads.get("quadratic", samples=40, batch_size=1)


@pytest.mark.parametrize("protocol", ["sync", "all-reduce", "ds-sync"])
def test_a_run_learns_the_same_from_readers_batches(protocol):
    cluster = VirtualCluster(workers=3, servers=2, server=Node(reading=1e-4))
    alone, served = (lib.train(CLICKS, protocol, cluster, reader_nodes=many, save=False) for many in (0, 2))
    assert served.digest == alone.digest and served.summary["auc"] == alone.summary["auc"]
    assert served.summary["bytes_by_kind"] == {**alone.summary["bytes_by_kind"], "batches": BATCHES}
    work = served.usage.set_index("name").filter(like="reader", axis=0)
    assert list(work.index) == ["reader0", "reader1"] and (work["computed"] > 0).all()


def test_readers_are_real_on_threads():
    virtual = lib.train(CLICKS, "sync", VirtualCluster(workers=3), save=False)
    for protocol in ("sync", "s-easgd"):
        local = lib.train(CLICKS, protocol, LocalCluster(workers=3), reader_nodes=2, save=False)
        assert local.summary["bytes_by_kind"]["batches"] == BATCHES
        assert local.summary["samples"] == CLICKS.samples
        assert protocol != "sync" or local.digest == virtual.digest


@pytest.mark.parametrize("store", [{}, {"ids": "samples"}], ids=["without places", "with places"])
def test_a_timing_run_sends_batches_of_the_same_size(store):
    options = {"reader_nodes": 2, "store": lib.RowStore(**store), "save": False}
    there = VirtualCluster(workers=3)
    real, timed = (lib.train(CLICKS, "async", there, gradients=each, **options) for each in (True, False))
    for name in ("bytes_by_kind", "virtual_seconds", "input_seconds"):
        assert timed.summary[name] == real.summary[name]


@pytest.mark.parametrize(
    "readers, prefetch, reading, cores, seconds",
    [
        (0, 0, 1, 1, 40),  # each of two workers reads and computes 20 batches, a second each
        (0, 2, 1, 1, 40),  # and ahead on the one core that it has
        (0, 2, 1, 2, 22),  # or on another core, where computing begins behind the first readings
        (1, 2, 1, 1, 41),  # one core reads 40 batches, the last of which is then computed
        (2, 2, 1, 1, 21),  # the first batch is waited for, then computing is all
        (4, 2, 1, 1, 21),
        (4, 2, 2, 1, 22),  # two readers make batches for a worker at the same time
        (2, None, 1, 1, 21),  # with readers, workers read ahead
        (4, 0, 1, 1, 40),  # unless they are told not to
    ],
)
def test_enough_readers_hide_reading(readers, prefetch, reading, cores, seconds):
    second = Node(cores=cores, flops=BOWL.work().flops, core_memory=1e30, reading=reading, latency=0)
    cluster = VirtualCluster(workers=2, worker=second, server=Node(reading=reading, latency=0))
    run = lib.train(BOWL, "async", cluster, feed="split", reader_nodes=readers, prefetch=prefetch, save=False)
    assert run.summary["virtual_seconds"] == pytest.approx(seconds, rel=1e-3)
    if seconds == 21:
        assert run.summary["input_seconds"] == pytest.approx(2, rel=1e-2)


@pytest.mark.parametrize("protocol", ["gba", "s-easgd"])
def test_a_reader_that_dies_takes_the_run_back_to_its_cut(protocol, reports):
    dies = Failure(node="reader1", kind="dies", at=0.02, lasts=0.01)
    cluster = VirtualCluster(workers=3, server=Node(reading=1e-4), failures=[dies])
    run = lib.train(CLICKS, protocol, cluster, reader_nodes=2, checkpoint_every=160, save=False)
    assert run.summary["returns_to_a_cut"] == 1 and run.summary["samples"] == CLICKS.samples
    for_ever = VirtualCluster(workers=3, failures=(Failure(node="reader0", kind="dies", at=0.001),))
    with pytest.raises(lib.errors.NodeLost, match="reader0"):
        lib.train(CLICKS, protocol, for_ever, reader_nodes=2, save=False)


def test_a_device_has_no_cores_that_could_read():
    with pytest.raises(BadOption, match="reading is a core's"):
        Node(device=lib.Device(flops=1e12, memory=1e11), reading=1e-3)
