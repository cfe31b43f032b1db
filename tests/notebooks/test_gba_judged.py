"""The tables that GBA's claims read, with numbers that can be checked by hand."""

from itertools import product

import pandas as pd
import pytest

from notebooks.gba import sudden_drop, switching, tasks, tuning
from reports import claims


def daily_table(rows):
    return pd.DataFrame(rows, columns=["task", "direction", "protocol", "seed", "day", "auc"])


def test_the_switching_study_gives_every_modes_auc_on_the_first_day_the_last_and_on_average():
    rows = [
        (task, "from Sync", mode, 1000, day, 0.7 + 0.1 * (mode == "gba") + 0.01 * day + (task == "b") / 10)
        for task, mode, day in product("ab", ("sync", "gba"), (5, 6, 7))
    ]
    daily = daily_table(rows)
    regimes = {"a": [{"updates before": 3}, {"updates before": 5}], "b": [{"updates before": 7}]}
    judged = switching.claim_table(daily, regimes)
    judged = judged.set_index("subject")[["first", "last", "mean", "updates before"]].round(6)
    assert judged.loc["a from sync gba"].tolist() == [0.85, 0.87, 0.86, 4]
    assert judged.loc["b from sync sync"].tolist() == [0.85, 0.87, 0.86, 7]
    less = switching.beside_paper(daily)["mean"].unstack("protocol")
    assert less["sync"].tolist() == [0.0, 0.0] and less["gba"].tolist() == [100.0, 100.0]


def test_what_the_baselines_lose_is_set_beside_the_papers_before_gba_is_looked_at():
    auc = {"sync": 0.7, "bsp": 0.697, "hop-bs": 0.65, "gba": 0.6}
    daily = daily_table([("criteo", way, mode, 1000, 5, auc[mode]) for way in switching.DIRECTIONS for mode in auc])
    found = switching.baselines(daily)
    assert found.index.tolist() == [("criteo", "hop-bs"), ("criteo", "bsp")]
    bsp = found.loc["criteo", "bsp"]
    assert (bsp["mean"], bsp["mean, paper"], bsp["paper / here"]) == (-3.0, -9.0, 3.0)


def test_the_drops_have_a_subject_for_every_case_of_the_claims():
    found = [(task, case, 1000, 0.1) for task in ("criteo", "private") for case in sudden_drop.CASES]
    table = pd.DataFrame(found, columns=["task", "protocol", "seed", "drop"])
    judged = sudden_drop.claim_table(table)
    assert judged["subject"].is_unique and {"criteo, from sync", "private, async S"} <= set(judged["subject"])
    mine = [claim for claim in claims.load().values() if claim.notebook == "gba/figure_2_sudden_drop"]
    wanted = {name for claim in mine for each in claim.comparisons for name in each.subjects}
    assert len(mine) == 2 and wanted <= set(judged["subject"])


def test_a_drop_is_of_the_three_evaluations_after_the_switch():
    courses = {0.2: [0.6, 0.7, 0.68, 0.66, 0.69, 0.5], 1.0: [0.6, 0.7, 0.64, 0.60, 0.5, 0.72]}
    at = [25, 50, 55, 60, 65, 70]
    rows = [(share, x, y) for share, curve in courses.items() for x, y in zip(at, curve, strict=True)]
    found = sudden_drop.drops(pd.DataFrame(rows, columns=["share", "progress", "auc"]), ["share"]).set_index("share")
    assert found["drop"].round(6).to_dict() == {0.2: 0.04, 1.0: 0.2} and found["end"].to_dict() == {0.2: 0.5, 1.0: 0.72}


