"""ShadowSync's pages that count and measure: features of a rule, what a death costs, what threads of this machine lose."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

import lib
from lib import protocols, workloads
from lib.protocols.shadowsync import ForegroundMA, ShadowEASGD
from notebooks import deaths
from notebooks.shadowsync import features, threads


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
    found = deaths.account(run, task, hands=0)
    assert found["unaccounted"] == 0 and found["returns"] == 1 and found["applied"] == 40
    assert found["lost"] == found["issued"] - 40 and 0 < found["lost"] <= 8
    # The outage, and what was done since the cut of step 4.
    assert found["standstill"] == pytest.approx(3 + 1.5, abs=0.1)
    run.summary["lost"] -= 1
    assert deaths.account(run, task, hands=0)["unaccounted"] == 1
    cut = run.trace.drop(run.trace[run.trace["kind"] == "compute"].index[:3])
    assert deaths.account(replace(run, trace=cut), task, hands=2)["unaccounted"] == 1 + 1


def test_the_pace_is_that_of_the_median_stretch():
    """Ten steps a second, but for one pause: nine stretches of two steps, the first two of which are left out."""
    ends = [0.1 * step + (3 if step > 12 else 0) for step in range(20)]
    run = SimpleNamespace(trace=pd.DataFrame({"kind": "compute", "end": ends}))
    assert threads.pace(run, 2) == pytest.approx(10)


def test_the_counting_rows_count():
    """Nothing is lost by one thread, nor behind locks."""
    for count, locking in ((1, "none"), (4, "table")):
        assert threads.lost_updates(locking, count, 0) == {"lost of rows": 0, "lost of dense": 0}
