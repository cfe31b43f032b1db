"""The same samples again and again, each time in another order."""

from __future__ import annotations

import functools

import numpy as np

from lib.streams import stream


def chosen(seed: int, first: int, size: int, count: int) -> np.ndarray:
    """Which of `count` samples stand at places `first` .. `first + size` of an endless stream.

    An epoch holds each once, in the order of a permutation that belongs to (seed, epoch); a batch may end one and begin the next.
    """
    epochs = range(first // count, (first + size - 1) // count + 1)
    orders = [_permutation(seed, epoch, count) for epoch in epochs]
    order = orders[0] if len(orders) == 1 else np.concatenate(orders)
    return order[first % count :][:size]


@functools.lru_cache(maxsize=16)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    return stream(seed, "epoch", epoch).permutation(size)
