"""ShadowSync's cluster: its pace follows from the paper's figures, and what is said of a curve can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

import lib
from lib import protocols, workloads
from lib.papers.shadowsync import deaths, features, scaling, tasks, threads
from lib.protocols.shadowsync import ForegroundEASGD, ForegroundMA, ShadowBMUF, ShadowEASGD


def test_the_pace_follows_from_the_printed_gaps():
    """Two links of 3.125 GB/s take 50 MB 125 times a second: at 20 trainers 6.25 times each, with 12.48 steps in between."""
    assert tasks.syncs(2) == 125
    assert tasks.GAPS[20] * 125 / 20 == 78
    assert pytest.approx(74.9) == tasks.STEPS and pytest.approx(29.6, abs=0.01) == tasks.STEPS_1


def test_a_trainer_makes_its_steps_and_a_synchronisation_takes_its_time():
    rule = tasks.rule("FR-EASGD-5", threads=24)
    job = tasks.speed_job(rule, 2, 1000, each=10)
    run = lib.train(**job, save=False)
    assert run.steady_qps / 2 / tasks.BATCH == pytest.approx(tasks.STEPS, rel=0.2)  # it stops for every fifth step
    never = lib.train(**job | {"protocol": tasks.rule("S-EASGD", alpha=0.0)}, save=False)
    assert never.steady_qps / 2 / tasks.BATCH == pytest.approx(tasks.STEPS, rel=0.12)  # rows wait behind copies
    cluster, task = job["cluster"], job["workload"]
    assert 4 * tasks.dense_parameters(task) / cluster.server.bandwidth == pytest.approx(50e6 / 3.125e9)


def test_a_rule_by_its_name():
    foreground = tasks.rule("FR-EASGD-30", servers=4, threads=12)
    assert isinstance(foreground, ForegroundEASGD)
    assert (foreground.every, foreground.sync_servers, foreground.worker_threads) == (30, 4, 12)
    assert isinstance(tasks.rule("S-BMUF", alpha=0.9), ShadowBMUF)


def test_lines_and_where_they_end():
    curves = {"straight": [100, 200, 400], "bent": [100, 150, 150]}
    data = pd.DataFrame(
        {"protocol": name, "seed": 1, "trainers": crew, "eps": value}
        for name, values in curves.items()
        for crew, value in zip((5, 10, 20), values, strict=True)
    )
    assert scaling.straightness(data).set_index("subject")["r2"].round(6).to_dict()["straight"] == 1
    assert scaling.straightness(data).set_index("subject")["r2"]["bent"] < 0.8
    assert scaling.bends(data).set_index("subject")["bend"].to_dict() == {"straight": 20, "bent": 7.5}


def test_what_a_rule_declares_is_what_its_runs_show():
    """In the order of WORDS: background, Hogwild, synchronous, stops others, centralised."""
    expected = {
        "s-easgd": [True, True, False, False, True],
        "s-ma": [True, True, True, False, False],
        "fr-easgd": [False, True, False, False, True],
        "fr-ma": [False, True, True, True, False],
        "all-reduce": [False, False, True, True, False],
        "prague": [False, True, False, False, False],
    }
    found, _ = features.table([protocols.get(name) for name in expected], [1])
    assert found["agrees"].all()
    assert {name: list(group["measured"]) for name, group in found.groupby("rule", sort=False)} == expected


@pytest.mark.parametrize(
    "kind, feature, lie",
    [(ForegroundMA, "stops others", {"blocks": False}), (ShadowEASGD, "stops others", {"blocks": True})],
)
def test_a_rule_that_declares_something_else_is_found_out(kind, feature, lie):
    found, _ = features.table([type("Liar", (kind,), {"name": "liar", **lie})()], [1])
    assert found.loc[~found["agrees"], "feature"].tolist() == [feature]
    assert "(!)" in features.words(found).loc["liar", feature]


def test_a_death_is_in_the_books_and_what_is_not_shows():
    task = workloads.get("ctr-synthetic", samples=2_000, batch_size=50, fields=3, hidden=(8,), evaluation_samples=100)
    node = lib.Node(flops=task.work().flops)  # a step is a second
    plan = [lib.Failure(node="sync0", kind="dies", at=5.5, lasts=3)]
    cluster = lib.VirtualCluster(workers=4, worker=node, failures=plan)
    run = lib.train(task, "s-easgd", cluster, save=False, checkpoint_every=800)
    found = deaths.books(run, task, hands=0)
    assert found["unaccounted"] == 0 and found["returns"] == 1 and found["applied"] == 40
    assert found["lost"] == found["issued"] - 40 and 0 < found["lost"] <= 8
    assert found["standstill"] == pytest.approx(
        3 + 1.5, abs=0.1
    )  # the outage, and what was done since the cut of step 4
    run.summary["lost"] -= 1
    assert deaths.books(run, task, hands=0)["unaccounted"] == 1
    cut = run.trace.drop(run.trace[run.trace["kind"] == "compute"].index[:3])
    assert deaths.books(replace(run, trace=cut), task, hands=2)["unaccounted"] == 1 + 1


def test_the_pace_is_that_of_the_median_stretch():
    """Ten steps a second, but for one pause: nine stretches of two steps, the first two of which are left out."""
    ends = [0.1 * step + (3 if step > 12 else 0) for step in range(20)]
    run = SimpleNamespace(trace=pd.DataFrame({"kind": "compute", "end": ends}))
    assert threads.pace(run, 2) == pytest.approx(10)


def test_the_counting_rows_count():
    """Nothing is lost by one thread, nor behind locks."""
    for count, locking in ((1, "none"), (4, "striped")):
        assert threads.lost(count, locking, 0, samples=60) == {"lost of rows": 0, "lost of dense": 0}
