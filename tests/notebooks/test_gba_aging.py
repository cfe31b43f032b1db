"""What GBA's page on age is made of, at smoke's size."""

import pytest

import lib
from notebooks.gba import aging, switching
from notebooks.gba.tasks import TASKS

TASK = TASKS["criteo"].at("smoke")


def test_the_longer_parameters_are_held_the_older_gradients_are_and_syncs_have_no_age():
    table, runs = aging.by_length(TASK, "smoke", [500], (1,), (0.2, 1.0), 1)
    ages = table.set_index(["protocol", "held"])["age"]
    assert ages["gba", 0.2] < ages["gba", 1.0] and ages["bsp", 0.2] < ages["bsp", 1.0]
    assert (table["updates"] == 4).all(), "a day of 3,200 samples in batches of 800"
    sync = next(run for run in runs if run.provenance["protocol"]["phases"][0]["protocol"]["name"] == "sync")
    gba = next(run for run in runs if run.provenance["protocol"]["phases"][0]["protocol"]["name"] == "gba")
    assert table["mean"].iloc[0] == pytest.approx(switching.mean_auc(gba) - switching.mean_auc(sync))


def test_the_part_that_is_held_still_hardly_moves():
    start = switching.bases(TASK, "smoke", [500])[500]

    def moved(part):
        job = switching.days(TASK, "smoke", "sync", start, 2, **aging.PARTS[part])
        return lib.train(**job).history["auc"].dropna().iloc[-1]

    frozen = lib.train(**switching.days(TASK, "smoke", "frozen", start, 2)).history["auc"].dropna().iloc[-1]
    still = {"dense_optimizer": aging.STILL, "row_optimizer": aging.STILL}
    neither = lib.train(**switching.days(TASK, "smoke", "sync", start, 2, **still)).history["auc"].dropna().iloc[-1]
    assert neither == pytest.approx(frozen, abs=1e-5)
    assert abs(moved("rows") - frozen) > 1e-4 and abs(moved("dense") - frozen) > 1e-4


def test_what_a_part_loses_is_a_share_of_what_its_own_days_bring():
    table, runs = aging.by_part(TASK, "smoke", [500], 1, 1.0)
    places = [(part, mode) for part in aging.PARTS for mode in ("sync", "bsp")] + [("none", "frozen")]
    auc = {place: switching.mean_auc(run) for place, run in zip(places, runs, strict=True)}
    rows = table.set_index("part").loc["rows"]
    brings, lost = auc["rows", "sync"] - auc["none", "frozen"], auc["rows", "sync"] - auc["rows", "bsp"]
    assert (rows["brings"], rows["lost"], rows["share"]) == pytest.approx((brings, lost, lost / brings))
