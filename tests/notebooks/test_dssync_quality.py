"""DS-Sync's theory and its tables of accuracy, against numbers that can be checked by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import lib
from lib.tasks.vision import ImageClasses
from notebooks import study
from notebooks.dssync import batch_norm, convergence, quality, theory
from tests.toys import run_of

SHORT = {"steps": 5, "evaluations": 2}


def test_a_step_without_noise_by_hand():
    found = {rule: theory.course(rule, 4, 0, 3, 0.0) for rule in theory.RULES}
    for course in found.values():  # equal workers stay equal, whoever averages
        pd.testing.assert_series_equal(course["distance"], found["bsp"]["distance"])
        assert course["apart"].max() < 1e-20
    first = found["ds-sync"].iloc[0]
    least, most = ((1 - theory.rate(1) * c) ** 2 * theory.FAR**2 for c in (1.0, theory.MU))
    assert least < first["distance"] < most


def test_bounds_by_hand():
    found = pd.DataFrame({"step": [1, 2], "gradient": [2.0, 1.0]})
    limits = theory.bounds(found, 4, 4.0)
    v = max(4 * (16 / 2 + 8 * 2) / 0.0625, 33 * 9)
    np.testing.assert_allclose(limits["distance"], [v / 33, v / 34])
    np.testing.assert_allclose(limits["loss"], limits["distance"] / 2)
    assert limits["loss, Eq. 21"].iloc[0] == pytest.approx(8 / 33 * (24 / 0.25 + 18))


def test_lemma_a1_by_hand():
    """Two workers at 1 and 3 in one direction, mean 2 and variance 1; a rate of 0.5 and mu of 0.25."""
    groups, x = np.full((2, 2), 0.5), np.array([[1.0], [3.0]])
    after = theory.expected_distance(groups @ x, np.array([1.0]), 0.5, 2.0, groups)
    np.testing.assert_allclose(after, [1 + 0.5] * 2)  # half of the mean, squared, and the noise's (0.5 x 2)^2 / 2
    np.testing.assert_allclose(theory.lemma_a1(x, 0.5, 2.0, groups), [0.875 * 4 + 0.5 + 2] * 2)


def test_lemma_a1_fails_at_rates_above_two_over_l():
    x, groups = np.array([[1.0]]), np.eye(1)
    for rate, holds in ((0.25, True), (1.74, True), (1.76, False)):  # (1 - rate)^2 against 1 - rate / 4: equal at 1.75
        left = theory.expected_distance(x, np.array([1.0]), rate, 0.0, groups)[0]
        assert (left <= theory.lemma_a1(x, rate, 0.0, groups)[0]) == holds


def test_lemma_a2_is_an_equality_for_groups_and_fails_without_an_average():
    found = theory.courses(theory.RULES, [16], 2, [0], 4.0).groupby("rule")["variance over bound"].first()
    assert found.to_dict() == pytest.approx({"ds-sync": 1, "bsp": 1 / 4, "alone": 4})


def test_what_is_judged_of_the_theory_by_hand():
    """A distance of 10 / (t + gamma) falls with the power -1; BSP's is half of it on the one seed that both have."""
    steps = np.arange(1, 101)
    rows = {
        (rule, seed): pd.DataFrame({"step": steps, "distance": scale / (steps + theory.GAMMA)})
        for rule, seed, scale in (("ds-sync", 0, 10.0), ("ds-sync", 1, 90.0), ("bsp", 0, 5.0))
    }
    parts = [
        each.assign(rule=rule, seed=seed, workers=4, apart=0.0, loss=0.0, gradient=1.0).assign(
            **{"one step over bound": 0.5, "variance over bound": 1.0}
        )
        for (rule, seed), each in rows.items()
    ]
    found = theory.claim_table(pd.concat(parts), 4.0).set_index(["rule", "seed"])
    assert found["power"].tolist() == pytest.approx([-1] * 3) == found["power of the mean"].tolist()
    assert found["end over bsp"].tolist() == pytest.approx([2, 2, 1])


def test_workers_who_never_average_fall_as_fast_and_end_further():
    data = theory.courses(["ds-sync", "bsp", "alone"], [9], 2_000, range(4), 4.0)
    found = theory.claim_table(data, 4.0).groupby("rule").first()
    assert found.loc["alone", "power of the mean"] < -0.8
    assert found.loc["ds-sync", "end over bsp"] < 1.05 < 5 < found.loc["alone", "end over bsp"]


