"""Several devices of one pipeline: who has what, what it costs, and that they leave what one batch after another does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Link, LocalCluster, Node, VirtualCluster, protocols, workloads
from lib.data.batch import Batch
from lib.drivers.pipeline_loop import Device
from lib.drivers.pipelines.host_store import HostStore
from lib.drivers.pipelines.share import shared
from lib.drivers.pipelines.team import Team
from lib.drivers.run.plan import Plan
from lib.drivers.run.trainer import Trainer
from lib.models.flat import FlatModel
from lib.protocols.oac import OAC
from lib.protocols.pipeline_rule import Admission
from lib.store.placement import Hashed
from notebooks.oac.convergence import equal
from tests.soak.cases import WORKLOADS
from tests.soak.checks import check
from tests.soak.pipelines import serial
from tests.toys import Letters, records

GRAPH = {"entities": 60, "triples": 600, "dim": 4, "batch_size": 15, "negatives": 4, "evaluation_triples": 20}
CLICKS = {"batch_size": 15, "vocabulary": 40, "fields": 3, "hidden": (8,), "evaluation_samples": 50}
ITEMS = {"batch_size": 7, "negatives": 3, "dim": 4, "hidden": (4,), "per_topic": 5, "topics": 4, "length": 3}
ITEMS |= {"evaluation_samples": 20, "evaluation_negatives": 3}
TASKS = {"kg-synthetic": GRAPH, "ctr-synthetic": CLICKS, "private-youtubednn": ITEMS}
CLUSTERS = {"virtual": VirtualCluster(), "local": LocalCluster(threads=4)}

CASE = {"protocol": "oac", "cluster": "virtual", "accesses": True, "worker.flops": 1e8, "seed": 0}
BUSY = CASE | {"in_flight": 12, "readers": 12, "writers": 12, "detour": 0.02, "samples": 240}
BUSY |= {"workload": "kg-synthetic", **WORKLOADS["kg-synthetic"]}


@given(st.integers(1, 40), st.integers(1, 7))
def test_every_sample_has_one_device(size, devices):
    parts = OAC(devices=devices).parts(size)
    assert [sample for part in parts for sample in part] == list(range(size))
    sizes = [len(part) for part in parts]
    assert sizes[0] == max(sizes) <= min(sizes) + 1


@given(st.data(), st.integers(2, 4))
def test_every_row_comes_from_its_owner(data, devices):
    """What a device gives another is what that one takes, and all that it needs is there."""
    ids, placement = st.lists(st.integers(0, 30), min_size=1, max_size=12), Hashed(shards=devices)
    drawn = [data.draw(ids)] + [data.draw(st.none() | ids) for _ in range(devices - 1)]
    parts = [each and Batch.of(index=3, raw={"t": np.array(each)}, size=len(each), features={}) for each in drawn]
    shares = [shared(parts, device, placement) for device in range(devices)]
    owned = np.concatenate([share.ids["t"] for share in shares])
    assert sorted(owned) == sorted({each for some in drawn if some for each in some})
    assert all((placement.owner("t", share.ids["t"]) == device).all() for device, share in enumerate(shares))
    assert sum(share.weight for share in shares) == pytest.approx(1)
    for device, (part, share) in enumerate(zip(parts, shares, strict=True)):
        rows = np.full(part.ids["t"].size if part else 0, -1)
        for other, places in enumerate(share.takes):
            rows[places["t"]] = shares[other].ids["t"][shares[other].gives[device]["t"]]
        assert np.array_equal(rows, part.ids["t"] if part else rows)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    devices=st.sampled_from([2, 3]),
    workload=st.sampled_from(["kg-synthetic", "ctr-synthetic"]),
    batch_size=st.sampled_from([1, 2, 5, 8]),
    limits=st.tuples(*(st.sampled_from([1, 2, 5, 12]) for _ in range(4))),
    detour=st.sampled_from([0.0, 0.003, 0.02]),
    bandwidth=st.sampled_from([1e5, 1e9]),
    optimizer=st.sampled_from(["sgd", "momentum", "adagrad", "adam"]),
    seed=st.integers(0, 20),
)
def test_any_schedule_leaves_what_a_serial_run_leaves(
    devices, workload, batch_size, limits, detour, bandwidth, optimizer, seed
):
    """Also where some devices have no samples: no anomaly, no cache beyond its bound, and every byte of a serial run."""
    options = dict(zip(("in_flight", "readers", "writers", "queue"), limits, strict=True))
    case = CASE | WORKLOADS[workload] | options | {"workload": workload, "devices": devices, "batch_size": batch_size}
    case |= {
        "samples": 20 * batch_size - batch_size // 2,
        "detour": detour,
        "worker.bandwidth": bandwidth,
        "seed": seed,
    }
    case |= {"row_optimizer": {"name": optimizer, "lr": 0.1}, "dense_optimizer": {"name": optimizer, "lr": 0.01}}
    assert check(case) is None


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("task", TASKS)
def test_all_copies_and_rows_equal_a_serial_run(task, devices, cluster):
    """A digest is of every device's copy of the dense parameters; items have two tables."""
    workload = workloads.get(task, samples=205, **TASKS[task])
    run = lib.train(workload, protocols.get("oac", devices=devices), CLUSTERS[cluster], accesses=True, save=False)
    assert equal(run, workload, devices) and run.summary["anomalies"] == {}
    assert run.summary["issued"] == run.summary["applied"] == workload.batches() and run.summary["samples"] == 205


