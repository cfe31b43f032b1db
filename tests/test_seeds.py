import pytest

from lib import seeds
from lib.errors import BadOption


def test_tuning_pilots_and_verdicts_share_no_seed():
    ranges = [set(each) for each in (seeds.TUNING, seeds.PILOT, seeds.JUDGING)]
    assert len(set().union(*ranges)) == sum(map(len, ranges))
    assert set(range(20)) <= ranges[0], "what all rules and settings were chosen after"
    assert list(seeds.judging(3)) == [1000, 1001, 1002] and list(seeds.tuning(2)) == [0, 1]


def test_what_tries_settings_takes_no_seed_of_a_verdict():
    assert seeds.not_judging(seeds.tuning(2), "rates are tried") == [0, 1]
    with pytest.raises(BadOption, match="rates are tried: seed 1000, 1001: verdicts are reached on 1000 to 1999; try"):
        seeds.not_judging([3, *seeds.judging(2)], "rates are tried")


def test_rates_are_not_tried_on_what_is_judged():
    from notebooks.gba import tasks, tuning

    with pytest.raises(BadOption, match="rates are tried: seed 1000"):
        tuning.grid(tasks.TASKS["criteo"].at("smoke"), "smoke", seeds.judging(1))