def test_all_modes_try_the_same_rates_on_the_same_data():
    jobs = [quality.job("clicks", mode, 7, rate=3.0, **SHORT) for mode in (*quality.MODES, quality.FROZEN)]
    assert len({job["workload"] for job in jobs}) == 1 and jobs[0]["workload"].world == 7
    own = quality.TASKS["clicks"].workload
    assert jobs[0]["workload"].dense_optimizer.lr == pytest.approx(3 * own.dense_optimizer.lr)
    assert jobs[0]["workload"].batches() == 4 * 5 * quality.LONGER["clicks"]


def test_sixteen_workers_are_another_job_and_four_the_same_as_ever():
    four, sixteen = (quality.job("images", "BSP", 7, workers=workers, **SHORT) for workers in (4, 16))
    assert four == quality.job("images", "BSP", 7, **SHORT)
    assert (sixteen["cluster"].workers, sixteen["workload"].batches()) == (16, 16 * 5)


def test_images_of_a_folder_take_the_place_of_synthetic_ones_and_nothing_else_changes(monkeypatch):
    work = quality.TASKS["images"].workload.work()
    monkeypatch.setattr(ImageClasses, "work", lambda self: work)  # which would look into the folder
    synthetic = quality.job("images", "BSP", 7, **SHORT)
    monkeypatch.setitem(study.PAGE, "data", "cifar")
    folder = type("Folder", (), {"manifest": {"dataset": "cifar-10"}})
    monkeypatch.setattr(quality.prepared_datasets, "Partitions", lambda path: folder)
    real, other = (quality.job("images", "BSP", 7, **SHORT), batch_norm.job("BSP", "none", 7, **SHORT))
    for made in (real, other):
        assert made["workload"].data == "cifar" and made["workload"].batches() == 4 * 5
    assert replace(real["workload"], data=None) == synthetic["workload"]


def test_courses_count_steps_of_each_worker():
    place = {"task": "clicks", "mode": "BSP", "seed": 7}
    run = lib.train(**quality.job(**place, steps=4, evaluations=2, workers=2), save=False)
    course = quality.histories([place], [run])
    assert course["step"].tolist() == [40, 80] and course["metric"].max() == quality.best(run, "clicks")
    ends = quality.ends(run, **place)
    assert ends["quality"] == run.summary["expected_auc"] and ends["quality by labels"] == run.summary["auc"]
    assert ends["log loss or EM"] == run.history["expected_logloss"].min()


def test_what_the_last_fifth_of_a_run_brought_by_hand():
    """Ten evaluations: the last minus the eighth. Of losses the least is the best."""
    course = {"samples": range(1, 11), "loss": [2.0, 0.5, *([1.0] * 8)]}
    course["accuracy"] = [0.1 * at for at in range(1, 9)] + [0.95, 0.9]
    run = run_of(course, {"cluster": {"workers": 4}}, issued=40)
    ends = quality.ends(run, "images")
    assert ends["last fifth"] == pytest.approx(0.1) and ends["best"] == 0.95 and ends["log loss or EM"] == 0.5
    assert ends["quality"] == pytest.approx(0.925)
    once = run_of({"samples": [1], "accuracy": [0.3], "loss": [1.0]}, {"cluster": {"workers": 4}}, issued=4)
    assert quality.ends(once, "images")["last fifth"] == 0


def test_ways_of_batch_norm_share_their_training_with_the_tables():
    jobs = {tuple(place.values()): batch_norm.job(**place, **SHORT) for place in batch_norm.cases([7])}
    assert len(jobs) == 7 and jobs["BSP", "naive", 7]["protocol"].statistics == "naive"
    assert jobs["DS-Sync", "settled", 7] == quality.job("images", "DS-Sync", 7, **SHORT)
    for way in ("naive", "pooled", "none"):
        assert jobs["DS-Sync", way, 7]["protocol"].statistics == way
    assert [jobs["BSP", way, 7]["workload"].norm for way in ("settled", "none")] == ["settled", "running"]


