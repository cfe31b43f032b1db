"""Protocols on a device that is not there: which tensors meet, what the host waits for, and the CPU's bits."""

import asyncio
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from lib import LocalCluster, RowStore, VirtualCluster, protocols, train, workloads
from lib.cluster.base import Meeting
from lib.cluster.local import LocalSite
from lib.cluster.ray.cluster import RayCluster
from lib.cluster.ray.node import RaySite, Start
from lib.device_array import DeviceArray, to_native
from lib.drivers.pipeline_loop import Pipeline
from lib.drivers.trainer import Trainer
from lib.errors import BadOption
from lib.results.outcome import digest
from lib.store.dense import DenseStore
from lib.store.device import DeviceTable
from lib.store.optim import SGD, Adagrad, Adam, Momentum, Optimizer
from lib.store.table import Table
from notebooks.bench import device
from notebooks.oac.replay import serial
from tests import elsewhere, one_batch
from tests.drivers import crossings
from tests.toys import diagonal, finals, one_of_each_composition, records
from tests.training.stopping import assert_same
from tests.training.test_checkpoints import train as stopped_or_whole

GRAPH = {"entities": 60, "triples": 600, "dim": 4, "batch_size": 16, "negatives": 4, "samples": 400}
CLICKS = {"samples": 400, "batch_size": 16, "vocabulary": 40, "fields": 3, "hidden": (8,), "evaluation_samples": 50}
HOT = ((Pipeline, "_upload"), (Pipeline, "_validate"), (Trainer, "_call_model"), (Pipeline, "_update"))


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    elsewhere.as_on_a_device(monkeypatch)


def trained(workload, name, **options):
    """Final parameters and the order of computing, of a run there."""
    cluster = LocalCluster(device=str(elsewhere.DEVICE), threads=2)
    parts = records(workload, protocols.get(name, **options), cluster)
    return finals(parts), next(part.taken for part in parts if part.taken)


@pytest.mark.parametrize("name", ["sequential", "pipelined", "oac"])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.01)], ids=lambda each: each.name)
def test_a_device_has_the_bits_of_the_cpu(name, optimizer):
    workload = workloads.get("kg-synthetic", row_optimizer=optimizer, dense_optimizer=Adam(lr=0.01), **GRAPH)
    final, order = trained(workload, name)
    assert (digest(final) == digest(serial(workload, 0, order))) == (name != "pipelined")


MODELS = {
    "distmult": ("kg-synthetic", GRAPH),
    "graphsage": ("kg-synthetic", {**GRAPH, "model": "graphsage"}),
    "deepfm": ("ctr-synthetic", CLICKS),
    "dlrm": ("ctr-synthetic", {**CLICKS, "model": "dlrm"}),
    "multi-hot": ("ctr-synthetic", {**CLICKS, "pooling": (1, 2, 3)}),
}


@pytest.mark.parametrize("model", MODELS)
def test_the_host_never_waits_in_the_hot_path(model, monkeypatch):
    """From a batch's arrival until it is on its way back; that nothing waits for the whole stream is the site's to say."""
    waits, waited = [], []
    for owner, name in HOT:
        monkeypatch.setattr(owner, name, elsewhere.watch.watched(getattr(owner, name), waits))
    computed = LocalSite.compute
    monkeypatch.setattr(
        LocalSite, "compute", lambda site, work, *call: waited.append(call[0].__name__) or computed(site, work, *call)
    )
    name, options = MODELS[model]
    trained(workloads.get(name, **options), "oac")
    assert waits == []
    assert set(waited) == {"batch", "_read", "_write_and_log"}  # all in host memory


def test_what_makes_the_host_wait_is_seen():
    there, waits = torch.ones(3).to(elsewhere.DEVICE), []

    def step():
        there.sum().item()
        bool(there.any())
        there.cpu()
        there.nonzero()
        there[there > 0]
        there.to("cpu", non_blocking=True)
        torch.ones(3).to(elsewhere.DEVICE)
        there.add_(1).index_copy_(0, there.argmax().view(1), there[:1].clone())

    elsewhere.watch.watched(step, waits)()
    away = elsewhere.NAME
    scalars, copies = ["_local_scalar_dense"] * 2, (f"_to_copy from {away} to cpu", f"copy_ from cpu to {away}")
    assert waits == [*scalars, copies[0], "nonzero", "index", copies[1]]
    with pytest.raises(RuntimeError, match="on elsewhere:0 and on the CPU"):
        there + torch.ones(3)
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()


