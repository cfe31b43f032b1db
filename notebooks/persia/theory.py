"""Theorem 1 on a convex problem, and its alpha and tau on clicks: SGD on rows whose gradients are some updates old.

Paper -> code: Eq. 2 -> `descend`; alpha, no more often than which a sample contains an id -> `alpha`; tau -> `tau`; the learning
rate -> `rate`; Lemma 1 (Eq. 7), by which the mean gradient's Lipschitz constant is at most alpha times a sample's -> `lemma`; the
bound that the proof ends with, 4 (f(w0) - f*) / (gamma T) + 3 L gamma sigma^2 -> `bound`.

The problem is least squares: a sample contains each of `ROWS` ids with probability alpha, and its prediction is the sum of their
rows over the root of how many ids a sample has on average. All parameters are rows: delay and alpha alone tell runs apart.

On clicks each field's ids are equally frequent, so that an id is in one of so many samples as a field has ids: alpha is one over
that. What is measured is how much is lost of what training brings.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from lib import Run, streams
from lib.protocols.baselines import Frozen
from lib.protocols.persia import Hybrid
from notebooks import study
from notebooks.persia import tasks

ROWS = 64
L = 1.0
"""The Lipschitz constant of the mean gradient. The paper's assumption asks for one that holds for every sample: of samples with
few ids it is larger, up to 1 / alpha here."""
NOISE = 1.0
"""Standard deviation of a label around its sample's truth."""


def curvature(alpha: float) -> np.ndarray:
    """The mean loss's second derivative; its largest eigenvalue is at most 1, with alpha = 1."""
    matrix = np.full((ROWS, ROWS), alpha / ROWS)
    matrix[np.diag_indices(ROWS)] = 1 / ROWS
    return matrix


def rate(updates: int, tau: int, alpha: float, lipschitz: float, sigma: float) -> float:
    """The theorem's gamma."""
    return 1 / (lipschitz + np.sqrt(updates * lipschitz) * sigma + 4 * tau * lipschitz * alpha)


def descend(alpha: float, tau: int, seed: int, updates: int, delay_known: bool = True) -> dict[str, float]:
    """The mean squared gradient over a run, what it is bounded by, and the learning rate: the theorem's, or where it is not
    known, what the theorem gives training without any."""
    random = streams.stream(seed, "theorem 1", int(1e6 * alpha))
    truth = random.standard_normal(ROWS)
    scale = np.sqrt(alpha * ROWS)
    matrix = curvature(alpha)
    sigma = _deviation(alpha, truth, random)
    step = rate(updates, tau if delay_known else 0, alpha, L, sigma)
    rows, olds = np.zeros(ROWS), deque(maxlen=tau + 1)
    start, squared = 0.5 * truth @ matrix @ truth, 0.0
    for _ in range(updates):
        slope = matrix @ (rows - truth)
        squared += slope @ slope
        olds.append(rows)
        features = (random.random(ROWS) < alpha) / scale
        error = features @ (olds[0] - truth) - NOISE * random.standard_normal()
        rows = rows - step * error * features
    bounded = 4 * start / (step * updates) + 3 * L * step * sigma**2
    return {"squared": squared / updates, "bound": bounded, "gamma": step}


def run_grid(
    alphas: list[float], taus: list[int], updates: int, seeds: range, delay_known: bool = True
) -> pd.DataFrame:
    """A row for each run, with its squared gradient over that of the same samples without delay."""
    cases = study.grid(alpha=alphas, tau=taus, seed=seeds)
    data = pd.DataFrame([at | descend(**at, updates=updates, delay_known=delay_known) for at in cases])
    data["over no delay"] = data["squared"] / study.baseline(data, "squared", ["alpha", "seed"], tau=0)
    subject = "alpha " + data["alpha"].astype(str) + ", tau " + data["tau"].astype(str)
    return data.assign(subject=subject, **{"of the bound": data["squared"] / data["bound"]})


def _deviation(alpha: float, truth: np.ndarray, random: np.random.Generator) -> float:
    """Of a sample's gradient around its mean at the start, where it is largest."""
    features = (random.random((4000, ROWS)) < alpha) / np.sqrt(alpha * ROWS)
    errors = -features @ truth - NOISE * random.standard_normal(4000)
    gradients = errors[:, None] * features
    return float(np.sqrt(gradients.var(0).sum()))


LEMMA_IDS = 8
"""Ids of the problems on which Lemma 1 is computed."""


def lemma(seeds: Iterable[int]) -> pd.DataFrame:
    """The curvature of the mean loss over alpha L, which Lemma 1 bounds by 1, on least squares whose 2^8 possible samples are
    all enumerated: with equally many of the eight ids in each sample, and with each id at a probability of its own.

    L is the largest curvature of one sample's loss, as the paper's assumption asks.
    """
    samples = np.array(list(product((0.0, 1.0), repeat=LEMMA_IDS)))
    count, rows = samples.sum(1), []
    for seed in seeds:
        chances = streams.stream(seed, "lemma 1").random(LEMMA_IDS)
        likely = {f"{many} of 8 ids": (count == many) / (count == many).sum() for many in (1, 2, 4, 8)}
        likely["unequal ids"] = np.where(samples == 1, chances, 1 - chances).prod(1)
        for subject, weights in likely.items():
            alpha, ids = (weights @ samples).max(), weights @ count
            features = samples / np.sqrt(ids)
            sample = count[weights > 0].max() / ids
            mean = np.linalg.eigvalsh(features.T * weights @ features)[-1]
            rows.append((subject, seed, alpha, sample, mean, mean / (alpha * sample)))
    return pd.DataFrame(rows, columns=["subject", "seed", "alpha", "L", "L of the mean", "of alpha L"])


IDS = (3, 30, 1000)
"""Of a field."""

FROZEN = -1
"""In place of tau, for a model that learns nothing: from there to no delay is all that can be lost."""


def clicks_job(ids: int, tau: int, seed: int, samples: int) -> dict:
    """Criteo's task with ids so frequent, on the paper's eight GPUs."""
    workload = replace(tasks.learning_task("criteo", samples, world=seed), vocabulary=ids, exponent=0.0)
    rule = Frozen() if tau == FROZEN else Hybrid(tau=tau)
    return study.job(workload, rule, tasks.small(workload), seed)


def clicks_table(cases: Sequence[study.Case], runs: Sequence[Run]) -> pd.DataFrame:
    """What claims read: the share that is lost of what training without delay brings, which is `brings`."""
    figures = {"auc": "auc", "updates late": "staleness_mean", "issued": "issued"}
    data = study.table(cases, runs, **figures)
    none, least = (study.baseline(data, "auc", ["ids", "seed"], tau=tau) for tau in (0, FROZEN))
    data["brings"] = none - least
    data["lost"] = (none - data["auc"]) / data["brings"]
    data["alpha tau / T"] = data["updates late"] / data["ids"] / data.pop("issued")
    data["subject"] = "one of " + data["ids"].astype(str) + ", tau " + data["tau"].astype(str)
    return data[data["tau"] != FROZEN]
