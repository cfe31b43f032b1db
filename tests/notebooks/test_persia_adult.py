"""Adult's shape, and that two clusters train the same with it."""

import numpy as np

import lib
from lib.tasks.clicks import TABLE
from notebooks.persia import adult

SAMPLES = 2_560


def test_the_task_has_adults_shape():
    """Eight categorical columns with 102 values and six numbers; a pass is 254 steps of four batches of 32, and one begun."""
    task = adult.task(adult.TRAINING, 0)
    batch = task.batch(0, 0, task.batch_size)
    assert batch.where[TABLE].shape == (32, 8) and batch.features["dense"].shape == (32, 6)
    assert sum(adult.FIELDS.values()) == 102 and task.batches() == 254 * 4 + 2
    many = task.clicks.draw(20_000, seed=0, day=0)
    assert len(np.unique(many.ids)) <= 102 and abs(many.labels.mean() - adult.EARN_MORE) < 0.02


def test_sync_is_the_same_in_threads_and_the_hybrid_learns_in_both():
    kept = {
        (mode, threads): lib.train(**adult.job(mode, 0, SAMPLES, threads=threads), save=False)
        for mode in ("sync", "hybrid")
        for threads in (False, True)
    }
    assert kept["sync", False].digest == kept["sync", True].digest
    assert all(run.summary["auc"] > 0.6 and run.summary["samples"] == SAMPLES for run in kept.values())
    assert kept["hybrid", False].summary["staleness_max"] > 0 == kept["sync", True].summary["staleness_max"]