def test_a_step_that_is_not_finite_changes_nothing_on_the_device():
    """The gradient between the two others is none."""
    vector, there = torch.ones(2), elsewhere.DEVICE
    store = DenseStore(vector, Adam(lr=0.1), device=there)
    for gradient, sound in (([1.0, 1.0], True), ([torch.nan, 1.0], False), ([1.0, 2.0], True)):
        store.apply(torch.tensor(gradient).to(there), sound=torch.tensor(sound).to(there))
    plain = DenseStore(vector, Adam(lr=0.1))
    for gradient in ([1.0, 1.0], [1.0, 2.0]):
        plain.apply(torch.tensor(gradient))
    assert all(np.array_equal(store.export()[name], value) for name, value in plain.export().items())


def test_a_merge_keeps_what_was_written_beside_it_on_the_device():
    """Steps of -0.1 while the vector, all 1, is being halved."""
    store = DenseStore(torch.ones(2), SGD(lr=0.1), device=elsewhere.DEVICE)
    mine, writes = store.copy_with_version()
    store.apply(torch.ones(2).to(elsewhere.DEVICE))
    assert store.merge_and_count_others(mine, writes, 0.5 * mine) == 1
    np.testing.assert_allclose(store.pull(), 0.4, rtol=1e-6)


@pytest.fixture
def torch_rows(monkeypatch):
    """The CPU's tables step with torch's operations, as a device's do, in place of numba's kernels, which round otherwise."""

    def update_slots(optimizer, rows, slots, grads, mark):
        width = grads.shape[1] + optimizer.columns(grads.shape[1])
        block = torch.from_numpy(rows[slots, :width])
        optimizer.update(*block.tensor_split([grads.shape[1]], dim=1), torch.from_numpy(np.array(grads)))
        rows[slots, :width] = block
        rows.view(np.int32)[slots, mark[0]] = mark[1]

    monkeypatch.setattr(Optimizer, "update_slots", update_slots)


SHARING = [name for name in protocols.ALL if protocols.ALL[name].family != "pipeline"]


@pytest.mark.parametrize("name", one_of_each_composition(SHARING))
def test_every_other_protocol_has_the_bits_of_the_cpu_too(name, torch_rows):
    """With one worker that reads nothing ahead, so that there is one order of readings and updates; in the background models are
    mixed when a clock says so."""
    rule = protocols.get(name, **{"hybrid": {"tau": 0}, "semi-sync": {"pull_ahead": 0}}.get(name, {}))
    workload = workloads.get("ctr-synthetic", **CLICKS | {"samples": 96})

    def left(device):
        return digest(finals(records(workload, rule, LocalCluster(device=device, threads=1, workers=1))))

    assert left(str(elsewhere.DEVICE)) == left("cpu") or name.startswith("s-")


@pytest.mark.parametrize("name", one_of_each_composition(protocols.ALL))
def test_simulated_time_on_a_device_has_the_schedule_and_the_bits_of_the_cpu(name, torch_rows):
    """Of all protocols, evaluation included. The dense optimiser is Adam: torch fuses Adagrad on the CPU alone, and its fused
    kernel rounds otherwise, by some 1e-8 a step."""
    pipeline = protocols.ALL[name].family == "pipeline"
    options = {"dense_optimizer": Adam(lr=0.01), **(GRAPH if pipeline else CLICKS | {"batch_size": 8})}
    workload = workloads.get("kg-synthetic" if pipeline else "ctr-synthetic", **options)

    def run(device):
        cluster = VirtualCluster(slowdown=0.6, device=device, workers=None if pipeline else 4)
        return train(workload, name, cluster, seed=2, save=False)

    here, there = run("cpu"), run(str(elsewhere.DEVICE))
    assert here.digest == there.digest
    without = [run.trace.drop(columns="norm") for run in (here, there)]  # whose sum has another order there
    assert without[0].equals(without[1])
    np.testing.assert_allclose(here.trace["norm"], there.trace["norm"], rtol=1e-5)
    assert str(here.summary) == str(there.summary)


PLACES = [
    ({"store": RowStore(max_rows=30)}, True),
    ({"store": RowStore(locking="none", placement="by-group", ids="samples")}, True),
    ({"store": RowStore(rows="fp16")}, False),
    ({"store": RowStore(gradients="int8")}, False),
    ({"store": RowStore(shared_memory=True)}, False),
    ({"store": RowStore(pooling="server")}, False),
    ({"embedding_workers": 1}, False),
    ({"embedding_workers": 1, "store": RowStore(rows="fp16")}, False),
]
"""How rows are kept, and whether they lie on the device."""


