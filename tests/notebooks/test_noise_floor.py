"""How far rounding moves a quality: what is changed, and what is said of it, by hand."""

import re

import pandas as pd
import pytest

import lib
from notebooks import noise_floor, study
from notebooks.bench import noise_floor as bench
from reports.runner import notebook_files
from tests.toys import clicks


def test_starts_differ_by_rounding_and_nothing_else():
    job = study.job(clicks(16 * 40, 16), "sync", lib.VirtualCluster(workers=2), 0, evaluations=1)
    same, other = (bench.nudge(job, start) for start in (0, 3))
    assert same == job and {name for name in job if job[name] != other[name]} == {"workload"}
    assert other["workload"].scale / job["workload"].scale - 1 == pytest.approx(6e-7, rel=1e-3)
    runs = [lib.train(**each, save=False) for each in (job, other)]
    assert runs[0].digest != runs[1].digest and runs[0].trace.equals(runs[1].trace)
    losses = [run.history["train_loss"].iloc[0] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_has_no_rows_takes_its_first_step_a_little_further():
    job = {"workload": lib.workloads.get("cifar10-wrn")}
    rates = [bench.nudge(job, start)["workload"].dense_optimizer.lr for start in (0, 2)]
    assert rates[1] / rates[0] - 1 == pytest.approx(4e-7, rel=1e-3)


def test_the_spread_is_over_the_starts_of_a_seed(monkeypatch):
    ends = iter([0.7, 0.7, 0.7, 0.9, 0.6, 0.8])
    toy = bench.Task(lambda protocol, seed: {"workload": clicks(32, 16)}, ("sync", "gba", "async"))
    monkeypatch.setitem(bench.TASKS, "toy", toy)
    monkeypatch.setattr(study, "run", dict)
    monkeypatch.setattr(study, "quality", lambda run, metric: next(ends))
    found = bench.measure("toy", [500], starts=2)
    assert found["protocol"].tolist() == ["sync", "gba", "async"] and found["seed"].tolist() == [500] * 3
    assert found["spread"].tolist() == pytest.approx([0, 0.1 * 2**0.5, 0.1 * 2**0.5])


def test_the_note_has_the_spread_pooled_over_the_seeds(monkeypatch, tmp_path):
    rows = [("persia", "auc", "sync", 1, 3e-5), ("persia", "auc", "sync", 2, 4e-5), ("gba", "auc", "sync", 1, 1.0)]
    table = tmp_path / "floor.csv"
    monkeypatch.setattr(noise_floor, "TABLE", table)
    data = pd.DataFrame({"seed": [1, 2], "auc": [0.7, 0.7]})
    assert noise_floor.note(data, "persia") == "", "it was not measured, and there are no labels"
    pd.DataFrame(rows, columns=[*bench.SAME, "seed", "spread"]).to_csv(table)
    assert noise_floor.floor("persia")["sync"] == pytest.approx(12.5**0.5 * 1e-5)
    assert noise_floor.note(data, "persia").endswith("by a standard deviation of 4e-05 (sync).")


def test_captions_quote_the_floor_of_a_task_that_is_measured():
    texts = (each.path.read_text(encoding="utf-8") for each in notebook_files.experiments())
    named = [name for text in texts for name in re.findall(r'noise_floor\.note\(.*?, \\"([a-z ]+)\\"', text)]
    assert len(named) >= 15 and {*named} <= {*bench.TASKS}
