"""An estimate counts what a page's runs would cost, from short runs in their place."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

import lib
from lib import VirtualCluster
from lib.training import train
from reports.runner import estimate


@pytest.fixture
def noted(monkeypatch, tmp_path):
    monkeypatch.setenv(estimate.FOUND, str(tmp_path / "runs"))
    monkeypatch.setenv(train.STAND_IN, "reports.runner.estimate:stand_in")
    (tmp_path / "runs").touch()
    return lambda: [json.loads(line) for line in (tmp_path / "runs").read_text().splitlines()]


def test_a_run_is_noted_with_its_own_size_and_a_short_one_is_made(noted):
    run = lib.train("clicks-light", "gba", VirtualCluster(workers=4), samples=1_000_000, save=False)
    (row,) = noted()
    assert (row["samples"], row["batch"], row["workers"], row["heavy"]) == (1_000_000, 64, 4, False)
    assert row["parameters"] == sum(each.numel() for each in lib.workloads.get("clicks-light").model(0).parameters())
    assert run.summary["samples"] == 4 * 4 * 64 and 0 < run.summary["auc"] < 1 and row["each"] > 0


def test_an_example_is_made_whole(noted):
    run = lib.train("clicks-light", "gba", VirtualCluster(workers=2), batch_size=8, samples=960, save=False)
    assert run.summary["samples"] == 960 and noted()[0]["samples"] == 960
    lib.train("clicks-light", "gba", VirtualCluster(workers=2), batch_size=8, samples=96_000, save=False)
    example, more = noted()
    assert more["kind"] and not example["kind"] and more["each"] != example["each"]  # which has what compiling took


def test_a_small_model_stands_in_for_one_that_takes_long(noted):
    lib.train("criteo-ffnn", "hybrid", VirtualCluster(workers=2), profile="full", samples=40_000_000, save=False)
    (row,) = noted()
    assert row["heavy"] and row["parameters"] == pytest.approx(12.9e6, rel=0.01) and row["batch"] == 4_096
    assert row["operations"] == pytest.approx(6 * 12.9e6 * 4_096, rel=0.01) and row["replicas"] == 2


def test_a_rule_for_which_a_few_batches_are_too_few_gets_more(noted):
    lib.train("clicks-light", "fr-easgd", VirtualCluster(workers=2), every=30, samples=100_000, save=False)
    assert len(noted()) == 1


def test_a_run_that_goes_on_from_another_costs_what_is_left(noted):
    cluster = VirtualCluster(workers=2)
    first = lib.train("clicks-light", "sync", cluster, samples=64_000, keep=True, save=False)
    lib.train("clicks-light", "gba", cluster, samples=256_000, start=first, save=False)
    assert [row["samples"] for row in noted()] == [64_000, 192_000]


@pytest.mark.parametrize("evaluations", [0, 1, 12, 40])
@pytest.mark.parametrize("batches", [6, 100])
def test_evaluations_are_no_part_of_a_batchs_cost(monkeypatch, evaluations, batches):
    """Where there are more of them than batches, several are one, and a longer run has more: 0.1 s each, a batch 1 ms."""

    def seconds(job, own, batch, length):
        many = batches * length
        run = SimpleNamespace(history=pd.DataFrame({"step": [None] * evaluations}))
        return run, 0.3 + 0.1 * min(evaluations, many) + 0.001 * many, float(many)

    monkeypatch.setattr(estimate, "_seconds", seconds)
    fixed, each = estimate._costs(None, None, 10, 1)
    assert each == pytest.approx(0.001) and fixed == pytest.approx(0.3 + 0.1 * evaluations)


def test_the_sums_are_those_of_the_runs():
    """1,000 batches at 0.1 s with 60 s before them are 160 s; two such runs are 0.0889 hours."""
    row = {"workload": "w", "parameters": 10**6, "batch": 10, "workers": 4, "replicas": 4, "samples": 10_000}
    row |= {"gradients": True, "operations": 1e6, "fixed": 60.0, "each": 0.1, "heavy": False}
    row |= {"row numbers": 10, "ids": 10**6}
    text = estimate.summary_of("page", "full", [row, row])
    assert "page at full: 2 runs, 20,000 samples, 0.0889 core hours on this machine" in text
    assert "0.064 GB of dense parameters with gradients and state on the device, 0.04 GB of rows" in text
    assert "at least" not in text
    cut = estimate.summary_of("page", "full", [row], "cell 4: no")
    assert "at least 1 runs" in cut and "cell 4: no" in cut


def test_a_pass_that_is_no_longer_than_a_short_run_is_taken_as_it_is(noted, monkeypatch):
    """Both have the same 4 batches and differ by chance: 3 s in place of 2 are 0.75 s a batch, not 1 s for each batch more."""
    own, seconds = estimate._seconds, iter([9.0, 2.0, 3.0])
    monkeypatch.setattr(estimate, "_seconds", lambda *given: (own(*given)[0], next(seconds), 4.0))
    lib.train("clicks-light", "sync", VirtualCluster(workers=1), batch_size=256, samples=1_024, save=False)
    (row,) = noted()
    assert (row["each"], row["fixed"]) == (0.75, 0.0)
