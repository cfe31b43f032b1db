import numpy as np
import pytest

from lib.tasks import metrics
from lib.tasks.behaviours import (
    BehaviourStream,
    Catalogue,
    WatchStream,
    _group_tastes,
    draw_histories,
    next_topic_probabilities,
)
from lib.tasks.clicks_stream import FIELD_SHIFT, ClickStream

SHOP = Catalogue(topics=5, per_topic=8, exponent=0.8, length=6, novelty=1.5)
SHAPE = {"fields": 2, "vocabulary": 30, "exponent": 1.0, "dense_features": 1, "rank": 0, "world": 0}
PROFILE = ClickStream(**SHAPE, first_order=0.5, cross=0.0, linear=0.2, drift=0.1, base_rate=0.2)
CLICKS = BehaviourStream(profile=PROFILE, catalogue=SHOP, affinity=3.0)


def past(size, taste=None, seed=0):
    taste = np.full((size, 5), 0.2) if taste is None else np.tile(taste, (size, 1))
    return draw_histories(SHOP, taste, seed, 0, "past"), taste


def test_counts_are_uniform_and_padding_is_the_next_item():
    drawn, _ = past(20_000)
    shares = np.bincount(drawn.behaviours, minlength=7) / 20_000
    np.testing.assert_allclose(shares, 1 / 7, atol=0.01)
    padded = np.arange(6) >= drawn.behaviours[:, None]
    assert (drawn.watched[padded] == np.repeat(drawn.next_item, 6 - drawn.behaviours)).all()
    assert drawn.watched.min() >= 0 and max(drawn.watched.max(), drawn.unrelated.max()) < SHOP.items


def test_the_urn_by_hand():
    taste = np.array([0.5, 0.5, 0, 0, 0])
    drawn, _ = past(60_000, taste)
    assert set(np.unique(drawn.watched // 8)) == {0, 1}
    one = (drawn.behaviours == 1) & (drawn.watched[:, 0] // 8 == 0)
    # One behaviour with topic 0: (1 + 1.5 / 2) of the weight 1 + 1.5 is on topic 0.
    assert np.mean(drawn.next_item[one] // 8 == 0) == pytest.approx(1.75 / 2.5, abs=0.02)


def test_the_truth_about_the_next_topic_is_calibrated():
    drawn, taste = past(60_000)
    chances = next_topic_probabilities(SHOP, drawn, taste)
    np.testing.assert_allclose(chances.sum(1), 1)
    came = (drawn.next_item // 8)[:, None] == np.arange(5)
    for low in (0.0, 0.2, 0.4, 0.6):
        here = (chances >= low) & (chances < low + 0.2)
        assert came[here].mean() == pytest.approx(chances[here].mean(), abs=0.01)


def test_clicks_keep_the_base_rate_and_follow_their_logits():
    for day in (0, 9):
        drawn = CLICKS.draw(40_000, seed=1, day=day, first=0)
        assert drawn.labels.mean() == pytest.approx(0.2, abs=0.01)
    high = drawn.logits > np.quantile(drawn.logits, 0.8)
    expected = (1 / (1 + np.exp(-drawn.logits[high]))).mean()
    assert drawn.labels[high].mean() == pytest.approx(expected, abs=0.015)


def test_a_row_of_ids_is_profile_target_history_and_what_was_passed_over():
    drawn = CLICKS.draw(500, seed=1, day=0, first=0)
    assert drawn.ids.shape == (500, CLICKS.columns) == (500, 2 + 2 + 12 + 12)
    assert (drawn.ids >> FIELD_SHIFT == np.array([0, 1] + [2, 3] * 13)).all()
    items, topics = (drawn.ids & (2**FIELD_SHIFT - 1))[:, 2::2], (drawn.ids & (2**FIELD_SHIFT - 1))[:, 3::2]
    assert (items // 8 == topics).all()


def test_only_agreement_with_real_behaviours_moves_the_logit():
    drawn, plain = CLICKS.draw(2_000, seed=1, day=0, first=0), PROFILE.draw(2_000, seed=1, day=0, first=0)
    moved = drawn.logits - plain.logits
    moved -= moved.min()
    assert moved[drawn.behaviours == 0] == pytest.approx(0, abs=1e-9) and moved.max() == pytest.approx(3.0, abs=1e-9)
    topics = (drawn.ids & (2**FIELD_SHIFT - 1))[:, 3:16:2]
    two = drawn.behaviours == 2
    weights = (topics[:, 1:3] == topics[:, :1]) @ np.array([0.8, 1.0]) / 1.8  # the older counts four fifths
    np.testing.assert_allclose(moved[two], 3.0 * weights[two], atol=1e-9)


def test_behaviours_matter_for_the_ceiling():
    drawn, plain = CLICKS.draw(20_000, seed=1, day=0, first=0), PROFILE.draw(20_000, seed=1, day=0, first=0)
    assert metrics.auc(drawn.labels, drawn.logits) > metrics.auc(drawn.labels, plain.logits) + 0.1


def test_tastes_turn_with_the_days():
    watch = WatchStream(catalogue=SHOP, groups=3, spread=1.0, drift=0.5, world=0)
    first, later = (_group_tastes(watch, day) for day in (0, 3))
    assert first.shape == (3, 5) and not np.allclose(first, later)
    np.testing.assert_allclose(later.sum(1), 1)
    group, taste, _ = first = watch.draw_viewers(50, seed=0, day=3, first=0)
    np.testing.assert_array_equal(taste, later[group])
    again = watch.draw_viewers(50, seed=0, day=3, first=0)
    assert all((a == b).all() for a, b in zip(first[2], again[2], strict=True))
