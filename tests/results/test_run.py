"""What a run does once: it makes its model, evaluates what it has trained, and reads what it has kept."""

import os
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lib
from lib import Node, VirtualCluster
from lib.errors import LockstepError
from lib.protocols import Pair, get
from lib.results.outcome import _loss_metrics, _mean_within, staleness_statistics
from lib.results.run import Run
from lib.store import checkpoint, sealed
from lib.tasks.flat_model import FlatModel
from lib.tasks.quadratic import QuadraticBowl
from tests.test_bad_input import broken
from tests.toys import clicks

CLICKS = clicks(16 * 21, 16, evaluation_samples=100)


@pytest.fixture
def calls(monkeypatch):
    """How often the workload's methods were called."""
    counted = Counter()
    for name in ("model", "evaluate"):
        original = getattr(type(CLICKS), name)

        def count(self, *args, name=name, original=original):
            counted[name] += 1
            return original(self, *args)

        monkeypatch.setattr(type(CLICKS), name, count)
    return counted


@pytest.mark.parametrize("protocol", ["gba", "s-easgd", Pair(sparse=get("async"), dense=get("all-reduce"))])
@pytest.mark.parametrize("workers", [2, 5])
def test_a_model_is_made_for_computing_for_the_start_and_for_evaluating_however_many_parts_there_are(
    protocol, workers, calls, reports
):
    CLICKS.work()  # which counts the parameters of a model, and remembers it
    calls.clear()
    lib.train(CLICKS, protocol, VirtualCluster(workers=workers, servers=2), save=False, evaluations=1)
    assert calls["model"] == 3


@pytest.mark.parametrize("evaluations", [1, 3])
def test_each_snapshot_is_evaluated_once(evaluations, calls, reports):
    run = lib.train(CLICKS, "gba", VirtualCluster(workers=2), save=False, evaluations=evaluations)
    assert calls["evaluate"] == evaluations == run.history["auc"].notna().sum()
    last = run.history[run.history["auc"].notna()].iloc[-1]
    assert last["auc"] == run.summary["auc"] and last["time"] == run.summary["virtual_seconds"]


def evaluated(**metrics):
    """A run of 1,000 samples whose history has a row for each fifth, and these evaluations by samples."""
    parts = pd.DataFrame({"step": range(1, 6), "samples": range(200, 1001, 200), "train_loss": 0.5})
    at = {name: pd.Series(values) for name, values in metrics.items()}
    points = pd.DataFrame(at).rename_axis("samples").reset_index()
    return SimpleNamespace(history=pd.concat([parts, points], ignore_index=True))


def test_quality_is_the_mean_over_the_last_fifth_and_never_the_last_iterate():
    """The evaluation that belongs to four fifths of the pass is one step late."""
    auc = {500: 0.1, 808: 0.2, 820: 0.6, 900: 0.7, 1000: 0.9}
    run = evaluated(auc=auc, expected_auc={at: value + 0.05 for at, value in auc.items()})
    assert Run.quality(run, "auc") == pytest.approx((0.6 + 0.7 + 0.9) / 3)
    assert Run.quality(run, Run.history_column(run, "auc")) == pytest.approx((0.6 + 0.7 + 0.9) / 3 + 0.05)
    assert Run.history_column(evaluated(auc=auc), "auc") == "auc"
    assert Run.quality(evaluated(auc={1000: 0.9}), "auc") == 0.9


def test_the_quality_of_a_run_that_diverged_is_nan():
    assert np.isnan(Run.quality(evaluated(auc={820: 0.6, 900: np.nan, 1000: 0.7}), "auc"))
    assert Run.quality(evaluated(auc={500: np.nan, 900: 0.5, 1000: 0.7}), "auc") == pytest.approx(0.6)


def test_a_kept_model_is_read_once_and_only_when_it_is_asked_for(reports, monkeypatch):
    options = {"workload": CLICKS, "protocol": "gba", "cluster": VirtualCluster(workers=2), "keep": True}
    made = lib.train(**options)
    read, load = [], checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda *args: read.append(args) or load(*args))
    found = lib.train(**options)
    assert not read
    assert found.model is found.model and len(read) == 1
    assert found.model.rows.keys() == made.model.rows.keys()
    assert np.array_equal(found.model.dense["values"], made.model.dense["values"])


