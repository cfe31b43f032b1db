"""Images that come again: which worker sees which, and what is told of their runs, by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lib
from notebooks.dssync import images_again, quality

SHORT = {"passes": 2, "images": 256}


def seen(shards):
    """Of each of four workers the images of its first epoch, and of its second: 256 images are one batch of 64 each."""
    here = images_again.job("BSP", shards, 7, **SHORT)["workload"]
    return [
        [here.chosen(7, 64 * index, 64, index).tolist() for index in range(4 * turn, 4 * turn + 4)] for turn in (0, 1)
    ]


def test_shards_stay_with_their_workers_and_others_do_not():
    first, second = seen("fixed")
    assert first == second and sorted(np.ravel(first)) == list(range(256))
    order = np.ravel(first, order="F").tolist()  # dealt out one by one, as torch's sampler does
    assert order == lib.data.epochs.chosen(7, 0, 256, 256).tolist()
    first, second = seen("reshuffled")
    assert sorted(np.ravel(first)) == sorted(np.ravel(second)) == list(range(256))
    assert all(set(one) != set(other) for one, other in zip(first, second, strict=True))


def test_a_part_that_ends_begins_again():
    """Parts of 50: the second batch has the part's last 6 ... of 20 a batch, its third its last ten and its first ten."""
    here = images_again.ImagesAgain(images=200, batch_size=20, shards="fixed", samples=2_000)
    part = [here.chosen(0, 20 * index, 20, index).tolist() for index in (1, 5, 9)]
    assert len({*part[0], *part[1], *part[2]}) == 50 and part[2][10:] == part[0][:10]


def test_the_same_images_come_again_and_unseen_ones_judge():
    here = images_again.job("BSP", "fixed", 7, **SHORT)["workload"]
    one, again = here.draw(7, 64, 64, 1), here.draw(7, 320, 64, 5)
    np.testing.assert_array_equal(one.features["image"], again.features["image"])
    sets = images_again._sets(here)
    assert len(sets.train.labels) == 256 and len(sets.judged.labels) == 64
    assert not np.array_equal(sets.train.pixels[:64], sets.judged.pixels)
    assert images_again._sets(images_again.job("BSP", "fixed", 8, **SHORT)["workload"]) is not sets


def test_real_images_are_pooled_split_and_moved(monkeypatch):
    """Each square of four pixels is its mean; the last quarter's worth is unseen."""
    train = np.arange(10 * 3 * 32 * 32, dtype=np.int64).reshape(10, 3, 32, 32) % 251
    real = lib.data.images.RealImages(train.astype(np.uint8), np.arange(10) % 3, train[:0], np.arange(0), 3)
    monkeypatch.setattr(images_again.ImagesAgain, "_real", real)
    here = images_again.ImagesAgain(images=8, evaluation_samples=2, batch_size=4, data="real", samples=80)
    sets = images_again._sets(here)
    assert sets.judged.labels.tolist() == [2, 0] and sets.train.pixels.shape == (8, 3, 16, 16)
    assert sets.train.pixels.mean((0, 2, 3)) == pytest.approx([0] * 3, abs=1e-4)
    raw = train[:8].reshape(8, 3, 16, 2, 16, 2).mean((3, 5))
    spread = raw[..., :].std((0, 2, 3))
    got = (sets.train.pixels[1, 0, 0, 0] - sets.train.pixels[1, 0, 5, 3]) * spread[0]
    assert got == pytest.approx(raw[1, 0, 0, 0] - raw[1, 0, 5, 3], rel=1e-4)
    drawn = here.draw(0, 0, 4, 0).features["image"]
    assert not np.array_equal(drawn, sets.train.pixels[here.chosen(0, 0, 4, 0)])


def test_a_run_and_what_is_told_of_it():
    place = {"shards": "fixed", "mode": "DS-Sync before", "seed": 7}
    run = lib.train(**images_again.job(**place, **SHORT), save=False)
    told = images_again.courses([place], [run], 256)
    assert told["epoch"].tolist() == [1, 2] and told["accuracy"].max() == quality.best(run, "images")
    assert {"accuracy", "loss", "seen"} <= run.summary.keys()


def test_epochs_to_the_target_by_hand():
    """BSP's bests of 0.8 and 0.6 have a mean of 0.7 and a deviation of 0.1414."""
    courses = {("BSP", 0): (0.5, 0.8), ("BSP", 1): (0.6, 0.6), ("DS-Sync", 0): (0.7, 0.2), ("DS-Sync", 1): (0.1, 0.5)}
    rows = [
        {"shards": "fixed", "mode": mode, "seed": seed, "epoch": epoch, "accuracy": accuracy}
        for (mode, seed), course in courses.items()
        for epoch, accuracy in enumerate(course, 1)
    ]
    told = pd.DataFrame(rows)
    data = told.groupby(["shards", "mode", "seed"])["accuracy"].max().rename("best").reset_index()
    found = images_again.reached(told, data)
    assert found.loc[("fixed", "BSP"), ["epochs", "runs"]].tolist() == [1.5, 2]
    assert found.loc[("fixed", "DS-Sync"), ["epochs", "runs"]].tolist() == [1, 1]
    assert found["target"].tolist() == pytest.approx([0.7 - 0.02**0.5] * 2)
