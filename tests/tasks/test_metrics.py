import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lib.tasks import metrics


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40),
    st.sampled_from([np.float32, float]),
)
def test_auc_is_the_share_of_pairs_that_are_ordered(samples, kind):
    """Counted pair by pair, with as many ties as there may be."""
    won = [(a > b) + (a == b) / 2 for label, a in samples if label for other, b in samples if not other]
    labels, scores = (np.array(column, kind) for column in zip(*samples, strict=True))
    assert metrics.auc(labels, scores) == (pytest.approx(np.mean(won)) if won else pytest.approx(math.nan, nan_ok=True))


def expected_auc(chances, scores):
    """By its definition, pair by pair."""
    pairs = [
        (p * (1 - q), (a > b) + (a == b) / 2)
        for i, (p, a) in enumerate(zip(chances, scores, strict=True))
        for j, (q, b) in enumerate(zip(chances, scores, strict=True))
        if i != j
    ]
    weights, won = np.transpose(pairs)
    return (weights * won).sum() / weights.sum()


chances = st.lists(st.tuples(st.floats(0.01, 0.99), st.integers(-3, 3)), min_size=2, max_size=40)


@given(chances)
def test_auc_of_probabilities_is_the_expectation_over_pairs(samples):
    truth, scores = (np.array(column, float) for column in zip(*samples, strict=True))
    assert metrics.auc(truth, scores) == pytest.approx(expected_auc(truth, scores))
    assert metrics.auc(truth, scores) <= metrics.auc(truth, truth) + 1e-12, "no scores beat the truth"


def test_labels_agree_with_what_is_expected_of_them():
    """Over two thousand draws of labels, within four standard errors; a model that is wrong in scale and in order."""
    random = np.random.default_rng(0)
    logits = random.normal(-1, 1.5, 400)
    truth, scores = 1 / (1 + np.exp(-logits)), 0.7 * logits + random.normal(0, 1, 400)
    expected = metrics.click_metrics(truth, scores)
    drawn = [metrics.click_metrics((random.random(400) < truth).astype(np.float32), scores) for _ in range(2_000)]
    for name in ("auc", "logloss"):
        found = np.array([each[name] for each in drawn])
        assert abs(found.mean() - expected[name]) < 4 * found.std() / np.sqrt(len(found))
        assert found.std() > 0.01, "a single draw says far less"


def test_log_loss_of_labels_and_expected_log_loss_by_hand():
    assert metrics.logloss([1, 0], np.array([0.5, 0.2])) == pytest.approx(-(math.log(0.5) + math.log(0.8)) / 2)
    loss = metrics.logloss([0.25, 1.0], np.array([0.5, 0.2]))
    assert loss == pytest.approx(-(0.25 * math.log(0.5) + 0.75 * math.log(0.5) + math.log(0.2)) / 2)
    truth = np.array([0.1, 0.4, 0.7])
    least = metrics.logloss(truth, truth)
    assert least == pytest.approx(np.mean([metrics.entropy(p) for p in truth]))
    assert least < metrics.logloss(truth, truth + 0.05)


def test_clicks_with_their_truth_have_both():
    labels, logits, truth = np.array([1, 0, 1]), np.array([2.0, -1.0, 0.0]), np.array([0.9, 0.2, 0.5])
    found = metrics.click_metrics(labels, logits, truth)
    plain = metrics.click_metrics(labels, logits)
    assert {name: found[name] for name in plain} == plain and len(found) == 2 * len(plain)
    assert all(found[f"expected_{name}"] == value for name, value in metrics.click_metrics(truth, logits).items())
    certain = metrics.click_metrics(labels, logits, labels)
    assert all(certain[f"expected_{name}"] == certain[name] for name in plain)


def test_further_labels_have_an_auc_each():
    labels, logits = np.array([[1, 0], [0, 1], [0, 0]]), np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    found = metrics.click_metrics(labels, logits, np.full((3, 2), 0.5))
    assert (found["auc"], found["auc_2"], found["expected_auc_2"]) == (1.0, 0.5, 0.5) and "auc_3" not in found