def test_steady_throughput_is_that_of_the_middle():
    """Slow to begin and to end: neither counts."""
    time = [10, 11, 12, 13, 14, 15, 16, 17, 18, 40]
    history = pd.DataFrame({"time": time, "step": range(1, 11), "samples": range(100, 1100, 100)})
    evaluated = pd.DataFrame({"time": [12.5], "samples": [350], "auc": [0.7]})
    run = SimpleNamespace(history=pd.concat([history, evaluated]).sort_values("time"))
    assert Run.steady_qps.fget(run) == 100


def test_a_run_is_shown_in_a_line_and_as_a_card_and_knows_its_folder(reports):
    made = lib.train(CLICKS, "gba", VirtualCluster(workers=2))
    found = lib.train(CLICKS, "gba", VirtualCluster(workers=2))
    assert made.folder == found.folder and found.folder.is_dir() and found.folder.parent.name == "runs"
    shown = f"<Run of {CLICKS.name} gba virtual: auc {found.summary['auc']:.4g}, "
    assert repr(found) == repr(made) and repr(found).startswith(shown) and len(repr(found)) < 200
    card = found._repr_html_()
    assert str(found.folder) in card and "virtual seconds" in card
    assert lib.train(CLICKS, "gba", VirtualCluster(workers=2), save=False).folder is None


@pytest.mark.parametrize("protocol", ["gba", "hybrid", "hop-bw"])
def test_each_gradient_has_one_staleness_however_many_servers_there_are(protocol):
    summary = lib.train(CLICKS, protocol, VirtualCluster(workers=4, servers=3, slowdown=0.5), save=False).summary
    assert sum(summary["staleness"].values()) == summary["applied"] + summary["decayed"]
    assert sum(summary.get("data_staleness", summary["staleness"]).values()) == summary["applied"] + summary["decayed"]


def test_bytes_losses_and_staleness_are_those_of_all_stages():
    phases = [lib.Phase(protocol=name, steps=steps) for name, steps in (("gba", 3), ("async", 6), ("s-easgd", None))]
    run = lib.train(CLICKS, lib.Schedule(phases=phases), VirtualCluster(workers=3, slowdown=0.5), save=False).summary
    stages = run["stages"]
    assert len(stages) == 3 and min(stage["bytes"] for stage in stages) > 0
    assert run["bytes"] == sum(stage["bytes"] for stage in stages) == sum(run["bytes_by_kind"].values())
    assert run["samples"] == sum(stage["samples"] for stage in stages) == CLICKS.samples
    for name in ("train_loss", "train_ne"):
        whole = sum(stage[name] * stage["samples"] for stage in stages) / CLICKS.samples
        assert 0.3 < min(stage[name] for stage in stages) <= run[name] == pytest.approx(whole)
    for kind, moved in run["bytes_by_kind"].items():
        assert moved == sum(stage["bytes_by_kind"].get(kind, 0) for stage in stages)
    for name in ("staleness", "data_staleness"):
        counts = sum((Counter(stage[name]) for stage in stages), Counter())
        assert run[name] == counts and counts.total() == run["applied"] + run["decayed"] == CLICKS.batches()
        mean = sum(int(age) * count for age, count in counts.items()) / counts.total()
        assert 0 < run[f"{name}_mean"] == pytest.approx(mean) and run[f"{name}_max"] == max(map(int, counts))


@pytest.fixture
def kept(tmp_path):
    """The folder of a run that keeps its model."""
    lib.train(CLICKS, "gba", VirtualCluster(workers=2), keep=True, save=False).save(tmp_path / "run")
    return tmp_path / "run"


def test_a_kept_model_that_is_gone_is_no_run_without_a_model(kept):
    (kept / "model.pt").unlink()
    with pytest.raises(LockstepError, match=r"run cannot be read \(its model.pt is gone\); delete that folder"):
        Run.load(kept)


