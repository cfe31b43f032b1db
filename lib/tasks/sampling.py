"""Zipf-distributed ranks by Walker's alias method, in constant time each, and the order of samples in epochs."""

import functools
from typing import NamedTuple

import numba
import numpy as np

from lib.streams import stream


class AliasTable(NamedTuple):
    """Column i yields i with probability `keep[i]` and `alias[i]` otherwise; all columns are equally likely."""

    keep: np.ndarray
    alias: np.ndarray


def zipf_probabilities(size: int, exponent: float) -> np.ndarray:
    """Probability of each rank, proportional to rank^-exponent; an exponent of 0 is uniform."""
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


@functools.lru_cache(maxsize=16)
def alias_table(size: int, exponent: float) -> AliasTable:
    """The table of Zipf ranks 0 .. size - 1 (Vose's construction)."""
    table = AliasTable(*_build_alias_table(zipf_probabilities(size, exponent)))
    for array in table:
        array.flags.writeable = False
    return table


@numba.njit(cache=True, nogil=True)
def pick(uniform: float, keep: np.ndarray, alias: np.ndarray) -> int:
    """The rank for a uniform number in [0, 1): its leading part picks a column, the rest picks one of the two ranks."""
    place = uniform * len(keep)
    column = int(place)
    return column if place - column < keep[column] else alias[column]


@numba.njit(cache=True, nogil=True)
def pick_many(uniform: np.ndarray, keep: np.ndarray, alias: np.ndarray) -> np.ndarray:
    """`pick` for each of an array."""
    ranks = np.empty(len(uniform), np.int64)
    for n in range(len(uniform)):
        ranks[n] = pick(uniform[n], keep, alias)
    return ranks


@numba.njit(cache=True, nogil=True)
def _build_alias_table(chances):
    size = len(chances)
    keep, alias = np.ones(size), np.arange(size)
    scaled = chances * size
    small, large = np.empty(size, np.int64), np.empty(size, np.int64)
    smalls = larges = 0
    for i in range(size):
        if scaled[i] < 1:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls and larges:
        smalls -= 1
        lacking, giving = small[smalls], large[larges - 1]
        keep[lacking], alias[lacking] = scaled[lacking], giving
        scaled[giving] -= 1 - scaled[lacking]
        if scaled[giving] < 1:
            larges -= 1
            small[smalls] = giving
            smalls += 1
    return keep, alias


def epoch_rows(seed: int, first: int, size: int, dataset_size: int) -> np.ndarray:
    """The samples at places `first` .. `first + size` of an endless stream over a data set of `dataset_size` samples.

    An epoch has each sample once, in an order that belongs to (seed, epoch). A batch may end one epoch and begin the next.
    """
    epochs = range(first // dataset_size, (first + size - 1) // dataset_size + 1)
    orders = [_permutation(seed, epoch, dataset_size) for epoch in epochs]
    order = orders[0] if len(orders) == 1 else np.concatenate(orders)
    return order[first % dataset_size :][:size]


@functools.lru_cache(maxsize=16)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    return stream(seed, "epoch", epoch).permutation(size)