def test_a_control_of_the_drop_changes_one_thing(monkeypatch):
    asked = []

    def swept(job, places, **figures):
        asked.extend(job(**place) for place in places)
        return pd.DataFrame(places), []

    monkeypatch.setattr(sudden_drop.study, "run_grid", swept)
    monkeypatch.setattr(sudden_drop, "curves", lambda places, runs: pd.DataFrame(places).assign(progress=60, auc=0.5))
    task = tasks.TASKS["criteo"].at("smoke")
    sudden_drop.controls(task, "smoke", ["async (S)"], [3], [1, 10], [0.2, 1.0])
    plain, older, faster, both = asked
    assert plain == sudden_drop.job(task, "smoke", "async (S)", 3)
    assert {name for name in plain if plain[name] != older[name]} == {"cluster"}
    assert older["cluster"].worker.flops == pytest.approx(plain["cluster"].worker.flops / 5)
    assert {name for name in plain if plain[name] != faster[name]} == {"workload", "protocol"}
    rates = [job["protocol"].phases[1].dense_optimizer.lr for job in (plain, faster)]
    assert rates[1] == pytest.approx(10 * rates[0])
    assert (both["cluster"], both["protocol"]) == (older["cluster"], faster["protocol"])


def test_a_mode_is_held_against_what_stayed_at_the_same_progress():
    curve = {"sync S": [0.70, 0.71, 0.72, 0.73], "async S": [0.69, 0.66, 0.72, 0.50]}
    rows = [
        {"start": "from sync", "protocol": mode, "seed": 1, "progress": 5 * place + off, "auc": auc}
        for (mode, each), off in zip(curve.items(), (0, 0.3), strict=True)
        for place, auc in enumerate(each)
    ]
    below = sudden_drop.drops_below(pd.DataFrame(rows), {"from sync": "sync S"}, ["start", "protocol", "seed"])
    assert below.set_index("protocol")["below"].round(6).to_dict() == {"sync S": 0.0, "async S": 0.05}


def test_the_papers_tables_agree_with_its_averages():
    """Tab. 6.4 and 6.8: GBA's average over the tasks less each mode's, from Tab. 6.1 to 6.3 and 6.5 to 6.7."""
    daily = daily_table([(*place, 1, 0, 0.7) for place in product(tasks.TASKS, switching.DIRECTIONS, tasks.MODES)])
    paper = switching.beside_paper(daily)["mean, paper"].unstack("protocol").groupby("direction").mean()
    less = paper.sub(paper["gba"], axis=0)[["hop-bw", "hop-bs", "bsp", "async"]]
    assert less.loc["from Sync"].tolist() == pytest.approx([-2.5, -71.6, -3.4, -151.8], abs=0.11)
    assert less.loc["to Sync"].tolist() == pytest.approx([-3.6, -0.9, -4.0, -87.5], abs=0.11)


def test_a_modes_best_rates_are_those_of_the_best_mean():
    rows = [("gba", 0.1, 1.0, 0, 0.9), ("gba", 0.1, 1.0, 1, 0.5), ("gba", 0.3, 2.0, 0, 0.8), ("gba", 0.3, 2.0, 1, 0.7)]
    rows += [("gba", 0.3, 1.0, 0, 0.6), ("sync", 1.0, 1.0, 0, 0.1)]
    table = pd.DataFrame(rows, columns=["mode", "dense", "rows", "seed", "auc"])
    assert tuning.best(table) == {"gba": (0.3, 2.0), "sync": (1.0, 1.0)}
    lines = tuning.curves(table.assign(task="t")).query("mode == 'gba'")
    dense, rows = (lines[lines["of"] == f"rate of {axis}"] for axis in tuning.AXES)
    assert dense[["rate", "rows"]].values.tolist() == [[0.3, 2.0]] * 2, "where rows are at their best"
    assert rows[["rate", "auc"]].values.tolist() == [[2.0, 0.8], [2.0, 0.7], [1.0, 0.6]]


def test_times_the_papers_rates_is_both_its_optimisers():
    task = switching.at_factor(tasks.TASKS["criteo"], 10)
    assert (task.adam.lr, task.adagrad.lr) == pytest.approx((0.011, 0.06))
    assert switching.at_factor(tasks.TASKS["criteo"], 1) == tasks.TASKS["criteo"]
