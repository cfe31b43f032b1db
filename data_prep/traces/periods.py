"""Straggler periods: where a worker's slow samples stand so close together that chance does not put them there.

Whether there are any. A sample counts by the logarithm of how much likelier it is within a period than at random,
`log(INSIDE / p)` if it is slow and `log((1 - INSIDE) / (1 - p))` if it is not, where p is the worker's share of slow samples. The
periods are the stretches that have the largest sum, less `log(n / CHANCE)` for each of them. Were a trace's n samples
independent, the sum over a stretch that begins at a given one would reach that price with a probability of at most CHANCE / n
(Ville's inequality), so in all of a trace of mere jitter, however wide or heavy-tailed, a period is found with a probability of
about CHANCE.

How long they are. Periods that are too short for that price, and pauses too short to divide two, would make the means too long.
So where there are periods, a hidden Markov chain of two states, each with its own histogram of factors, is fitted to all workers
by maximum likelihood (Baum and Welch), from those periods on; its rates are those of the chain in continuous time.
"""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from numba import njit

SLOW = 1.25
"""Times a worker's own median from which a sample is slow."""
INSIDE = 0.9
"""The share of slow samples in a period, before it is fitted."""
CHANCE = 0.01
"""Probability of a period where there is none."""
BINS = (SLOW, 1.5, 2.0, 3.0, 5.0, 9.0)
"""Where the histograms of the two states are cut."""
_ROUNDS = 200


class Periods(NamedTuple):
    """What was found."""

    inside: pd.Series
    """Which samples lie in a period."""
    count: int
    mean_on: float
    """Mean length of a period, in samples."""
    mean_off: float
    """Mean length of a pause, in samples."""


def periods(factors: pd.Series, workers: pd.Series) -> Periods | None:
    """The straggler periods, if there are any; `factors` are relative to their worker's median, in the order of time."""
    slow = (factors > SLOW).to_numpy()
    rows = [np.asarray(rows) for rows in workers.groupby(workers).indices.values()]
    inside = np.zeros(slow.size, bool)
    for mine in rows:
        share = (slow[mine].sum() + 1) / (mine.size + 2)
        if slow[mine].any() and share < INSIDE:
            weights = np.where(slow[mine], math.log(INSIDE / share), math.log((1 - INSIDE) / (1 - share)))
            inside[mine] = _stretches(weights, math.log(slow.size / CHANCE))
    if not inside.any():
        return None
    likely, begins, ends = _chain(np.searchsorted(BINS, factors), inside, rows)
    inside = likely > 0.5
    count = sum(int((np.diff(inside[mine], prepend=False) & inside[mine]).sum()) for mine in rows)
    if begins + ends >= 1 or not count:  # no sample knows of the one before it
        return None
    rate = -math.log(1 - begins - ends) / (begins + ends)
    return Periods(pd.Series(inside, factors.index), count, float(1 / (rate * ends)), float(1 / (rate * begins)))


def _stretches(weights: np.ndarray, price: float) -> np.ndarray:
    """The choice of elements that has the largest sum, less `price` for each stretch of them (Viterbi's algorithm)."""
    begun, kept = np.empty(weights.size, bool), np.empty(weights.size, bool)
    within, without = -math.inf, 0.0
    for place, weight in enumerate(weights.tolist()):
        begun[place], kept[place] = without - price > within, within > without
        within, without = max(within, without - price) + weight, max(within, without)
    chosen, now = np.zeros(weights.size, bool), within > without
    for place in range(weights.size - 1, -1, -1):
        chosen[place] = now
        now = not begun[place] if now else bool(kept[place])
    return chosen


def _chain(kinds: np.ndarray, inside: np.ndarray, rows: list[np.ndarray]) -> tuple[np.ndarray, float, float]:
    """(each sample's probability to be inside, that a period begins after a sample outside, that it ends after one inside)."""
    likely = inside.astype(float)
    moves = np.array([np.bincount(2 * inside[mine][:-1] + inside[mine][1:], minlength=4) for mine in rows]).sum(0)
    moves = moves.astype(float)
    for _ in range(_ROUNDS):
        before = moves
        begins, ends = (moves[1] + 0.5) / (moves[0] + moves[1] + 1), (moves[2] + 0.5) / (moves[2] + moves[3] + 1)
        sums = np.array([np.bincount(kinds, weight, len(BINS) + 1) for weight in (1 - likely, likely)]) + 0.1
        shares = sums / sums.sum(1, keepdims=True)
        moves = np.zeros(4)
        for mine in rows:
            likely[mine] = _expected(kinds[mine], shares, begins, ends, moves)
        if np.abs(moves - before).max() < 0.01:
            break
    return likely, begins, ends


@njit(cache=True)
def _expected(kinds, shares, begins, ends, moves):
    """Each sample's probability to be inside; `moves` gains the expected moves from outside (0, 1) and from inside (2, 3)."""
    size = len(kinds)
    seen = shares.T[kinds]
    forward = np.empty((size, 2))
    ahead = np.array([ends, begins]) / (begins + ends)
    for at in range(size):
        joint = ahead * seen[at]
        forward[at] = joint / joint.sum()
        one = forward[at, 0] * begins + forward[at, 1] * (1 - ends)
        ahead = np.array([1 - one, one])
    likely = np.empty(size)
    likely[-1] = forward[-1, 1]
    behind = np.ones(2)
    for at in range(size - 1, 0, -1):
        told = seen[at] * behind
        ways = np.array(
            [
                forward[at - 1, 0] * (1 - begins) * told[0],
                forward[at - 1, 0] * begins * told[1],
                forward[at - 1, 1] * ends * told[0],
                forward[at - 1, 1] * (1 - ends) * told[1],
            ]
        )
        ways /= ways.sum()
        moves += ways
        likely[at - 1] = ways[2] + ways[3]
        behind = np.array([(1 - begins) * told[0] + begins * told[1], ends * told[0] + (1 - ends) * told[1]])
        behind /= behind.sum()
    return likely
