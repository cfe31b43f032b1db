"""What a mix makes of the running statistics of batch normalisation, which are no parameters: three ways of averaging.

- naive: averaged as parameters are, as DS-Sync's paper says and its released code does. The mean of variances leaves out by how
  much the means differ.
- pooled: those of all that the members have seen together. The pooled mean is the mean of the means, the pooled variance
  E[v] + Var[m]. What is averaged is m and v + m^2, so that any mean of replicas, also one weighted, is exact.
- none: each replica keeps its own, as under torch's DDP without broadcast, which evaluates those of rank 0.

Statistics are all means, then all variances in the same order.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

StatisticsAveraging = Literal["naive", "pooled", "none"]


def statistics_to_average(own: np.ndarray, averaging: StatisticsAveraging) -> np.ndarray:
    """What a replica brings to a mix, of which everyone gets the mean."""
    if averaging == "none":
        return own[:0]
    if averaging == "naive":
        return own
    mean, variance = np.split(own, 2)
    return np.concatenate([mean, variance + mean**2])


def statistics_after_mix(own: np.ndarray, theirs: np.ndarray, averaging: StatisticsAveraging) -> np.ndarray:
    """A replica's statistics after a mix, of which that mean came."""
    if averaging == "none":
        return own
    if averaging == "naive":
        return theirs
    mean, square = np.split(theirs, 2)
    return np.concatenate([mean, np.maximum(square - mean**2, 0)])  # rounding must not make a variance negative


def pool_statistics(all_of_them: Sequence[np.ndarray]) -> np.ndarray:
    """Those of several replicas together."""
    mean = np.mean([statistics_to_average(own, "pooled") for own in all_of_them], axis=0)
    return statistics_after_mix(all_of_them[0], mean, "pooled")
