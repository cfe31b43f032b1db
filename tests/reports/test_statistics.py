"""Intervals, one-sided tests, numbers of seeds and looks, against hand, definitions and simulation."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from reports.claims import interval, one_sided_p, seeds_for
from reports.claims.statistics import LEVEL, MOST_SEEDS, levels, smallest_effect

NUMBERS = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=3, max_size=12)


def test_the_interval_is_students():
    """The 95 % t-interval of {1, 2, 3} is 2 ± 4.303 x 1 / sqrt(3) = 2 ± 2.484."""
    assert interval([1, 2, 3]) == pytest.approx((2, 2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert interval([0.1, 0.1, 0.1]) == (0.1, 0.1, 0.1)
    assert math.isnan(interval([5])[1])


def test_the_test_is_students():
    """With two degrees of freedom P(T > t) = (1 - t / sqrt(t^2 + 2)) / 2; {1, 2, 3} against 0 has t = 2 sqrt(3)."""
    t = 2 * math.sqrt(3)
    assert one_sided_p([1, 2, 3], 0, 1) == pytest.approx((1 - t / math.sqrt(t * t + 2)) / 2)
    assert one_sided_p([1, 2, 3], 2, 1) == one_sided_p([1, 2, 3], 2, -1) == 0.5
    assert [one_sided_p([2, 2], 1, 1), one_sided_p([2, 2], 2, 1), one_sided_p([2, 2], 2, -1)] == [0, 1, 1]
    assert one_sided_p([9], 0, 1) == 1


@given(NUMBERS, st.floats(-100, 100))
def test_a_test_rejects_where_the_interval_lies_beyond(numbers, edge):
    _, low, high = interval(numbers)
    assume(high - low > 1e-6 and min(abs(low - edge), abs(high - edge)) > 1e-6)
    assert (one_sided_p(numbers, edge, 1) <= LEVEL / 2) == (low > edge)
    assert (one_sided_p(numbers, edge, -1) <= LEVEL / 2) == (high < edge)
    assert one_sided_p(numbers, edge, 1) + one_sided_p(numbers, edge, -1) == pytest.approx(1)


@pytest.mark.parametrize("count", [5, 8, 16])
def test_the_smallest_effect_is_found_nine_times_in_ten(count):
    """By simulation: so many seeds whose mean is the smallest effect from an edge are told from it in 90 % of trials."""
    numbers = np.random.default_rng(5).normal(size=(20_000, count))
    means, errors = numbers.mean(axis=1), numbers.std(axis=1, ddof=1) / math.sqrt(count)
    edge = stats.t.ppf(0.975, count - 1)
    share = ((means + smallest_effect(1.0, count)) / errors >= edge).mean()
    assert share == pytest.approx(0.9, abs=0.015)


@given(st.floats(0.01, 100), st.floats(0.05, 20))
def test_the_number_of_seeds_is_the_least_that_suffices(spread, effect):
    count = seeds_for(spread, effect * spread)
    assert count < MOST_SEEDS and smallest_effect(spread, count) <= effect * spread
    assert count == 2 or smallest_effect(spread, count - 1) > effect * spread


def test_the_number_of_seeds_by_the_textbook():
    """(1.96 + 1.28)^2 = 10.5 for an effect of one deviation, and two more since the deviation is estimated."""
    assert seeds_for(1.0, 1.0) == 13 and seeds_for(1.0, 0.1) == pytest.approx(1051, abs=3)
    assert seeds_for(1.0, 0.0) == MOST_SEEDS and seeds_for(0.0, 1.0) == 2


def test_two_looks_spend_the_level_once():
    """O'Brien and Fleming's boundary at half of the seeds is 1.96 x sqrt(2) = 2.77, which is 0.0056."""
    assert levels([8]) == [0.05]
    first, last = levels([5, 10])
    assert first == pytest.approx(0.0056, abs=1e-4) and first + last == pytest.approx(0.05)
    draws = np.random.default_rng(7).normal(size=(20_000, 20))
    wrong = [_rejects(draws[:, :count], level) for count, level in zip((10, 20), levels([10, 20]), strict=True)]
    assert np.logical_or(*wrong).mean() <= 0.053


def _rejects(draws, level):
    t = draws.mean(axis=1) / draws.std(axis=1, ddof=1) * math.sqrt(draws.shape[1])
    return np.abs(t) > stats.t.ppf(1 - level / 2, draws.shape[1] - 1)


def test_what_is_never_reached_has_a_mean_and_no_interval(recwarn):
    mean, low, high = interval([math.inf, 1.0, 2.0])
    assert math.isinf(mean) and math.isnan(low) and math.isnan(high) and not recwarn.list
