"""Every protocol on a CUDA device against the CPU. Skipped where torch sees none; needs neither Ray nor Jupyter."""

import math
import threading

import numpy as np
import pytest
import torch

import lib
from lib import protocols, workloads
from lib.drivers.pipeline_loop import Pipeline
from lib.drivers.trainer import Trainer
from lib.store.dense import DenseStore
from lib.store.device import DeviceTable
from lib.store.optim import SGD, Adagrad, Adam, Momentum
from lib.store.table import Table
from lib.tasks.flat_model import CapturedModel, FlatModel
from tests import one_batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]

SMALL = {"vocabulary": 200, "fields": 4, "evaluation_samples": 2_000, "samples": 20_000}
PLAIN = {"row_optimizer": SGD(lr=0.5), "dense_optimizer": SGD(lr=0.5)}
"""Adam makes a step of full length of what two devices round to a little more and a little less than nothing."""
METRICS = ("auc", "logloss", "mrr", "train_loss")


@pytest.fixture(autouse=True)
def exact():
    """TensorFloat-32 would round products to ten bits, far from the CPU's."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def workload(name, **options):
    if protocols.ALL[name].family == "pipeline":
        return workloads.get("kg-synthetic", entities=300, triples=3_000, samples=6_000, **options)
    return workloads.get("ctr-synthetic", **SMALL, **options)


def trained(name, device):
    """One worker at a time, so that both devices see one order of updates and only rounding differs."""
    options = {"in_flight": 1, "readers": 1, "writers": 1} if protocols.ALL[name].family == "pipeline" else {}
    workers = {} if options else {"workers": 1}
    cluster = lib.LocalCluster(device=device, threads=1, **workers)
    return lib.train(workload(name, **PLAIN), protocols.get(name, **options), cluster, save=False).summary


@pytest.mark.parametrize("name", protocols.ALL)
def test_cuda_agrees_with_the_cpu(name):
    cpu, cuda = trained(name, "cpu"), trained(name, "cuda")
    assert cuda["issued"] == cpu["issued"]
    near = 1e-3 if name.startswith("s-") else 1e-5  # theirs are mixed when a clock says so
    for metric in METRICS:
        if not math.isnan(cpu.get(metric, math.nan)):
            assert cuda[metric] == pytest.approx(cpu[metric], rel=near), metric


@pytest.mark.parametrize("name", protocols.ALL)
def test_many_workers_train_on_streams_of_their_own(name):
    pipeline = protocols.ALL[name].family == "pipeline"
    cluster = lib.LocalCluster(device="cuda", **({} if pipeline else {"workers": 4}))
    summary = lib.train(workload(name), name, cluster, save=False).summary
    came = sum(summary[what] for what in ("applied", "decayed", "dropped", "in_flight"))
    assert came == summary["issued"] and (came == summary["dropped"]) == (name == "frozen")
    assert math.isfinite(summary["mrr"] if pipeline else summary["auc"])


@pytest.mark.parametrize("name", ["sequential", "pipelined", "oac"])
def test_the_host_waits_for_nothing_until_a_batch_is_on_its_way_back(name, monkeypatch):
    """CUDA itself says so: in this mode whatever waits is an error. It is the whole process's, so meanwhile those who may wait
    have to."""
    alone = threading.RLock()

    def within(function, mode):
        def inside(*args):
            with alone:
                before = torch.cuda.get_sync_debug_mode()
                torch.cuda.set_sync_debug_mode(mode or before)
                try:
                    return function(*args)
                finally:
                    torch.cuda.set_sync_debug_mode(before)

        return inside

    strict = ((Pipeline, "_upload"), (Pipeline, "_validate"), (Trainer, "_call_model"), (Pipeline, "_update"))
    others = ((Pipeline, "_download_updated_rows"), (Pipeline, "_dense_snapshot"), (DenseStore, "export"))
    for owner, method in (*strict, *others):
        mode = "error" if (owner, method) in strict else None
        monkeypatch.setattr(owner, method, within(getattr(owner, method), mode))
    summary = lib.train(workload(name), name, lib.LocalCluster(device="cuda", threads=1), save=False).summary
    assert summary["applied"] == summary["issued"]


def test_oac_on_the_device_equals_a_serial_run_there():
    """Under deterministic kernels the digest is that of one batch at a time in the same order."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        data = workload("oac")
        serial = lib.train(data, "sequential", lib.LocalCluster(device="cuda"), save=False)
        validated = protocols.get("oac", readers=1)  # one reader keeps the order of the data
        assert lib.train(data, validated, lib.LocalCluster(device="cuda"), save=False).digest == serial.digest
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.1), Momentum(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.01)], ids=lambda each: each.name
)
def test_optimisers_step_there_as_on_the_cpu(optimizer):
    """The same gradients for a dense vector, twice beside a merge, and for a block of rows."""
    rng = np.random.default_rng(0)
    start, rows = rng.standard_normal(1000, np.float32), rng.standard_normal((50, 8), np.float32)
    stores, blocks = [DenseStore(start, optimizer, device=device) for device in ("cpu", "cuda")], []
    for step in range(20):
        gradient = rng.standard_normal(1000, np.float32)
        for store in stores:
            seen = store.copy_with_version()
            store.apply(gradient)
            if step % 10 == 5:
                assert store.merge_and_count_others(*seen, 0.5 * seen[0]) == 1
    for device in ("cpu", "cuda"):
        values, state = (torch.from_numpy(x.copy()).to(device) for x in (rows, optimizer.initial_row_state(50, 8)))
        for gradient in np.random.default_rng(1).standard_normal((20, 50, 8), np.float32):
            optimizer.update(values, state, torch.from_numpy(gradient).to(device))
        blocks.append(values.cpu().numpy())
    for there, here in ((np.asarray(stores[1].pull()), stores[0].pull()), blocks[::-1]):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.1), Adagrad(lr=0.1, rowwise=True), Adam(lr=0.01)], ids=lambda each: each.name
)
def test_a_table_there_is_the_table_of_the_host_and_waits_for_nothing(optimizer):
    rng, tables = np.random.default_rng(0), [Table(8, optimizer, seed=3)]
    tables.append(DeviceTable(8, optimizer, seed=3, device=torch.device("cuda"), capacity=2))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(20):
            ids = rng.permutation(500)[:200]
            many, weights = np.concatenate([ids, ids[::2]]), rng.integers(0, 3, 300).astype(np.float32)
            grads = rng.standard_normal((300, 8), np.float32)
            for table in tables:
                table.pull(ids)
                table.push(ids, grads[:200], step, distinct=True)
                table.push_weighted(many, grads, step, weights=weights, divisor=2.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    here, there = (table.export() for table in tables)
    assert np.array_equal(here.ids, there.ids) and np.array_equal(here.stamps, there.stamps)
    np.testing.assert_allclose(there.block, here.block, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", workloads.ALL)
def test_a_replay_of_a_captured_step_has_the_gradients_of_the_step(name):
    """Of every model; one that cannot be captured is an error that says why."""
    task, rng, replays = one_batch.of(name), np.random.default_rng(0), 0
    models = [kind(task.model(0), "cuda", task.bags()) for kind in (FlatModel, CapturedModel)]
    start = models[0].vector.clone()
    for index in range(12):
        batch = task.batch(0, index).to("cuda")
        rows = {
            table: torch.from_numpy(0.1 * rng.standard_normal((len(batch.ids[table]), spec.dim), np.float32)).cuda()
            for table, spec in task.tables().items()
        }
        for model in models:
            model.load(start)
        expected, found = (model.launch(batch, rows) for model in models)
        for got, want in [(found.dense, expected.dense), *((found.rows[each], expected.rows[each]) for each in rows)]:
            np.testing.assert_allclose(got.cpu(), want.cpu(), rtol=1e-3, atol=1e-5)
        replays += found.captured
    assert replays


@pytest.mark.parametrize("name", ["sync", "gba", "s-easgd", "all-reduce", "ds-sync", "oac"])
def test_a_captured_run_agrees_with_the_eager_one(name):
    """Four workers capture in threads of their own."""
    workers = {} if name == "oac" else {"workers": 4}
    eager, captured = (
        lib.train(workload(name), name, lib.LocalCluster(device="cuda", captured=each, **workers), save=False).summary
        for each in (False, True)
    )
    assert captured["steps_captured"] > captured["issued"] / 2
    for metric in METRICS:
        if not math.isnan(eager.get(metric, math.nan)):
            assert captured[metric] == pytest.approx(eager[metric], rel=0.05), metric


def test_buckets_of_a_gradient_come_in_order_while_several_train():
    """DS-Sync's step: a collective a tensor, each told when the device has it; the whole gradient is theirs together."""
    task = workloads.get("ctr-synthetic", **SMALL, **PLAIN)
    one = lib.train(task, protocols.get("ds-sync"), lib.LocalCluster(device="cuda", workers=4), save=False).summary
    cpu = lib.train(task, protocols.get("ds-sync"), lib.LocalCluster(workers=4), save=False).summary
    for metric in METRICS[:2]:
        assert one[metric] == pytest.approx(cpu[metric], rel=1e-4), metric


@pytest.mark.parametrize("name", workloads.ALL)
def test_every_model_has_the_gradients_of_the_cpu(name):
    task = one_batch.of(name)
    here, there = one_batch.step(task, "cpu"), one_batch.step(task, "cuda")
    assert there.loss == pytest.approx(here.loss, rel=1e-4)
    np.testing.assert_allclose(there.dense.cpu(), here.dense, rtol=1e-3, atol=1e-5)
    for table, gradient in here.rows.items():
        np.testing.assert_allclose(there.rows[table], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", protocols.ALL)
def test_simulated_time_on_the_device_has_the_schedule_of_the_cpu(name):
    options = {} if protocols.ALL[name].family == "pipeline" else {"workers": 4}

    def run(device):
        return lib.train(
            workload(name, **PLAIN), name, lib.VirtualCluster(slowdown=0.6, device=device, **options), save=False
        )

    here, there = run("cpu"), run("cuda")
    when = ["node", "kind", "start", "end", "batch"]
    assert here.trace[when].equals(there.trace[when])
    for metric in METRICS:
        if not math.isnan(here.summary.get(metric, math.nan)):
            assert there.summary[metric] == pytest.approx(here.summary[metric], rel=1e-3), metric
