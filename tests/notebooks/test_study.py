"""The study helper, by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import lib
from lib import Job, workloads
from lib.errors import LockstepError
from notebooks import study
from notebooks.bench import noise_floor
from reports import claims
from tests.toys import run_of


def test_a_grid_s_last_axis_turns_fastest():
    found = study.grid(task=("a", "b"), seed=range(2))
    assert [(each["task"], each["seed"]) for each in found] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert study.grid(task=(), seed=range(2)) == []


def test_a_study_s_table_tells_of_each_place_s_run():
    def job(protocol, seed):
        return {"workload": "quadratic", "protocol": protocol, "cluster": cluster, "seed": seed, "samples": 640}

    cluster, places = lib.VirtualCluster(workers=2), study.grid(protocol=("sync", "async"), seed=(0, 1))
    data, runs = study.run_grid(
        job, places, lambda run, protocol, seed: {"where": f"{protocol} {seed}"}, loss="loss", qps=study.pace
    )
    made = [(run.provenance["protocol"]["name"], run.provenance["seed"]) for run in runs]
    assert made == [("sync", 0), ("sync", 1), ("async", 0), ("async", 1)]
    assert data.columns.tolist() == ["protocol", "seed", "loss", "qps", "where"]
    assert data["where"].tolist() == ["sync 0", "sync 1", "async 0", "async 1"]
    assert data["loss"].tolist() == [run.summary["loss"] for run in runs]
    assert data["qps"].tolist() == [run.steady_qps for run in runs]
    with pytest.raises(ValueError, match="shorter"):
        study.table(places, runs[:-1], loss="loss")
    with pytest.raises(LockstepError):
        study.run_grid(lambda seed: {"protocol": "sync", "seed": seed}, study.grid(seed=[0]))


def test_the_last_fifth_has_ten_evaluations_of_which_the_end_is_one():
    late = (0.82, 0.84, 0.86, 0.88, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)
    assert study.marks() == late and study.marks(10) == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, *late)
    assert sum(share > study.EARLY for share in study.marks(7)) == 10


def test_smoke_which_judges_nothing_has_two_late_evaluations_on_few_samples():
    study.use("smoke")
    assert study.marks() == (0.9, 1.0) and study.marks(20) == (1 / 3, 2 / 3, 0.9, 1.0) == study.marks(3)
    workload = workloads.get("ctr-synthetic")
    made = study.job(workload, "sync", "virtual", 0)
    assert made["evaluations"] == study.marks() and made["workload"].evaluation_samples == study.SMOKE_SAMPLES
    fewer = replace(workload, evaluation_samples=100)
    assert study.job(fewer, "sync", "virtual", 0)["workload"] is fewer
    study.use("laptop")
    assert len(study.marks()) == 10 and study.job(workload, "sync", "virtual", 0)["workload"] is workload


def known_and_not(auc):
    """A run that was evaluated twice in its last fifth, by labels, and where `auc` says so under the truth."""
    history = pd.DataFrame({"samples": [500, 900, 1000], "auc": [0.1, 0.6, 0.8]})
    history = history if auc is None else history.assign(expected_auc=auc)
    return run_of(history, auc=0.8, qps=5.0)


def test_a_table_has_qualities_under_the_truth_and_by_labels_next_to_them():
    runs = [known_and_not(None), known_and_not([0.2, 0.5, 0.6])]
    data = study.table([{"seed": 1}, {"seed": 2}], runs, quality="auc", qps="qps")
    assert data["quality"].tolist() == pytest.approx([0.7, 0.55]) and data["qps"].tolist() == [5, 5]
    assert data["quality by labels"].tolist() == pytest.approx([np.nan, 0.7], nan_ok=True)
    courses = study.histories([{"seed": 1}, {"seed": 2}], runs, "samples", "auc")
    assert courses["auc"].tolist() == [0.1, 0.6, 0.8, 0.2, 0.5, 0.6]
    assert courses["auc by labels"].tolist() == pytest.approx([np.nan] * 3 + [0.1, 0.6, 0.8], nan_ok=True)


def test_the_results_of_runs_have_their_qualities_in_place_of_the_last_metrics():
    run = replace(known_and_not([0.2, 0.5, 0.6]), provenance={"seed": 7})
    row = claims.results({"gba": [run]}).iloc[0]
    assert (row["subject"], row["seed"], row["qps"]) == ("gba", 7, 5.0) and row["auc"] == pytest.approx(0.55)


def test_labels_that_differ_by_more_than_their_noise_are_named():
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.001, 8)
    data = pd.DataFrame({"seed": np.arange(8), "auc": 0.7, "auc by labels": 0.7 + noise})
    twice = pd.concat([data, data])  # the runs of a seed have one set of labels
    assert study.by_labels(data) == study.by_labels(twice) and "within its noise" in study.by_labels(data)
    wrong = data.assign(**{"auc by labels": data["auc by labels"] + 0.01})
    assert "more than its noise explains" in study.by_labels(wrong)
    assert study.by_labels(data.drop(columns="auc by labels")) == ""


def test_a_run_whose_quality_counts_is_evaluated_ten_times_and_a_timing_run_never():
    what = ("ctr-synthetic", "sync", "virtual", 0)
    assert study.job(*what)["evaluations"] == study.marks()
    assert study.job(*what, evaluations=1)["evaluations"] == 1
    assert "evaluations" not in study.job(*what, gradients=False)


@pytest.mark.parametrize("name", noise_floor.TASKS)
def test_the_pages_tasks_are_judged_by_ten_evaluations_of_the_last_fifth(name):
    task = noise_floor.TASKS[name]
    for protocol in task.protocols:
        job = task.job(protocol=protocol, seed=500)
        plan = Job.of(**job).staged_run.plan
        late = [place for place in plan.eval_at if place > 0.81 * plan.samples]
        assert len(late) == 9 or job["evaluations"] == "daily"  # and the end


def hill(dense=0.03, rows=0.001):
    """A quality with its top at these rates, and the places that it was asked for."""
    asked = []

    def measured(places):
        asked.append(places)
        return [-abs(np.log(p["dense"] / dense)) - 2 * abs(np.log(p["rows"] / rows)) + p["seed"] / 100 for p in places]

    return measured, asked


AXES = {"dense": (0.01, 0.001, 0.003), "rows": (0.003, 0.01)}


def test_a_grid_goes_on_until_its_best_is_inside():
    measured, asked = hill()
    curve = study.climb(measured, AXES, seeds=(0, 1))
    assert curve["inside"].all() and list(curve) == ["dense", "rows", "seed", "value", "inside"]
    assert len(asked[0]) == 2 * 6, "first the grid"
    best = curve.groupby(["dense", "rows"])["value"].mean().idxmax()
    assert best == (0.03, 0.0009), "beyond both edges, in the rhythm of what was given"
    tried = set(map(tuple, curve[["dense", "rows"]].values))
    assert {(0.1, 0.0009), (0.01, 0.0009), (0.03, 0.00027), (0.03, 0.003)} <= tried
    assert len(curve) == 2 * len(tried) == sum(map(len, asked)), "nothing is tried twice"


def test_axes_are_tuned_apart_and_one_with_a_single_value_is_not():
    measured, asked = hill()
    curve = study.climb(measured, {"dense": AXES["dense"], "rows": (0.01,)}, seeds=(0,))
    assert curve["inside"].all() and set(curve["rows"]) == {0.01}
    assert set(curve["dense"]) == {0.001, 0.003, 0.01, 0.03, 0.1}
    assert [len(places) for places in asked] == [3, 1, 1]


def test_a_best_that_was_not_come_to_is_said():
    measured, asked = hill(dense=1e9, rows=0.003)
    curve = study.climb(measured, AXES, seeds=(0,), most=2)
    assert not curve["inside"].any() and len(asked) == 3 and curve["dense"].max() == 0.1
    assert study.climb(measured, AXES, seeds=(0,), most=0)["dense"].max() == 0.01


def test_an_axis_ends_at_its_limits():
    measured, _ = hill(dense=1e9, rows=0.005)
    curve = study.climb(measured, AXES, seeds=(0,), limits={"dense": (0, 0.05)})
    assert curve["inside"].all() and curve["dense"].max() == 0.03


def test_a_setting_that_fails_on_a_seed_is_no_best():
    measured, _ = hill()

    def sometimes(places):
        return [
            np.nan if p["dense"] > 0.005 and p["seed"] else x for p, x in zip(places, measured(places), strict=True)
        ]

    curve = study.climb(sometimes, AXES, seeds=(0, 1))
    means = curve.groupby(["dense", "rows"])["value"].apply(lambda each: each.mean(skipna=False))
    assert curve["inside"].all() and means.idxmax()[0] == 0.003 and curve["dense"].max() == 0.01


def test_runs_are_paired_by_what_they_share():
    """Rows in no order: each is held against the base with its own task and seed, and against nothing where there is none."""
    rows = [("a", "gba", 1, 5), ("a", "sync", 0, 1), ("b", "gba", 0, 7), ("a", "gba", 0, 4), ("a", "sync", 1, 2)]
    data = pd.DataFrame(rows, columns=["task", "protocol", "seed", "auc"])
    found = study.baseline(data, "auc", ["task", "seed"], protocol="sync")
    np.testing.assert_array_equal(found, [2, 1, np.nan, 1, 2])
    np.testing.assert_array_equal(study.baseline(data[:4], "auc", ["task"], protocol="sync", seed=0), [1, 1, np.nan, 1])


def test_courses_have_their_places_and_no_gaps():
    history = pd.DataFrame({"samples": [1, 2, 3], "auc": [np.nan, 0.5, 0.6], "loss": [1.0, 1.0, 1.0]})
    found = study.histories([{"seed": 7}], [run_of(history)], "samples", "auc")
    assert found.to_dict("list") == {"samples": [2, 3], "auc": [0.5, 0.6], "seed": [7, 7]}


def test_each_run_is_held_against_that_of_its_own_seed():
    """Worlds 0.5 apart, modes 0.1: unpaired, the spread of the worlds would hide them."""
    rows = [("sync", 1, 0.5), ("sync", 2, 1.0), ("async", 1, 0.4), ("async", 2, 0.9), ("async", 3, 0.7)]
    data = pd.DataFrame(rows, columns=["protocol", "seed", "auc"])
    found = study.differences(data, ["auc"], ["seed"], protocol="sync")
    assert found["auc less sync's"].tolist()[:4] == pytest.approx([0, 0, -0.1, -0.1])
    assert found["auc less sync's"].isna().tolist() == [False] * 4 + [True], "nobody to be held against"
    assert "auc less sync's" not in data
