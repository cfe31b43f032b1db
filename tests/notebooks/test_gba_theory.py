"""GBA's theory: its formulas by hand, and that what measures changes nothing."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import lib
from lib import workloads
from lib.protocols.baselines import Async, Sync
from lib.protocols.gba import GBA
from lib.store.optim import SGD
from notebooks.gba import theory
from notebooks.gba.tasks import TASKS

TASK = workloads.get("quadratic", dim=4, noise=2.0, condition=4, batch_size=2, samples=480, dense_optimizer=SGD(lr=0.2))
CREW = lib.VirtualCluster(workers=4, slowdown=0.6, worker=lib.Node(flops=1e6))


def test_floor_and_bound_by_hand():
    """sigma^2 is 4 x 4, 1 / c 4: the floor at eta 0.1 and a batch of 8 is 0.1 x 16 x 4 / 16."""
    assert theory.floor(TASK, 0.1, 8) == pytest.approx(0.4)
    assert theory.floor(TASK, 0.1, 8, share=0.5) == pytest.approx(0.8)
    assert theory.bound(TASK, 0.1, 8, 0, 10.0) == pytest.approx(10)
    assert theory.bound(TASK, 0.1, 8, 2, 10.0) == pytest.approx(0.4 + 0.975**2 * 9.6)


def test_bounds_of_the_next_step_by_hand():
    """eta 0.2: one worker's noise is 0.04 x 16 / 4 = 0.16."""
    at = {"loss": 1.0, "squared": 0.5, "gamma": 0.5, "stale": 0.4}
    found = theory.after_switch(TASK, 0.2, 4, at)
    assert found["sync"] == pytest.approx(1 - 0.2 * 0.9 * 0.5 + 0.04)
    assert found["sync to async"] == pytest.approx(1 - 0.2 * 0.9 * 0.5 + 0.16)
    assert found["async"] == pytest.approx(1 - 0.1 * 0.5 * 0.5 + 0.16 - 0.02)
    assert found["async to sync"] == pytest.approx(1 - 0.025 + 0.2 + (0.02 - 0.025) * 0.5 - 0.005)


@pytest.mark.parametrize("kind", [Sync, Async, GBA])
def test_watching_changes_nothing(kind):
    rule, seen = theory.watch(kind, TASK.model(1))
    watched = lib.train(TASK, rule, CREW, seed=1, save=False)
    plain = lib.train(TASK, kind(), CREW, seed=1, save=False)
    assert watched.digest == plain.digest
    changes = np.array(seen)
    assert len(changes) == plain.summary["applied"]
    stale = (changes[:, 0] > 0).mean()
    assert stale == 0 if kind is Sync else 0.3 < stale < 1
    assert changes[-1, 1] == pytest.approx(plain.summary["squared"], rel=2), "the true gradient, near the end"


def test_one_step_is_one_update_more():
    after = pd.DataFrame(theory.one_step(TASK, CREW, 1, 20)).set_index("subject")
    assert set(after.index) == {"sync", "sync to async", "async", "async to sync"}
    by_hand = lib.train(replace(TASK, samples=21 * 8), "sync", CREW, seed=1, save=False).summary["loss"]
    assert after.loc["sync", "after"] == pytest.approx(by_hand, rel=1e-5)
    assert after.loc["sync", "gamma"] == 0 < after.loc["async", "gamma"]


def test_a_row_that_nobody_updated_meanwhile_is_decayed_by_the_token_alone():
    """Its own step is why Algorithm 2 leaves fewer rows out."""
    found = theory.row_decays(TASKS["criteo"].at("smoke"), "smoke", [1])
    own, plain = found["rows left out, an update"]
    assert 0 < own < plain


def test_what_is_updated_twice():
    """All rows of a task whose batches hold every id are in every update."""
    dense = workloads.get("criteo-deepfm", vocabulary=2, batch_size=200)
    zeta, share = theory.updated_twice(dense, 2, 3, 1)
    assert zeta > 0.9 and 0 < share < 1
    rare = workloads.get("criteo-deepfm", vocabulary=1000, batch_size=2)
    assert theory.updated_twice(rare, 2, 3, 1)[0] < 0.3


def test_the_table_takes_each_mode_once_and_sync_swept():
    curve = {"update": [0.0, 1, 2, 3], "loss": [100.0, 10, 1, 1], "bound": [100.0, 20, 2, 2], "seed": 1}
    runs = [("sync", 0.1, 8), ("async", 0.1, 2), ("sync", 0.1, 32), ("sync", 0.4, 8)]
    rows = [theory.figures(TASK, pd.DataFrame(curve | {"protocol": n, "eta": e, "batch": b})) for n, e, b in runs]
    assert rows[0]["floor"] == 1 and rows[0]["above"] == 0.5
    stepped = pd.DataFrame({"subject": ["after sync", "after sync to async"], "seed": 1, "after": [1.0, 2.0]})
    means = pd.DataFrame({"bound": [2.0, 3.0]}, index=stepped["subject"])
    table = theory.table(pd.DataFrame(rows), stepped, means)
    counts = table["subject"].value_counts()
    assert counts["sync"] == counts["async"] == counts["frozen"] == 1
    assert counts["sync by batch"] == counts["sync by rate"] == 2
    assert table.set_index("subject").loc["bound, after sync to async", "rises"] == 1.5
    assert table.set_index("subject").loc["frozen", "floor"] == 100
