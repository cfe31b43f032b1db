"""Every protocol on a CUDA device against the CPU. Skipped where torch sees none; needs neither Ray nor Jupyter."""

from __future__ import annotations

import math

import pytest
import torch

import lib
from lib import protocols, workloads
from lib.drivers.pipeline_loop import Pipeline
from lib.drivers.run.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

SMALL = {"vocabulary": 200, "fields": 4, "evaluation_samples": 2_000, "samples": 20_000}
METRICS = ("auc", "logloss", "mrr", "train_loss")


@pytest.fixture(autouse=True)
def exact():
    """TensorFloat-32 would round products to ten bits, far from the CPU's."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def workload(name):
    if protocols.ALL[name].family == "pipeline":
        return workloads.get("kg-synthetic", entities=300, triples=3_000, samples=6_000)
    return workloads.get("ctr-synthetic", **SMALL)


def trained(name, device):
    """One worker at a time, so that both devices see one order of updates and only rounding differs."""
    options = {"in_flight": 1, "readers": 1, "writers": 1} if protocols.ALL[name].family == "pipeline" else {}
    workers = {} if options else {"workers": 1}
    cluster = lib.LocalCluster(device=device, threads=1, **workers)
    return lib.train(workload(name), protocols.get(name, **options), cluster, save=False).summary


@pytest.mark.parametrize("name", protocols.ALL)
def test_cuda_agrees_with_the_cpu(name):
    cpu, cuda = trained(name, "cpu"), trained(name, "cuda")
    assert cuda["issued"] == cpu["issued"]
    for metric in METRICS:
        if not math.isnan(cpu.get(metric, math.nan)):
            assert cuda[metric] == pytest.approx(cpu[metric], rel=1e-4), metric


@pytest.mark.parametrize("name", protocols.ALL)
def test_many_workers_train_on_streams_of_their_own(name):
    pipeline = protocols.ALL[name].family == "pipeline"
    cluster = lib.LocalCluster(device="cuda", **({} if pipeline else {"workers": 4}))
    summary = lib.train(workload(name), name, cluster, save=False).summary
    assert summary["applied"] + summary["decayed"] == summary["issued"]
    assert math.isfinite(summary["mrr"] if pipeline else summary["auc"])


@pytest.mark.parametrize("name", ["sequential", "pipelined", "oac"])
def test_the_host_waits_for_nothing_until_a_batch_is_on_its_way_back(name, monkeypatch):
    """CUDA itself says so: in this mode whatever waits is an error."""

    def strict(function):
        def inside(*args):
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                return function(*args)
            finally:
                torch.cuda.set_sync_debug_mode(before)

        return inside

    for owner, method in ((Pipeline, "_send"), (Pipeline, "_validated"), (Trainer, "_launch"), (Pipeline, "_update")):
        monkeypatch.setattr(owner, method, strict(getattr(owner, method)))
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