def test_a_saved_run_without_its_tables_is_named(kept):
    about = sealed.load(kept / "run.json")
    (kept / "run.json").write_text(sealed.text(about | {"tables": {}}))
    with pytest.raises(LockstepError, match=r"run cannot be read .*delete that folder"):
        Run.load(kept)


def test_a_run_is_saved_in_a_folder_whose_name_is_no_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    made = lib.train(CLICKS, "gba", VirtualCluster(workers=2), save=False)
    made.save(folder / "run")
    assert Run.load(folder / "run").digest == made.digest


@pytest.mark.parametrize("cores", [1, 3])
def test_a_nodes_computing_is_a_share_of_its_cores_time(cores):
    cluster = VirtualCluster(workers=2, worker=Node(cores=cores))
    run = lib.train(CLICKS, "all-reduce", cluster, save=False)
    spent = run.trace[(run.trace["node"] == "worker0") & run.trace["kind"].isin(["compute", "apply"])]
    seconds = (spent["end"] - spent["start"]).sum()
    share = run.usage.set_index("name").loc["worker0", "computed"]
    assert 0 < share == pytest.approx(seconds / (cores * run.summary["virtual_seconds"]), rel=0.02)


def test_normalised_entropy_by_hand():
    """Of four samples one is positive; predictions that are the base rate have an entropy of one."""
    rate = -(np.log(0.25) + 3 * np.log(0.75))
    steps = pd.DataFrame({"samples": [3, 1], "loss": [0.2, 0.6], "logloss": [rate / 2, rate / 2], "positives": [1, 0]})
    assert _loss_metrics(steps) == pytest.approx({"train_loss": 0.3, "train_ne": 1.0})


def test_mean_staleness_by_hand():
    found = staleness_statistics({"staleness": Counter({0: 1, 3: 2}), "data_staleness": Counter()})
    assert found == {"staleness_mean": 2.0, "staleness_max": 3, "staleness": {"0": 1, "3": 2}}
    none = staleness_statistics({"staleness": Counter()})
    assert none == {"staleness_mean": 0.0, "staleness_max": 0, "staleness": {}}


def test_a_row_of_the_history_has_the_mean_of_its_own_stretch():
    notes = [(1.0, 100), (1.5, 4), (2.0, 6), (3.0, 200)]
    assert _mean_within(notes, 1.0, 2.0) == 5 and np.isnan(_mean_within(notes, 2.0, 2.5))


@pytest.mark.parametrize("protocol", ["sync", "all-reduce"])
def test_a_gradient_that_is_not_finite_counts_as_dropped_by_its_worker(protocol):
    """Batch 5 is the third of worker 1 of two."""
    summary = lib.train(broken(5), protocol, VirtualCluster(workers=2), on_nan="skip", save=False).summary
    assert [each["dropped"] for each in summary["by_worker"].values()] == [0, 1]


# The norms of updates

BOWL = QuadraticBowl(samples=48, batch_size=8, dim=6)


def applied(run):
    return run.trace[run.trace["kind"] == "apply"].groupby("batch")["norm"]


@pytest.mark.parametrize("servers", [1, 2])
def test_an_update_has_the_norm_of_its_mean_gradient(servers):
    model = FlatModel(BOWL.model(3))
    gradients = np.stack([model.step(BOWL.batch(3, index), {}).dense.numpy() for index in range(3)])
    run = lib.train(BOWL, "sync", VirtualCluster(workers=3, servers=servers), seed=3, save=False)
    first = applied(run).get_group(0)
    assert len(first) == servers  # a server has the norm of its share
    assert np.linalg.norm(first) == pytest.approx(np.linalg.norm(gradients.mean(0)), rel=1e-6)


def test_every_update_has_a_norm_and_nothing_else_has():
    """Where workers hold the dense parameters, servers have none."""
    run = lib.train(BOWL, "async", VirtualCluster(workers=3), save=False)
    norms = applied(run)
    assert norms.size().tolist() == [1] * 6 and norms.first().gt(0).all()
    assert run.trace.loc[run.trace["kind"] != "apply", "norm"].isna().all()
    assert lib.train(CLICKS, "all-reduce", VirtualCluster(workers=2), save=False).trace["norm"].isna().all()
