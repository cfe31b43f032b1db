"""Intervals, one-sided tests and Holm's correction, against hand and against definitions."""

import math
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reports.claims import holm, interval, one_sided_p
from reports.claims.statistics import LEVEL

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
    assert (
        one_sided_p([2, 2], 1, 1),
        one_sided_p([2, 2], 2, 1),
        one_sided_p([2, 2], 2, -1),
        one_sided_p([9], 0, 1),
    ) == (0, 1, 1, 1)


@given(NUMBERS, st.floats(-100, 100))
def test_a_test_rejects_where_the_interval_lies_beyond(numbers, edge):
    _, low, high = interval(numbers)
    assume(high - low > 1e-6 and min(abs(low - edge), abs(high - edge)) > 1e-6)
    assert (one_sided_p(numbers, edge, 1) <= LEVEL) == (low > edge)
    assert (one_sided_p(numbers, edge, -1) <= LEVEL) == (high < edge)
    assert one_sided_p(numbers, edge, 1) + one_sided_p(numbers, edge, -1) == pytest.approx(1)


def test_holm_by_hand():
    """0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1, each at least the one before."""
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )
    assert holm({}) == {} and holm({"a": 0.7, "b": 0.8}) == {"a": 1.0, "b": 1.0}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferronis_tests(ps):
    """A hypothesis is rejected where every set that it is in is, by the smallest p times the set's size."""
    names = range(len(ps))
    sets = [chosen for size in range(1, len(ps) + 1) for chosen in combinations(names, size)]
    of_set = {chosen: min(1.0, len(chosen) * min(ps[name] for name in chosen)) for chosen in sets}
    expected = {name: max(p for chosen, p in of_set.items() if name in chosen) for name in names}
    assert holm(dict(enumerate(ps))) == pytest.approx(expected)


def test_what_is_never_reached_has_a_mean_and_no_interval(recwarn):
    mean, low, high = interval([math.inf, 1.0, 2.0])
    assert math.isinf(mean) and math.isnan(low) and math.isnan(high) and not recwarn.list