def test_what_a_way_gains_over_bsp_by_hand():
    places = batch_norm.cases([7, 8])
    bests = {"BSP, settled": 0.5, "BSP, none": 0.2, "BSP, naive": 0.4, "DS-Sync, naive": 0.45, "DS-Sync, settled": 0.52}
    runs = [
        run_of({"accuracy": [best, best - 0.02 * (mode + way == "DS-Syncnaive")], "samples": [1, 2]}, train_loss=1.0)
        for mode, way, seed in map(dict.values, places)
        for best in [bests.get(f"{mode}, {way}", 0.3)]
    ]
    data = batch_norm.claim_table(places, runs).set_index(["subject", "seed"])
    row = data.loc["DS-Sync, naive", 7]
    assert row["best over BSP"] == pytest.approx(0.05) and row["quality over BSP"] == pytest.approx(0.03)
    assert row["by the best"] == pytest.approx(0.02)
    assert data.loc[("DS-Sync, settled", 8), "best over BSP"] == pytest.approx(0.02)


def test_steps_and_seconds_to_the_target_by_hand():
    """BSP's best of 0.8 and 0.6, whose deviation is 0.1414; a straight line between two evaluations."""
    courses = {("BSP", 0): (0.4, 0.8), ("BSP", 1): (0.6, 0.6), ("DS-Sync", 0): (0.6, 0.7), ("DS-Sync", 1): (0.2, 0.4)}
    rows = [
        {"task": "images", "protocol": mode, "seed": seed, "workers": 4, "step": 10.0 * at, "metric": metric}
        for (mode, seed), course in courses.items()
        for at, metric in enumerate(course, 1)
    ]
    step = {("images", 4, mode, seed): {"BSP": 2.0, "DS-Sync": 1.0}[mode] for mode, seed in courses}
    timed = convergence.with_seconds(pd.DataFrame(rows), pd.Series(step))
    found = convergence.steps_to_target(timed).set_index(["subject", "seed"])
    deviation = np.std([0.8, 0.6], ddof=1)
    steps = 10 + 10 * (0.4 - deviation) / 0.4
    assert found.loc[("BSP, images, 4", 0), "steps"] == pytest.approx(steps)
    assert found.loc[("BSP, images, 4", 0), "seconds"] == pytest.approx(2 * steps)
    assert found.loc[("BSP, images, 4", 1), "steps"] == 10  # it begins above it
    assert found.loc[("DS-Sync, images, 4", 0), "steps"] == pytest.approx(10 + 10 * (0.2 - deviation) / 0.1)
    never = found.loc[("DS-Sync, images, 4", 1)]
    assert (never["steps"], never["seconds"], never["there"]) == (20, 20, 0)
    assert (never["course"], never["steps of a worker"]) == (pytest.approx(0.3), 20)
    assert found.loc[("DS-Sync, images, 4", 1), "above target"] == pytest.approx(0.4 - 0.6 + deviation)
    beside = convergence.beside_paper(found.reset_index()).loc[("images", 4)]
    first = steps / (10 + 10 * (0.2 - deviation) / 0.1)
    assert beside["paper's seconds"] == pytest.approx(2.837, abs=5e-4)
    assert beside["steps"] == pytest.approx((first + 10 / 20) / 2)


def test_images_rates_fall_where_the_papers_do_and_questions_take_longer():
    made = {task: quality.job(task, "BSP", 500, steps=100, evaluations=1)["workload"] for task in quality.TASKS}
    images = made["images"]
    rates = [images.lr_factor_at(epoch / 200 * images.samples) for epoch in (0, 59, 60, 120, 160, 200)]
    assert rates == pytest.approx([1, 1, 0.2, 0.04, 0.008, 0.008])
    assert made["clicks"].lr_factor_at(made["clicks"].samples) == 1
    batches = {task: each.batches() for task, each in made.items()}
    steps = {task: count / quality.WORKERS / 100 for task, count in batches.items()}
    assert steps == {"images": 1, "questions": 2, "clicks": 20}
    steady = quality.with_constant_rate(quality.job("images", "BSP", 500, steps=100, evaluations=1))["workload"]
    assert steady.lr_factor_at(steady.samples) == 1 and replace(steady, lr_milestones=images.lr_milestones) == images