@pytest.mark.parametrize(
    "case, protocol", [*diagonal(PLACES, ["gba", "hybrid", "dc-asgd"]), (PLACES[0], "ssp"), (PLACES[2], "ssp")]
)
def test_a_run_has_the_bits_of_the_cpu_wherever_its_rows_lie(case, protocol, torch_rows):
    """And it says where."""
    options, there = case
    size = {"batch_size": 8, "samples": 200, "pooling": (1, 2, 3), "dense_optimizer": Adam(lr=0.01)}
    workload = workloads.get("ctr-synthetic", **CLICKS | size)

    def run(device):
        cluster = VirtualCluster(workers=3, servers=2, slowdown=0.6, device=device)
        return train(workload, protocol, cluster, seed=2, save=False, **options)

    here, away = run("cpu"), run(str(elsewhere.DEVICE))
    assert here.digest == away.digest
    assert (here.provenance["rows"], away.provenance["rows"]) == ("cpu", str(elsewhere.DEVICE) if there else "cpu")


@pytest.mark.parametrize(
    "optimizer",
    [SGD(lr=0.1), Momentum(lr=0.1), Adagrad(lr=0.1, rowwise=True), Adam(lr=0.01, weight_decay=0.1, weight_bound=0.5)],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("limit", [None, 45, 20])
def test_a_table_on_the_device_is_the_table_of_the_host(optimizer, limit):
    """Through pushes, sums of several workers' pushes, assignments, growth, and checkpoints that either goes on with; rows are
    evicted in the same order, and with room for 20 some of 30 find none."""
    rng = np.random.default_rng(0)
    tables = [Table(4, optimizer, seed=3, max_rows=limit), _table(optimizer, capacity=2, max_rows=limit)]
    for step in range(12):
        once = rng.permutation(60)[:30].astype(np.int64) * 2**33
        ids = once if step % 3 else np.concatenate([once, once[::2]])
        grads, weights = rng.standard_normal((ids.size, 4), np.float32), rng.integers(0, 3, ids.size).astype(np.float32)
        for table in tables:
            assert np.asarray(table.pull(once)).shape == (30, 4)
            if step % 3:
                table.push(ids, grads, step, distinct=True, rate=0.5)
            else:
                table.push(ids, grads, step)
                table.push_weighted(ids, grads, step, weights=weights, divisor=step % 2 * 2 or None)
            table.assign(once[:3], np.full((3, 4), step, np.float32))
        if step == 6:  # each goes on with the other's checkpoint
            kept = [deepcopy(table.dump()) for table in tables]
            for table, other in zip(tables, kept[::-1], strict=True):
                table.restore(other)
    here, there = (table.export() for table in tables)
    assert tables[0].lost == tables[1].lost and tables[0].evicted == tables[1].evicted
    assert len(here) == (limit or 60)
    assert np.array_equal(here.ids, there.ids) and np.array_equal(here.stamps, there.stamps)
    np.testing.assert_allclose(there.block, here.block, rtol=1e-5, atol=1e-6)
    again = _table(optimizer, max_rows=limit)
    again.load(there)
    assert np.array_equal(again.export().block, there.block) and np.array_equal(again.ids(), there.ids)
    assert tables[1].nbytes > there.block.nbytes


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.01)], ids=lambda each: each.name)
def test_a_step_of_the_devices_rows_differs_from_the_hosts_kernels_by_rounding(optimizer):
    """Torch fuses a product and a sum where numba rounds twice; sums of gradients have the same bits."""
    ids, tables = np.arange(300), [Table(4, optimizer, seed=3), _table(optimizer)]
    for table in tables:
        grads = np.random.default_rng(0).standard_normal((600, 4), np.float32)
        table.push(np.concatenate([ids, ids]), grads, 1)
    here, there = (table.export() for table in tables)
    np.testing.assert_allclose(there.block, here.block, rtol=5e-7, atol=5e-8)


@pytest.mark.parametrize("name", ["gba", "2d-sparse", "a correction with a memory", "a cache that a pause ends"])
def test_a_resumed_run_there_equals_the_uninterrupted_one(name, reports, monkeypatch):
    cluster = VirtualCluster(workers=3, servers=2, slowdown=0.7, device=str(elsewhere.DEVICE))
    whole = stopped_or_whole(name, cluster=cluster)
    stopped_or_whole(name, cluster=cluster, dies_after=27, monkeypatch=monkeypatch)
    assert_same(stopped_or_whole(name, cluster=cluster, resume=True), whole)
    assert whole.provenance["rows"].startswith(elsewhere.NAME)


