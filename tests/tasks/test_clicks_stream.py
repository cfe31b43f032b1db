"""Synthetic clicks: the teacher's logits by hand, rates, drift, and streams that do not depend on the batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import workloads
from lib.tasks.clicks_stream import FIELD_SHIFT, ClickStream, _uniform_numbers, concatenate, teacher
from lib.tasks.sampling import alias_table, pick, zipf_probabilities

PLAN = {"fields": 4, "vocabulary": 50, "exponent": 1.2, "dense_features": 3, "rank": 2, "world": 0}
PLAN |= {"first_order": 1.0, "cross": 0.5, "linear": 0.5, "drift": 0.3, "base_rate": 0.25}


def split(ids):
    return ids >> FIELD_SHIFT, ids & (2**FIELD_SHIFT - 1)


def test_ids_carry_their_field_and_stay_within_its_vocabulary():
    fields, places = split(ClickStream(**PLAN).draw(2000, seed=1, day=0, first=0).ids)
    assert (fields == np.arange(4)).all()
    assert places.min() == 0 and places.max() == 49


def test_ids_follow_zipf():
    _, places = split(ClickStream(**PLAN).draw(50_000, seed=1, day=0, first=0).ids)
    shares = np.bincount(places.ravel(), minlength=50) / places.size
    np.testing.assert_allclose(shares, zipf_probabilities(50, 1.2), atol=0.003)


@pytest.mark.parametrize("day", [0, 1, 30, 1000])
def test_the_base_rate_holds_on_every_day(day):
    assert ClickStream(**PLAN).draw(40_000, seed=3, day=day, first=0).labels.mean() == pytest.approx(0.25, abs=0.012)


def test_dense_inputs_have_mean_zero_and_variance_one():
    dense = ClickStream(**PLAN).draw(40_000, seed=1, day=0, first=0).dense
    np.testing.assert_allclose(dense.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(dense.var(0), 1, atol=0.02)


@pytest.mark.parametrize("sizes, pooling", [((50,) * 4, (1,) * 4), ((3, 50, 7, 20), (1, 4, 2, 9))])
def test_the_logit_is_the_plain_sum_over_fields_and_pairs(sizes, pooling):
    """Several ids of a field speak as one, by the root of how many they are; fields may have vocabularies of their own."""
    several = {"vocabularies": sizes, "pooling": pooling} if max(pooling) > 1 else {}
    clicks = ClickStream(**PLAN | several)
    sample, truth = clicks.draw(5_000, seed=1, day=2, first=0), teacher(clicks, 2)
    fields, places = split(sample.ids)
    assert (fields == np.repeat(np.arange(4), pooling)).all()
    assert [int(places[:, fields[0] == field].max()) for field in range(4)] == [size - 1 for size in sizes]
    rows = places + np.cumsum([0, *sizes[:-1]])[fields]
    bags = np.split(np.arange(sum(pooling)), np.cumsum(pooling)[:-1])
    weights = np.stack([truth.first[rows[:, bag]].sum(1) / len(bag) ** 0.5 for bag in bags], 1)
    vectors = np.stack([truth.factors[rows[:, bag]].sum(1) / len(bag) ** 0.5 for bag in bags], 1)
    expected = truth.bias + weights.sum(1) + sample.dense @ truth.linear
    for a in range(4):
        for b in range(a):
            expected += (vectors[:, a] * vectors[:, b]).sum(1)
    np.testing.assert_allclose(sample.logits, expected, rtol=1e-6, atol=1e-6)


def test_the_crosses_have_the_spread_asked_for():
    clicks = ClickStream(**PLAN | {"exponent": 0.0, "vocabulary": 2000, "first_order": 0.0, "linear": 0.0})
    assert clicks.draw(20_000, seed=1, day=0, first=0).logits.std() == pytest.approx(0.5, rel=0.1)


def test_a_smaller_draw_is_the_beginning_of_a_larger_one():
    clicks = ClickStream(**PLAN)
    small, large = (clicks.draw(size, seed=1, day=0, first=7) for size in (5, 9))
    for a, b in zip(small[:4], large[:4], strict=True):
        np.testing.assert_array_equal(a, b[:5])


def test_the_teacher_turns_by_the_drift_and_keeps_its_spread():
    clicks = ClickStream(**PLAN | {"vocabulary": 2000})
    today, tomorrow, later = (teacher(clicks, day).first for day in (0, 1, 5))
    assert np.corrcoef(today, tomorrow)[0, 1] == pytest.approx(np.cos(0.3), abs=0.02)
    assert np.corrcoef(today, later)[0, 1] == pytest.approx(np.cos(1.5), abs=0.03)
    assert later.std() == pytest.approx(today.std(), rel=0.05)


@pytest.mark.parametrize("missing", [{"dense_features": 0}, {"rank": 0}, {"fields": 1}, {"vocabulary": 1}])
def test_parts_may_be_missing(missing):
    sample = ClickStream(**PLAN | missing).draw(100, seed=1, day=0, first=0)
    assert np.isfinite(sample.logits).all()


def test_further_labels_are_rarer_and_akin_and_leave_the_first_as_it_is():
    one, several = (ClickStream(**PLAN, tasks=tasks).draw(40_000, seed=3, day=1, first=0) for tasks in (1, 3))
    assert (several.ids == one.ids).all() and (several.labels[:, 0] == one.labels).all()
    np.testing.assert_allclose(several.labels.mean(axis=0), [0.25, 0.125, 0.0625], atol=0.012)
    alike = np.corrcoef(several.logits.T)
    assert alike[0, 1] == pytest.approx(0.8, abs=0.1) and alike[1, 2] == pytest.approx(0.64, abs=0.15)
    assert several.labels[several.labels[:, 2] == 1, 0].mean() > 0.8, "who does the rarer has mostly done the commoner"


def test_each_label_is_drawn_from_its_own_logits():
    several = ClickStream(**PLAN, tasks=2).draw(40_000, seed=3, day=0, first=0)
    for labels, logits in zip(several.labels.T, several.logits.T, strict=True):
        high = logits > np.quantile(logits, 0.8)
        assert labels[high].mean() == pytest.approx((1 / (1 + np.exp(-logits[high]))).mean(), abs=0.015)


def test_a_stream_is_the_same_however_it_is_cut():
    workload = workloads.get("clicks-light", vocabulary=50, copies=2)
    whole = workload._synthetic.draw(40, seed=1, day=0, first=0)
    parts = [workload._synthetic.draw(20, seed=1, day=0, first=first) for first in (0, 20)]
    for of_whole, joined in zip(whole[:4], concatenate(parts)[:4], strict=True):
        np.testing.assert_array_equal(of_whole, joined)
    draw = workload._synthetic.draw
    others = draw(40, seed=2, day=0), draw(40, seed=1, day=0, part="evaluation 4")
    assert not any((other.logits == whole.logits).any() for other in others)  # copies have a stream of their own


def test_its_numbers_are_splitmix64s():
    """The first two that its author's code gives for a seed of 1234567."""
    numbers = _uniform_numbers(np.uint64(1234567), 0, 1, 2)
    np.testing.assert_array_equal(numbers[0] * 2**53, [6457827717110365317 >> 11, 3203168211198807973 >> 11])