def test_probabilities_that_leave_no_chance_cost_what_the_type_can_tell_from_it():
    for kind in (np.float32, np.float64):
        least = np.finfo(kind).eps
        assert metrics.logloss([1, 0], np.array([0, 1], kind)) == pytest.approx(-math.log(least))
        assert 0 < metrics.logloss([1, 0], np.array([1, 0], kind)) < 2 * least


def test_the_mean_label_has_normalised_entropy_one():
    labels = np.array([1, 0, 0, 0])
    assert metrics.normalised_entropy(metrics.logloss(labels, np.full(4, 0.25)), 0.25) == pytest.approx(1)


def test_calibration_by_hand():
    assert metrics.calibration([1, 0, 0], np.array([0.5, 0.5, 0.5])) == 1.5


def test_clicks_from_logits():
    logits = np.array([2.0, -1.0, 0.0])
    result = metrics.click_metrics(np.array([1, 0, 1]), logits)
    chance = 1 / (1 + np.exp(-logits))
    loss = -(np.log(chance[0]) + np.log(1 - chance[1]) + np.log(chance[2])) / 3
    assert result == pytest.approx(
        {"auc": 1.0, "logloss": loss, "ne": loss / metrics.entropy(2 / 3), "calibration": chance.sum() / 2}
    )


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_leaves_auc_and_ne_undefined(label):
    result = metrics.click_metrics(np.full(3, label), np.array([0.1, -2.0, 3.0]))
    assert math.isnan(result["auc"]) and math.isnan(result["ne"])
    assert math.isfinite(result["logloss"])
    assert math.isnan(result["calibration"]) == (label == 0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_model_has_no_auc(value):
    result = metrics.click_metrics(np.array([0, 1]), np.array([value, 0.0]))
    assert math.isnan(result["auc"])


def test_nothing_at_all_is_nan():
    assert math.isnan(metrics.auc([0.3], [1.0])), "a sample is no pair with itself"
    assert all(math.isnan(value) for value in metrics.click_metrics(np.empty(0), np.empty(0)).values())
    assert all(math.isnan(value) for value in metrics.ranking_metrics(np.empty(0)).values())


def plain_rank(scores, target, excluded):
    """Mean place of the target over all orders of its ties."""
    others = [s for i, s in enumerate(scores) if i != target and not excluded[i]]
    better = sum(s > scores[target] for s in others)
    ties = sum(s == scores[target] for s in others)
    return np.mean([better + 1 + place for place in range(ties + 1)])


@st.composite
def rankings(draw):
    rows, candidates = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    scores = draw(hnp.arrays(float, (rows, candidates), elements=st.integers(0, 4)))
    targets = draw(hnp.arrays(int, rows, elements=st.integers(0, candidates - 1)))
    return scores, targets, draw(hnp.arrays(bool, (rows, candidates)))


@settings(derandomize=True, max_examples=100)
@given(rankings())
def test_ranks_equal_brute_force(case):
    scores, targets, excluded = case
    before = excluded.copy()
    filtered = [plain_rank(*row) for row in zip(scores, targets, excluded, strict=True)]
    raw = [plain_rank(*row) for row in zip(scores, targets, np.zeros_like(excluded), strict=True)]
    np.testing.assert_array_equal(metrics.ranks(scores, targets, excluded), filtered)
    np.testing.assert_array_equal(metrics.ranks(scores, targets), raw)
    np.testing.assert_array_equal(excluded, before)


def test_a_nan_ranks_last():
    scores = np.array([[math.nan, 1.0, 2.0], [1.0, math.nan, 0.0]])
    assert metrics.ranks(scores, np.array([0, 0])).tolist() == [3, 2]


def test_ranking_by_hand():
    result = metrics.ranking_metrics(np.array([1.0, 2.0, 4.0, 20.0]))
    assert result == {"mrr": (1 + 0.5 + 0.25 + 0.05) / 4, "hits_1": 0.25, "hits_3": 0.5, "hits_10": 0.75}
