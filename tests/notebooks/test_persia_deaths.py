"""Persia's faults: what the drivers carry out, and what is put together by hand."""

import numpy as np
import pytest

import lib
from lib.protocols.persia import Hybrid
from lib.store.rows import Rows, Uniform
from notebooks.persia import deaths

SAMPLES = 10_240


@pytest.fixture(scope="module")
def whole():
    return lib.train(**deaths.job(SAMPLES, 0), save=False)


@pytest.mark.parametrize(
    "case, lost", [("a PS takes all back", True), ("an NN worker takes all back", True), ("a PS attaches again", False)]
)
def test_what_a_death_loses_is_what_was_trained_since_the_save(whole, case, lost):
    """20 steps of 8 batches, a save after each third of them, a death after 14: two steps since the save are lost, 16
    batches, and at most one more that had begun."""
    run = lib.train(**deaths.fault_job(case, SAMPLES, 0, whole), save=False)
    told = deaths.outcome(case, 0, run, whole, SAMPLES)
    assert told["applied"] == 160 and told["unaccounted"] == 0 and told["returns"] == lost
    assert told["issued"] - 160 == told["lost"] and (0 < told["lost"] <= 24 if lost else told["lost"] == 0)
    assert run.summary.get("servers_attached_again", 0) == (not lost) and told["lost at a PS"] <= 8
    assert told["standstill, steps"] > 15 and told["times as long"] > 1.5


def test_without_a_return_the_others_go_on_without_a_dead_worker(whole):
    run = lib.train(**deaths.fault_job("an NN worker leaves", SAMPLES, 0, whole), save=False)
    told = deaths.outcome("an NN worker leaves", 0, run, whole, SAMPLES)
    assert told["returns"] == 0 and told["left out"] > 0 == told["unaccounted"] and told["standstill, steps"] < 10


def test_an_embedding_workers_death_costs_rows_what_it_had_buffered_and_no_batch():
    """Of the eight workers' batches at most five each are under way, and two more are made."""
    whole = lib.train(**deaths.job(SAMPLES, 0, deaths.WITH_EMBEDDING_WORKERS), save=False)
    run = lib.train(**deaths.fault_job("an embedding worker dies", SAMPLES, 0, whole), save=False)
    told = deaths.outcome("an embedding worker dies", 0, run, whole, SAMPLES)
    assert told["applied"] == told["issued"] == 160 and told["returns"] == told["left out"] == told["unaccounted"] == 0
    assert 0 < told["abandoned"] <= told["buffered"] <= 8 * 7
    assert told["standstill, steps"] < 10 and told["times as long"] < 1.5
    run.summary["abandoned"] = told["buffered"] + 1
    assert deaths.outcome("an embedding worker dies", 0, run, whole, SAMPLES)["unaccounted"] == 1


def test_where_a_death_takes_all_back_no_batch_is_left_out():
    """Of forty batches two workers have twenty each, and one dies after seven: where the other goes on alone, 27 are trained."""
    found = {}
    for rule, lasts in ((Hybrid(), None), (Hybrid(rolls_back=True), 1.0)):
        death = lib.Failure(node="worker1", kind="dies", at_batch=7, lasts=lasts)
        there = lib.VirtualCluster(workers=2, failures=[death])
        run = lib.train("ctr-synthetic", rule, there, samples=40 * 128, checkpoint_every=8 * 128, save=False)
        found[rule.rolls_back] = run.summary
    assert found[True]["samples"] == 40 * 128 and found[True]["returns_to_a_cut"] == 1
    assert found[False]["samples"] == 27 * 128 and found[False]["returns_to_a_cut"] == 0


def test_readings_put_a_model_together_by_hand():
    def rows(count, value):
        ids = np.arange(count)
        return Rows(ids, np.full((count, 2), value, np.float32), np.zeros((count, 0), np.float32), np.zeros_like(ids))

    back = deaths.restore_one_server({"t": rows(8, 1)}, {"t": rows(16, 2)})["t"]
    owner = Uniform(shards=2).shard_of("t", np.arange(16))
    assert (np.diff(back.ids) > 0).all()
    values = dict(zip(back.ids.tolist(), back.values[:, 0].tolist(), strict=True))
    assert values == {each: 1 + owner[each] for each in range(16) if each < 8 or owner[each] == 1}


def test_readings_go_on_from_the_save_and_the_death():
    data, runs = deaths.readings(SAMPLES, [0])
    assert data["subject"].tolist() == ["nobody dies", *deaths.READINGS] and data["auc"].nunique() == 5
    saved, dead, whole, *rest = runs
    assert saved.summary["samples"] == 12 * 512 and dead.summary["samples"] == 2 * 512
    assert [run.summary["samples"] for run in (whole, *rest)] == [6 * 512, 6 * 512, 6 * 512, 8 * 512, 6 * 512]
    left = deaths.restored("NN workers go back, data again", saved, dead).model
    assert left.next_sample == saved.model.next_sample
    assert left.rows is dead.model.rows and left.dense is saved.model.dense
