"""Where the time of a run goes: known delays are found, by cause and by worker."""

import json

import numpy as np
import pandas as pd
import pytest

import lib
from data_prep.traces.formats import Trace
from lib.command_line import main
from notebooks.advisor.explain import explain_trace

STILL = {"worker.latency": 0, "server.latency": 0, "samples": 64 * 4 * 20}


def trace(factors):
    """Steps of workers (columns), as data_prep reads them, of 10 ms each."""
    steps, workers = factors.shape
    rows = {"worker": np.repeat(np.arange(workers), steps), "time": np.tile(np.arange(steps) * 0.01, workers)}
    return Trace(
        name="steps.csv", table=pd.DataFrame(rows | {"factor": factors.T.ravel()}), step=0.01, daily=False, took=0.01
    )


def test_a_slow_worker_of_a_simulated_run_is_found_within_five_per_cent():
    """One of four workers takes twice as long, and all steps are computation: Sync waits for it for half of the time."""
    options = {"speeds": (1.0, 1.0, 0.5, 1.0), "worker.launch": 0.1, **STILL}
    found = lib.explain("clicks-light", "sync", "virtual", **options)
    assert found.causes.loc["slow workers", "share"] == pytest.approx(0.5, rel=0.05)
    assert found.causes.loc["the network", "share"] == pytest.approx(0, abs=0.02)
    assert found.workers.loc[2, ["share", "saved"]].tolist() == pytest.approx([0.5, 0.5], rel=0.05)
    assert found.workers.drop(2)[["share", "saved"]].abs().to_numpy().max() < 0.01
    assert found.workers["compute"].tolist() == pytest.approx([0.5, 0.5, 1.0, 0.5], rel=0.05)
    assert found.sentences()[1].startswith("Worker 2 costs most: 5")


def test_a_slow_network_of_a_simulated_run_is_found():
    """A batch's parameters and gradients take some twenty times as long to travel as the step takes to compute."""
    found = lib.explain("clicks-light", "sync", "virtual", workers=2, network="1 MB/s", **STILL)
    assert found.causes["share"].idxmax() == "the network" and found.causes.loc["the network", "share"] > 0.9
    assert found.causes.loc["slow workers", "lost"] == pytest.approx(0, abs=1e-9)
    assert "No single worker" in found.sentences()[1]


def test_under_asynchrony_a_slow_worker_costs_its_own_share_alone():
    """Four workers at 1, 1, 1 and 1/2: 3.5 of 4 steps at a time."""
    options = {"speeds": (1.0, 1.0, 1.0, 0.5), "worker.launch": 0.1, **STILL}
    found = lib.explain("clicks-light", "async", "virtual", **options)
    assert found.causes.loc["slow workers", "share"] == pytest.approx(1 - 3.5 / 4, abs=0.05)


def test_backup_workers_drop_the_gradients_of_a_slow_worker():
    """One worker of five takes three times as long, and a step waits for four: nearly all of its gradients come too late."""
    options = {"speeds": (1.0, 1.0, 0.33, 1.0, 1.0), "worker.launch": 0.1, **STILL}
    found = lib.explain("clicks-light", "hop-bw", "virtual", **options)
    assert found.workers.loc[2, "unused"] > 0.8 and found.workers.drop(2)["unused"].max() < 0.2
    assert found.sentences()[-1].startswith("Of worker 2's gradients")


def test_a_slow_worker_of_a_trace_is_found_within_five_per_cent():
    """Noise of 5 % and a worker that takes 1.6 times as long: the job would take 1 / 1.6 of the time without it, but for the
    noise of the slowest of the others."""
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal((400, 8)))
    planted = noise * np.where(np.arange(8) == 5, 1.6, 1.0)
    found = explain_trace(trace(planted))
    truth = 1 - np.median(noise, axis=1).sum() / planted.max(axis=1).sum()
    assert found.causes.loc["slow workers", "share"] == pytest.approx(truth, rel=0.05)
    saved = 1 - np.delete(noise, 5, axis=1).max(axis=1).sum() / planted.max(axis=1).sum()
    assert found.workers.loc[5, "saved"] == pytest.approx(saved, rel=0.05) and found.workers["saved"].idxmax() == 5
    assert found.workers.drop(5)["saved"].max() < 0.01
    assert found.seconds == pytest.approx(0.01 * planted.max(axis=1).sum())


def test_two_slow_workers_hide_each_other():
    """Each alone costs half, and making one of them fast saves nothing."""
    found = explain_trace(trace(np.tile([1.0, 2.0, 1.0, 2.0, 1.0], (50, 1))))
    assert found.workers["share"].tolist() == pytest.approx([0, 0.5, 0, 0.5, 0])
    assert found.workers["saved"].tolist() == pytest.approx([0] * 5)


def test_the_command_explains_a_run_and_saves_its_trace_for_perfetto(tmp_path, capsys):
    path = tmp_path / "trace.json"
    options = ["-oworkers=2", "-osamples=640", "-ospeeds=[1,0.5]", f"--perfetto={path}"]
    assert main(["explain", "clicks-light", "sync", *options]) == 0
    printed = capsys.readouterr().out
    assert "slow workers" in printed and "Worker 1 costs most" in printed
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"worker0", "worker1", "server0"} <= {*names.values()}
    timing = {"workers": 2, "samples": 640, "speeds": [1, 0.5], "gradients": False, "save": False}
    run = lib.train("clicks-light", "sync", "virtual", **timing)
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(run.trace)
    for event, row in zip(spans, run.trace.itertuples(), strict=True):
        assert (names[event["tid"]], event["name"]) == (row.node, row.kind)
        assert (event["ts"], event["ts"] + event["dur"]) == pytest.approx((1e6 * row.start, 1e6 * row.end))


def test_a_trace_is_explained_by_the_command_too(tmp_path, capsys):
    rows = [f"{worker},{10 * (1 + (worker == 2))}" for _ in range(20) for worker in range(4)]
    (tmp_path / "steps.csv").write_text("\n".join(["rank,step_ms", *rows]))
    assert main(["explain", "--trace", str(tmp_path / "steps.csv"), "--columns", "worker=rank,took=step_ms"]) == 0
    printed = capsys.readouterr().out
    assert "Without slow workers the run would take 50.0 % less time." in printed
    assert "Worker 2 costs most: 50.0 %" in printed
