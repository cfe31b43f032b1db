"""A run's regime, with numbers by hand, and beside a paper's."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import lib
from lib import paths
from lib.tasks.flat_model import Batch
from notebooks import regime
from notebooks.gba import tasks

ADAM, SLOW = {"name": "adam", "lr": 0.01}, {"name": "adam", "lr": 0.002}


def run(rule, issued, samples=None, **phase):
    """Of 8 workers with batches of 10, whose rows and dense parameters learn at one rate; a phase may say otherwise."""
    protocol = {"name": rule, "phases": [{"protocol": {"name": rule}, **phase}]} if phase else {"name": rule}
    workload = {"batch_size": 10, "dense_optimizer": ADAM, "row_optimizer": ADAM}
    made = {"protocol": protocol, "workload": workload, "cluster": {"workers": 8}, "seed": 3}
    summary = {"issued": issued, "samples": samples or 10 * issued, "staleness_mean": 0.5, "staleness_max": 4}
    return SimpleNamespace(provenance=made, summary=summary | {"sync_gap": float("nan")})


def test_updates_are_counted_by_what_the_rule_sums():
    """400 batches are 50 updates of Sync's eight workers, and 400 of Async's."""
    found = regime.cells(run("sync", 400), [run("async", 400), run("sync", 80)], brings=0.25)
    sizes = {"workers": 8, "batch": 10, "updates before": 410, "updates judged": 50, "global batch": 80}
    ages = {"age in versions": 0.5, "oldest in versions": 4, "brings": 0.25}
    assert found == {**sizes, "rate of dense": 0.01, "rate of rows": 0.01, **ages}
    phase = {"workers": 20, "batch_size": 5, "dense_optimizer": SLOW, "row_optimizer": None}
    found = regime.cells(run("gba", 100, **phase))
    assert (found["updates judged"], found["global batch"]) == (5, 100)
    assert (found["rate of dense"], found["rate of rows"]) == (0.002, 0.01), "what a phase leaves is the run's"


def test_conflicts_and_ages_are_told_where_the_protocol_has_them():
    pipeline = run("oac", 10)
    pipeline.summary |= {"rows_read": 200, "rows_validated_away": 30, "data_staleness_mean": 0.1, "sync_gap": 7.0}
    found = regime.cells(pipeline)
    assert (found["conflicts"], found["age in tokens"], found["gap"]) == (0.15, 0.1, 7.0)
    assert "oldest in tokens" not in found


class Stream:
    """Sample n has the id n // 2 in one table, and the one id of another."""

    def tables(self):
        return {"pairs": None, "one": None}

    def model(self, seed):
        return torch.nn.Linear(3, 1)

    def draw(self, seed, first, size, index):
        assert seed == 3
        places = np.arange(first, first + size)
        return Batch.of(index=index, raw={"pairs": places // 2, "one": 0 * places}, size=size, features={})


def test_ids_are_counted_in_the_stream(monkeypatch):
    """100 samples have 50 ids and the one; of ten batches of 10 that one alone is in most."""
    assert regime.ids(Stream(), 3, 10, 100) == {"samples per id": 100 / 51, "rows in most batches": 1 / 51}
    assert regime.ids(Stream(), 3, 10, 240)["samples per id"] == 240 / 121, "beyond ten batches too"
    monkeypatch.setattr(regime, "MOST", 120)
    assert regime.ids(Stream(), 3, 10, 240)["samples per id"] == 120 / 61, "not of more than can be counted"
    found = regime.cells(run("sync", 8), [run("sync", 2)], Stream())
    assert found["samples per id"] == 100 / 51, "before the stretch and in it"
    assert found["parameters"] == 4


def test_what_strays_by_more_than_four_times_is_marked():
    assert [regime.mark(400, there) for there in (1780, 1600, 99)] == ["400 ▼ 4.45×", "400", "400 ▲ 4.04×"]
    assert [regime.mark(*pair) for pair in ((0, 2), (0, 0), (5, None), (None, 5))] == ["0 ▼ inf×", "0", "5", "–"]


def test_the_table_has_ours_beside_the_papers():
    ours = {"a": [{"updates before": 100, "global batch": 8}, {"updates before": 300, "global batch": 8}], "b": [{}]}
    table = regime.table(ours, {"a": {"updates before": 1000, "age in tokens": 0.2}})
    assert table.columns.tolist() == [("a", "here"), ("a", "paper"), ("b", "here")], "b has no figure of the paper"
    assert table.index.tolist() == [regime.CELLS[c] for c in ("updates before", "global batch", "age in tokens")]
    assert table["a", "here"].tolist() == ["200 ▼ 5×", "8", "–"]
    assert table["a", "paper"].tolist() == ["1 000".replace(" ", "\u202f"), "–", "0.2"]
    assert table["b", "here"].tolist() == ["–"] * 3


def test_a_real_run_tells_its_regime():
    workload = lib.workloads.get("ctr-synthetic", samples=512, batch_size=16)
    made = lib.train(workload, "gba", lib.VirtualCluster(workers=4, slowdown=0.6), save=False)
    found = regime.cells(made, (), workload)
    assert (found["updates judged"], found["global batch"]) == (8, 64) and found["updates before"] == 0
    assert found["age in tokens"] == made.summary["data_staleness_mean"] and 0 < found["rows in most batches"] < 1


def test_what_the_paper_has_are_cells_of_tasks():
    """Sec. 5.1 and Tab. 5.1: days of the base and of the study, samples of a day over Sync's global batch."""
    for path in paths.notebooks().glob("*/regime.yaml"):
        tasks_of_it = regime.paper_regime(path.parent.name).values()
        assert all(cells.keys() <= regime.CELLS.keys() for cells in tasks_of_it), path
    paper = regime.paper_regime("gba")
    assert paper.keys() == tasks.TASKS.keys()
    for name, task in tasks.TASKS.items():
        batch = task.sync[0] * task.printed.sync
        base, study = map(int, task.printed.days.split("+"))
        assert paper[name]["global batch"] == batch
        assert paper[name]["updates before"] == pytest.approx(base * task.printed.day / batch, abs=1)
        assert paper[name]["updates judged"] == pytest.approx(study * task.printed.day / batch, abs=1)
        assert paper[name]["rate of dense"] == paper[name]["rate of rows"] == task.printed.adam


def test_a_pages_runs_stand_beside_a_papers(monkeypatch):
    monkeypatch.setattr(regime, "paper_regime", lambda paper: {"a": {"brings": 0.5}})
    runs = [run("sync", 400), run("sync", 80)]
    monkeypatch.setattr(regime, "_workload", lambda described: None)
    data = pd.DataFrame({"task": ["a", "a"], "brings": [0.1, 0.3]}, index=[0, 1])
    table = regime.comparison(data, runs, "paper")
    assert table.loc[regime.CELLS["brings"], ("a", "here")] == "0.2"
    assert table.loc[regime.CELLS["brings"], ("a", "paper")] == "0.5"
    second = regime.comparison(data.iloc[1:], runs, "paper").loc[regime.CELLS["updates judged"], ("a", "here")]
    assert second == "10", "80 batches of eight workers"