def test_its_numbers_are_uniform_and_clicks_as_frequent_as_asked_for():
    numbers = _uniform_numbers(np.uint64(7), 0, 20_000, 5)
    assert numbers.min() >= 0 and numbers.max() < 1
    np.testing.assert_allclose(numbers.mean(0), 0.5, atol=0.01)
    np.testing.assert_allclose(np.cov(numbers.T), np.eye(5) / 12, atol=0.002)
    assert abs(workloads.get("clicks-light").draw(0, 0, 20_000, 0).labels.mean() - 0.25) < 0.01


@settings(derandomize=True, deadline=None, max_examples=50)
@given(size=st.integers(1, 300), exponent=st.floats(0, 3))
def test_the_table_holds_exactly_the_distribution(size, exponent):
    keep, alias = alias_table(size, exponent)
    held = keep + np.bincount(alias, weights=1 - keep, minlength=size)
    np.testing.assert_allclose(held / size, zipf_probabilities(size, exponent), atol=1e-12)


def test_probabilities_by_hand():
    np.testing.assert_allclose(zipf_probabilities(3, 1.0), np.array([6, 3, 2]) / 11)
    np.testing.assert_allclose(zipf_probabilities(4, 0.0), 0.25)


def test_pick_uses_the_column_then_the_rest():
    keep, alias = np.array([0.5, 1.0]), np.array([1, 1])
    assert [pick(u, keep, alias) for u in (0.0, 0.24, 0.26, 0.5, 0.999)] == [0, 0, 1, 1, 1]
