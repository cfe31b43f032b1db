"""What longer runs leave of a loss, by a map of two ways by hand."""

import math

import pandas as pd
import pytest

from notebooks import predictions
from notebooks.advisor.comparison import Comparison
from tests.notebooks.comparisons import comparison


def cells(way, costs, low=1e-4):
    return pd.DataFrame([{"way": way, "updates": at, "cost": cost, "low": low} for at, cost in costs.items()])


@pytest.fixture
def two():
    """The one falls as the root of the length, the other as the length; a third is not measurably below Sync."""
    root, whole = ({at: 0.1 * (at / 100) ** power for at in (100, 10_000)} for power in (-0.5, -1))
    noise = cells("gba", {100: 1e-3, 10_000: 5e-3}, low=-1e-3)
    return pd.concat([cells("async", root), cells("s-ma", whole), noise])


def test_what_is_left_lies_between_the_ways_that_lose(two):
    assert predictions.remaining_share(two, 100, 10_000) == pytest.approx((0.01, 0.1))
    assert predictions.remaining_share(two, 300, 3_000) == pytest.approx((0.1, math.sqrt(0.1)))
    assert predictions.remaining_share(two, 500, 500) == pytest.approx((1, 1))


@pytest.mark.parametrize("places", [(50, 1_000), (100, 20_000), (1_000, 500)])
def test_nothing_is_known_beyond_the_map_nor_of_shorter_runs(two, places):
    assert predictions.remaining_share(two, *places) is None


def test_one_way_alone_brackets_nothing():
    assert predictions.remaining_share(cells("async", {100: 0.1, 1_000: 0.05}), 100, 1_000) is None


@pytest.fixture
def found():
    """GBA is 0.001 to 0.003 below Sync, on two seeds."""
    return comparison({"sync": (1, 1), "gba": (1, 1)}, {"sync": (0.8, 0.7), "gba": (0.799, 0.697)})


def test_both_ends_are_as_far_off_as_the_shares_allow(found):
    told = predictions.extrapolate(found, 100, 1_000, (0.5, 0.8)).loc["gba"]
    # The mean of two is -2, and t(0.975, 1) = 12.71 times half of their distance on either side: -14.7 and 10.7.
    assert told["after 100 updates"] == "−2.00 [−14.71, 10.71]"
    assert told["after 1,000"] == "−11.76 to 8.56"


def test_a_loss_that_is_certain_keeps_the_least_of_itself(found):
    certain = Comparison(found.runs.assign(metric=[0.8, 0.798, 0.7, 0.698]), "auc", 0.9)
    assert predictions.extrapolate(certain, 100, 1_000, (0.5, 0.8)).loc["gba", "after 1,000"] == "−1.60 to −1.00"


def test_what_is_not_known_is_said(found):
    assert (predictions.extrapolate(found, 10, 1_000, None)["after 1,000"] == predictions.UNKNOWN).all()


def test_the_published_map_tells_what_a_thousand_updates_lost_by_ten_thousand():
    least, most = predictions.remaining_share(predictions.published_map(), 1_000, 10_000)
    assert 0 < least < most < 1
