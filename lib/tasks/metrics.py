"""Metrics of predictions and rankings. A metric that is undefined for its input is nan, never an error or a guess."""

import math
from collections.abc import Sequence

import numpy as np


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a positive scores above a negative. nan for one class or a nan score.

    Labels may be probabilities p. Then each pair counts as often as it is expected to be a positive and a negative: the result
    is the sum of p_i (1 - p_j) [s_i > s_j] over that of p_i (1 - p_j), for all i other than j.
    """
    chances, scores = np.asarray(labels, np.float64), np.asarray(scores)
    itself = (chances * (1 - chances)).sum()  # a sample is no pair with itself
    pairs = chances.sum() * (1 - chances).sum() - itself
    if not pairs > 0 or not np.all(np.isfinite(scores)):
        return math.nan
    distinct, places = np.unique(scores, return_inverse=True)
    negatives = np.bincount(places, 1 - chances, len(distinct))
    beaten = np.cumsum(negatives) - negatives / 2  # an equal score is half of a win
    return float((chances @ beaten[places] - itself / 2) / pairs)


def logloss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean negative log-likelihood in nats, probabilities clipped by the type's epsilon. nan if empty or not finite. With
    probabilities as labels it is the expectation."""
    labels, probabilities = np.asarray(labels, np.float64), np.asarray(probabilities)
    if len(labels) == 0 or not np.all(np.isfinite(probabilities)):
        return math.nan
    least = np.finfo(probabilities.dtype).eps
    yes, no = (np.log(np.clip(chance, least, 1 - least)) for chance in (probabilities, 1 - probabilities))
    return -float((labels * yes + (1 - labels) * no).mean())


def entropy(rate: float) -> float:
    """Log loss of always predicting the base rate; nan if there is only one class."""
    if not 0 < rate < 1:
        return math.nan
    return -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)


def normalised_entropy(loss: float, rate: float) -> float:
    """NE (He et al., 2014): the log loss divided by the base rate's entropy. Below 1 is better than the mean label."""
    return loss / entropy(rate)


def calibration(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean prediction divided by mean label; 1 is calibrated, nan without a positive."""
    positives = float(np.sum(labels))
    return float(np.sum(probabilities)) / positives if positives else math.nan


def click_metrics(labels: np.ndarray, logits: np.ndarray, truth: np.ndarray | None = None) -> dict[str, float]:
    """auc, logloss, ne and calibration of binary labels predicted by logits, and `auc_2`, ... of further columns; with the true
    probabilities of the labels also `expected_auc`, ..., which have no noise of labels."""
    expected = {} if truth is None else click_metrics(truth, logits)
    expected = {f"expected_{name}": each for name, each in expected.items()}
    columns = (np.atleast_2d(np.transpose(each)) for each in (labels, np.asarray(logits, np.float64)))
    (labels, logits), *others = zip(*columns, strict=True)
    with np.errstate(invalid="ignore"):  # a nan stays one, and shows in the result
        probabilities = np.exp(-np.logaddexp(0, -logits))
    loss = logloss(labels, probabilities)
    rate = float(np.mean(labels)) if len(labels) else math.nan
    return {
        "auc": auc(labels, logits),
        "logloss": loss,
        "ne": normalised_entropy(loss, rate),
        "calibration": calibration(labels, probabilities),
        **{f"auc_{number}": auc(*column) for number, column in enumerate(others, 2)},
        **expected,
    }


def ranks(scores: np.ndarray, targets: np.ndarray, excluded: np.ndarray | None = None) -> np.ndarray:
    """The rank, from 1, of each row's target among its candidates.

    Ties get the mean rank, so a model that scores all candidates alike gets the middle, not the top. A nan scores above
    everything, so a diverged model ranks last. `excluded` marks candidates that do not count (the other true answers, for
    filtered ranking); the target always counts.
    """
    rows = np.arange(len(scores))
    target = scores[rows, targets][:, None]  # every comparison with nan is false
    below, equal = scores < target, scores == target
    candidates = np.ones_like(below) if excluded is None else ~excluded
    candidates[rows, targets] = False
    ahead = (candidates & ~below & ~equal).sum(1)
    return 1 + ahead + 0.5 * (candidates & equal).sum(1)


def ranking_metrics(places: np.ndarray, at: Sequence[int] = (1, 3, 10)) -> dict[str, float]:
    """Mean reciprocal rank, and the share of ranks within each of `at`; nan without ranks."""
    if len(places) == 0:
        return {"mrr": math.nan, **{f"hits_{k}": math.nan for k in at}}
    return {"mrr": float(np.mean(1 / places)), **{f"hits_{k}": float(np.mean(places <= k)) for k in at}}