def test_a_batch_is_admitted_once_and_written_when_all_have_written():
    """What its first device learnt of the others, its second does too, though another batch is written in between."""
    rule = OAC(devices=2)
    plan = Plan(workload=Letters(), protocol=rule, workers=1, servers=1, seed=0, on_nan="stop", trace=False)
    ids = {"letter": np.array([*b"a"])}

    async def main(world):
        store = await world.host(HostStore, plan, rule, node="server0")
        first, rows, _ = await store.read(0, ids)
        for _ in range(2):
            await store.read(1, ids)
        seen = []
        for batch in (2, 3, 4):
            seen.append((await store.read(batch, ids))[0].seen)
            if batch < 4:
                await store.write(1, 0, 1, rows)
        return first, (await store.read(0, ids))[0], seen

    first, second, seen = VirtualCluster().open(0, 1).run(main)
    assert first == second == Admission(seen=0, safe=-1) and seen == [0, 0, 1]


def test_without_validation_updates_are_lost_on_several_devices_too():
    found = lib.train(save=False, **{**_plain(BUSY), "protocol": "pipelined", "devices": 2}).summary["anomalies"]
    assert {"stale read", "lost update"} <= found.keys()


def _plain(case):
    return {name: value for name, value in case.items() if name != "detour"}


@pytest.mark.parametrize("devices", [2, 3])
def test_the_mean_of_the_parts_is_the_gradient_of_the_batch(devices):
    """Of clicks, whose samples know nothing of each other: up to rounding nothing depends on how many devices there are."""
    options = CLICKS | {"samples": 120, "save": False, "keep": True}
    one, several = (lib.train("ctr-synthetic", "sequential", "virtual", devices=n, **options) for n in (1, devices))
    for table, rows in one.model.rows.items():
        assert np.array_equal(rows.ids, several.model.rows[table].ids)
        np.testing.assert_allclose(several.model.rows[table].values, rows.values, atol=2e-5)
    np.testing.assert_allclose(several.model.dense["values"], one.model.dense["values"], atol=2e-5)
    assert several.summary["train_loss"] == pytest.approx(one.summary["train_loss"], abs=1e-5)


def test_every_stage_has_its_cost_on_every_device():
    """The first batch of the paper's example is one sample that needs a, c and f; a and f are the second device's, which computes
    nothing. A row has 4 bytes, and 16 of id and timestamp; every message has a header of 64."""
    split = [each.tolist() for each in Hashed(shards=2).split("letter", np.array([*b"acf"]))]
    assert split == [[1], [0, 2]]
    links = [Link(ends=("server0", f"worker{device}"), bandwidth=100.0) for device in range(2)]
    device = Node(flops=1e6, core_memory=60.0, bandwidth=10.0, latency=0.5)
    host = Node(core_memory=12.0, cores=2)
    rule = protocols.get("oac", in_flight=1, readers=1, writers=1, devices=2)
    parts = records(Letters(reads=("acf",)), rule, VirtualCluster(server=host, worker=device, links=tuple(links)))
    took = {
        part.node: {kind: end - start for kind, start, end, batch in part.spans if batch == 0}
        for part in parts
        if part.node != "server0"
    }
    stages = {"transfer": (20 + 64) / 100, "validate": 20 / 60, "push": (20 + 64) / 100, "update": 3 * (20 + 4) / 60}
    assert took["worker0"] == pytest.approx(stages | {"compute": 1.0})
    stages = {"transfer": (40 + 64) / 100, "validate": 40 / 60, "push": (40 + 64) / 100, "update": 3 * (40 + 4) / 60}
    assert took["worker1"] == pytest.approx(stages)
    [first], [second] = ([part for part in parts if part.node == f"worker{device}"] for device in range(2))
    assert second.bytes["rows among devices"] == 2 * 2 * 4 and first.bytes["rows among devices"] == 0
    assert first.bytes["gradients among devices"] == 2 * 2 * 4 and second.bytes["gradients among devices"] == 0
    assert first.bytes["mix gradients"] == second.bytes["mix gradients"] == 2 * 2 * 4  # w, and whether all is finite


def test_computing_is_shared_and_rows_take_their_own_link():
    links = tuple(Link(ends=("server0", f"worker{device}"), bandwidth=1e6) for device in range(2))
    options = {"samples": 150, **CLICKS, "gradients": False, "save": False, "links": links, "worker": Node(flops=1e6)}
    one, two = (lib.train("ctr-synthetic", "oac", "virtual", devices=devices, **options) for devices in (1, 2))

    def computing(run):
        return [
            table["end"].sub(table["start"]).mean() for _, table in run.trace.query("kind == 'compute'").groupby("node")
        ]

    [whole], (larger, smaller) = computing(one), computing(two)
    assert (larger / whole, smaller / whole) == pytest.approx((8 / 15, 7 / 15))
    moved = [two.usage.set_index("name").loc[f"worker{device} - server0", "bytes_sent"] for device in range(2)]
    [alone] = one.usage.query("name == 'worker0 - server0'")["bytes_sent"]
    assert max(moved) < 0.75 * alone and sum(moved) >= alone


