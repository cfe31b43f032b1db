"""Images that come again: which worker sees which, and what is told of their runs, by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import lib
from notebooks.dssync import images_again, quality, real_images

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
    assert order == lib.tasks.sampling.epoch_rows(7, 0, 256, 256).tolist()
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
    assert len(sets.train.labels) == 256 and len(sets.judged.labels) == 128
    assert not np.array_equal(sets.train.pixels[:64], sets.judged.pixels)
    assert images_again._sets(images_again.job("BSP", "fixed", 8, **SHORT)["workload"]) is not sets


def test_images_that_stand_apart_to_judge_by_count_too():
    """A folder without a test batch has a tenth of its images apart; the study has a split of its own."""
    images = np.arange(10 * 3 * 32 * 32, dtype=np.uint8).reshape(10, 3, 32, 32)
    real = lib.tasks.vision.RealImages(images[:8], np.arange(8), images[8:], np.arange(8, 10), 10)
    for many in (6, 8, 9, 10):
        every, classes = images_again._stored(real, many)
        np.testing.assert_array_equal(every, images[:many])
        assert classes.tolist() == [*range(many)]
    with pytest.raises(lib.errors.BadOption, match=r"11 images are wanted, .* the folder has 10"):
        images_again._stored(real, 11)


def test_real_images_are_pooled_split_and_moved(monkeypatch):
    """Each square of four pixels is its mean; a fifth of the images is unseen, in each world another."""
    train = np.arange(10 * 3 * 32 * 32, dtype=np.int64).reshape(10, 3, 32, 32) % 251
    real = lib.tasks.vision.RealImages(train.astype(np.uint8), np.arange(10) % 3, train[:0], np.arange(0), 3)
    monkeypatch.setattr(images_again.ImagesAgain, "_real", real)
    here = images_again.ImagesAgain(images=8, evaluation_samples=2, batch_size=4, data="real", samples=80)
    sets = images_again._sets(here)
    order = lib.streams.stream(here.world, "split").permutation(10)
    assert sets.judged.labels.tolist() == (order[8:] % 3).tolist() and sets.train.pixels.shape == (8, 3, 16, 16)
    assert sets.train.pixels.mean((0, 2, 3)) == pytest.approx([0] * 3, abs=1e-4)
    raw = train[order].reshape(10, 3, 16, 2, 16, 2).mean((3, 5))
    spread = raw[:8].std((0, 2, 3))
    got = (sets.train.pixels[1, 0, 0, 0] - sets.train.pixels[1, 0, 5, 3]) * spread[0]
    assert got == pytest.approx(raw[1, 0, 0, 0] - raw[1, 0, 5, 3], rel=1e-4)
    others = images_again._sets(replace(here, world=1)).judged.labels.tolist()
    assert others == (lib.streams.stream(1, "split").permutation(10)[8:] % 3).tolist()
    drawn = here.draw(0, 0, 4, 0).features["image"]
    assert not np.array_equal(drawn, sets.train.pixels[here.chosen(0, 0, 4, 0)])


def told(runs):
    rows = [
        {"shards": "fixed", "mode": mode, "seed": seed, "epoch": epoch, "accuracy": accuracy, "seen": 0.9}
        for (mode, seed), course in runs.items()
        for epoch, accuracy in enumerate(course, 1)
    ]
    return pd.DataFrame(rows)


def test_a_run_and_what_is_told_of_it():
    place = {"shards": "fixed", "mode": "DS-Sync before", "seed": 7}
    run = lib.train(**images_again.job(**place, **SHORT), save=False)
    course = images_again.histories([place], [run], 256)
    assert course["epoch"].tolist() == [1, 2] and course["accuracy"].max() == quality.best(run, "images")
    assert {"accuracy", "loss", "seen"} <= run.summary.keys() and course["seen"].iloc[-1] == run.summary["seen"]
    here = images_again.regimes(pd.DataFrame({"mode": ["DS-Sync"], "best": [0.3]}), [run])["images, 4"]
    counts = ["updates before the judged stretch", "updates in it", "samples of a global batch"]
    assert here.loc[counts, "here"].str.split().str[0].tolist() == ["0", "2", "256"]
    assert here.loc["what training brings: best less frozen", "here"].startswith("0.2")


def test_what_claims_read_of_courses_by_hand():
    data = images_again.claim_table(told({("BSP", 0): (0.5, 0.4), ("DS-Sync", 0): (0.2, 0.7)})).set_index("subject")
    assert data.loc["DS-Sync, fixed", "best over BSP"] == pytest.approx(0.2)
    assert data.loc["BSP, fixed", ["best", "last", "gap"]].tolist() == pytest.approx([0.5, 0.4, 0.5])
    assert data.loc["DS-Sync, fixed", "gap over BSP"] == pytest.approx(-0.3)


def test_the_ends_of_stretches_by_hand():
    """Of ten epochs the rate falls after the third, the sixth and the eighth."""
    found = images_again.plateaus(told({("BSP", 0): np.arange(1, 11) / 10})).iloc[0]
    ends = [found[f"until epoch {end}"] for end in (3, 6, 8, 10)]
    assert ends == pytest.approx([0.2, 0.5, 0.7, 0.9])
    short = images_again.plateaus(told({("BSP", 0): (0.1, 0.3)})).iloc[0]  # two stretches end at the first epoch of two
    assert [short["until epoch 1"], short["until epoch 2"]] == pytest.approx([0.1, 0.2])


def test_epochs_to_the_target_by_hand():
    """BSP's bests of 0.8 and 0.6 have a mean of 0.7 and a deviation of 0.1414."""
    courses = {("BSP", 0): (0.5, 0.8), ("BSP", 1): (0.6, 0.6), ("DS-Sync", 0): (0.7, 0.2), ("DS-Sync", 1): (0.1, 0.5)}
    found = images_again.epochs_to_target(told(courses))
    assert found.loc[("fixed", "BSP"), ["epochs", "runs"]].tolist() == [1.5, 2]
    assert found.loc[("fixed", "DS-Sync"), ["epochs", "runs"]].tolist() == [1, 1]
    assert found["target"].tolist() == pytest.approx([0.7 - 0.02**0.5] * 2)


def test_runs_on_real_images_are_kept_with_their_commit(monkeypatch, tmp_path):
    """What is kept is what the page reads; the runs are those of the planted page, on the folder's images."""
    asked = []
    monkeypatch.setattr(real_images, "TABLE", tmp_path / "real.csv")
    monkeypatch.setattr(real_images, "sweep", lambda jobs: asked.extend(jobs))
    course = told({(mode, 1000): (0.1, 0.2) for mode in images_again.MODES})
    monkeypatch.setattr(real_images.images_again, "histories", lambda places, runs, images: course)
    monkeypatch.setattr(images_again.ImagesAgain, "work", lambda self: lib.workloads.get("cifar10-wrn").work())
    assert real_images.load() is None
    real_images.save("cifar", [1000])
    assert len(asked) == 6 and {job["workload"].data for job in asked} == {"cifar"}
    sizes = {(job["workload"].images, job["workload"].evaluation_samples, job["evaluations"]) for job in asked}
    assert sizes == {(8_000, 2_000, 60)}
    kept = real_images.load()
    pd.testing.assert_frame_equal(kept.drop(columns="commit"), course)
    assert kept["commit"].nunique() == 1