@pytest.mark.parametrize(
    "model, protocol",
    [*diagonal(["deepfm", "ffnn", "dlrm"], ["sync", "gba", "s-easgd", "all-reduce", "ds-sync"]), ("distmult", "oac")],
)
def test_captured_steps_have_the_bits_of_eager_ones(model, protocol):
    """In simulated time, where all workers have one model, and of one worker in a thread of its own."""
    name, options = MODELS.get(model, ("ctr-synthetic", CLICKS | {"model": model}))
    clusters = [VirtualCluster(slowdown=0.6, workers=None if protocol == "oac" else 4)]
    if protocol not in ("s-easgd", "oac"):  # a clock says when it mixes
        clusters.append(LocalCluster(workers=1, threads=1))
    for cluster in clusters:
        device, task = str(elsewhere.DEVICE), workloads.get(name, **options)
        there = [replace(cluster, device=device, captured=each) for each in (False, True)]
        eager, captured = (train(task, protocol, each, save=False) for each in there)
        assert captured.digest == eager.digest and captured.summary["steps_captured"] > 0


def test_workers_that_share_a_gpu_average_on_the_host(monkeypatch):
    """What lies on the device is back there afterwards."""

    class Group:
        def allreduce(self, tensor):
            assert tensor.device.type == "cpu"
            tensor.add_(torch.ones(2))
            return self

        def wait(self):
            pass

    async def average(mine):
        start = Start(0, 0, 0.0, "run", {}, 0.5)
        site = RaySite(RayCluster(address="head:6379", device="cuda"), 0, "worker0", start)
        monkeypatch.setattr(site, "device", elsewhere.DEVICE)
        monkeypatch.setattr(site, "group", lambda meeting: Group())
        return await site.mean(Meeting("all", (0, 1)), mine)

    mine = to_native(torch.zeros(2).to(elsewhere.DEVICE))
    found = asyncio.run(average(mine))
    assert isinstance(found, DeviceArray) and np.array_equal(np.asarray(found), [0.5, 0.5])
    assert np.array_equal(np.asarray(mine), [0, 0])
    assert np.array_equal(asyncio.run(average(np.zeros(2, np.float32))), [0.5, 0.5])


def test_to_look_at_a_row_on_the_device_makes_none():
    table = _table(SGD(lr=1.0))
    table.pull(np.array([5]))
    first = Table(4, SGD(lr=1.0), seed=3).pull(np.array([5, 6, 7]))
    assert np.array_equal(np.asarray(table.peek(np.array([5, 6, 7]))), first) and len(table) == 1


def test_no_timestamps_are_compared_on_a_device():
    table = _table(SGD(lr=1.0))
    with pytest.raises(BadOption, match="a host store compares those"):
        table.write(table.read(np.array([1])))


def _table(optimizer, **options):
    return DeviceTable(4, optimizer, seed=3, device=elsewhere.DEVICE, **options)


@pytest.mark.parametrize("name", crossings.PROTOCOLS)
def test_a_step_waits_once_and_no_parameters_cross(name):
    """Its loss, scores and whether they are finite come down together; nobody waits on the event loop. OAC's rows lie on the
    host, and cross."""
    step = crossings.per_step(name)
    assert step["waits"] <= 1 and step["waits on the event loop"] == 0 and step["dense"] == 0
    assert (step["row bytes"] == 0) == (name != "oac")


PARTS = ["ceilings", "our_step", "plain_torch", "workers_together", "simulated_time", "pipelines"]


@pytest.mark.parametrize("part", PARTS)
def test_the_devices_bench_runs_there(part, tmp_path):
    assert device.main([str(tmp_path), "--device", str(elsewhere.DEVICE), "--small", "--only", part]) == 0
    rows = pd.read_csv(tmp_path / ("pipelines.csv" if part == "pipelines" else "figures.csv"))
    assert len(rows) and (tmp_path / "machine.json").is_file()


@pytest.mark.parametrize("name", workloads.ALL)
def test_every_model_has_the_gradients_of_the_cpu(name):
    """To the bit, but for a model with gradients of its own on the CPU, and attention, which has a kernel of its own there."""
    task = one_batch.of(name)
    here, there = one_batch.step(task, "cpu"), one_batch.step(task, str(elsewhere.DEVICE))
    rounded = hasattr(task.model(0), "gradients") or name == "squad-bert"
    near = {"rtol": 1e-4, "atol": 1e-6} if rounded else {"rtol": 0}
    assert there.sound and there.loss == pytest.approx(here.loss, rel=near["rtol"])
    np.testing.assert_allclose(there.dense.cpu(), here.dense, **near)
    for table, gradient in here.rows.items():
        np.testing.assert_allclose(there.rows[table], gradient, **near)