@pytest.mark.parametrize("kind", ["virtual", "local"])
@pytest.mark.parametrize(
    "where", [(Device, "_validated"), (Trainer, "_launch"), (Team, "_packed"), (Device, "_landed")]
)
def test_what_goes_wrong_on_the_second_device_stops_all(where, kind, monkeypatch):
    owner, name = where
    works, calls = getattr(owner, name), []

    def broken(self, *args):
        site = self._site.node
        calls.append(site)
        if site == "worker1" and calls.count(site) > 5:
            raise ArithmeticError(calls.count(site))
        return works(self, *args)

    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(ArithmeticError, match=r"^6$"):
        lib.train("kg-synthetic", "oac", kind, devices=3, samples=300, save=False, **GRAPH)


def test_what_is_not_finite_on_one_device_changes_nothing_on_any(monkeypatch):
    """The gradient of a row, in what the second device computes of the sixth batch."""
    launch, calls = FlatModel.launch, []

    def launched(self, batch, *args):
        there = launch(self, batch, *args)
        calls.append(batch.index)
        if len(calls) == 12:
            there.rows["entity"][0, 0] = torch.inf
        return there

    monkeypatch.setattr(FlatModel, "launch", launched)
    workload = workloads.get("kg-synthetic", samples=300, **GRAPH)
    run = lib.train(workload, protocols.get("oac", devices=2), "virtual", on_nan="skip", keep=True, save=False)
    monkeypatch.undo()
    assert calls[10] == calls[11] and run.summary["dropped"] == run.summary["not_finite"] == 1
    assert run.summary["samples"] == 300 - 15
    left = serial(workload, 0, [index for index in run.summary["order"] if index != calls[11]], devices=2)
    rows, expected = run.model.rows["entity"], left["server0/rows"]["entity"]
    known = np.isin(rows.ids, expected.ids)
    assert np.array_equal(rows.values[known], expected.values) and np.array_equal(rows.state[known], expected.state)
    assert all(np.array_equal(run.model.dense[name], value) for name, value in left["worker1/dense"][0].items())


@pytest.mark.parametrize(
    "more",
    [
        {"checkpoint_every": 40},
        {"checkpoint_every": 40, "gradients": False, "detour": 0.0},
        {"checkpoint_every": 64, "failures": [{"node": "worker1", "kind": "dies", "at": 0.02, "lasts": 0.005}]},
        {"failures": [{"node": "worker2", "kind": "hangs", "at": 0.01, "lasts": 0.01}]},
    ],
    ids=["cut", "cut of a timing run", "the second dies", "the third hangs"],
)
def test_cuts_and_deaths_are_as_with_one_device(more, reports):
    case = BUSY | {"devices": 3, **more}
    if "gradients" in more:
        case = {name: value for name, value in case.items() if name != "accesses"}
    assert check(case) is None


def test_a_device_that_dies_takes_all_back_to_the_cut(reports):
    failure = lib.Failure(node="worker1", kind="dies", at_batch=20, lasts=0.001)
    workload = workloads.get("kg-synthetic", samples=480, **GRAPH)
    options = {"failures": (failure,), "patience": 0.0, "checkpoint_every": 150, "save": False}
    run = lib.train(workload, "oac", "virtual", devices=2, **options)
    assert run.summary["returns_to_a_cut"] == 1 and run.summary["lost"] > 0 and run.summary["samples"] == 480
    assert equal(run, workload, devices=2)


def test_all_devices_begin_with_the_model_that_another_protocol_left():
    """Two workers' model, then one after another on one device or on two, then workers again."""
    first, last = lib.Phase(protocol="sync", workers=2, until_samples=90), lib.Phase(protocol="sync", workers=2)
    runs = []
    for devices in (1, 2):
        rule = protocols.get("sequential", devices=devices)
        phases = (first, lib.Phase(protocol=rule, until_samples=180), last)
        options = CLICKS | {"samples": 240, "keep": True, "save": False}
        runs.append(lib.train("ctr-synthetic", lib.Schedule(phases=phases), "virtual", **options))
    one, two = (run.model for run in runs)
    np.testing.assert_allclose(two.dense["values"], one.dense["values"], atol=5e-5)
    for table, rows in one.rows.items():
        np.testing.assert_allclose(two.rows[table].values, rows.values, atol=5e-5)


def test_one_device_is_the_plain_pipeline():
    workload = workloads.get("kg-synthetic", samples=205, **GRAPH)
    runs = [lib.train(workload, rule, "virtual", save=False) for rule in (OAC(), replace(OAC(devices=2), devices=1))]
    assert runs[0].digest == runs[1].digest and runs[0].trace.equals(runs[1].trace)
    assert not any(name.endswith("among devices") for name in runs[0].summary["bytes_by_kind"])
