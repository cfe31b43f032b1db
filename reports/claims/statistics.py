"""The statistics that verdicts rest on: t intervals, one-sided t tests, what so many seeds tell, and how many it takes."""

import math
from collections.abc import Iterable, Sequence

LEVEL = 0.05
"""Two-sided: of all looks together."""
POWER = 0.9
MOST_SEEDS = 100_000


def interval(values: Iterable[float], level: float = LEVEL) -> tuple[float, float, float]:
    """Mean, and the ends of its t-interval (NaN for a single value, and where a value is infinite)."""
    import numpy as np
    from scipy import stats

    values = np.asarray(list(values), dtype=float)
    mean = float(values.mean())
    if len(values) < 2 or math.isinf(mean):
        return mean, math.nan, math.nan
    if (values == values[0]).all():  # equal numbers have no spread, however their mean is rounded
        return float(values[0]), float(values[0]), float(values[0])
    half = float(stats.t.ppf(1 - level / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return mean, mean - half, mean + half


def smallest_effect(spread: float, count: int, level: float = LEVEL) -> float:
    """The smallest effect that so many seeds of this standard deviation detect nine times in ten."""
    from scipy import stats

    return spread / math.sqrt(count) * float(stats.t.ppf(1 - level / 2, count - 1) + stats.t.ppf(POWER, count - 1))


def seeds_for(spread: float, effect: float, level: float = LEVEL) -> int:
    """How many seeds of this standard deviation detect the effect nine times in ten; `MOST_SEEDS` stands for more."""
    few, many = 1, 2
    while smallest_effect(spread, many, level) > effect and many < MOST_SEEDS:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if smallest_effect(spread, middle, level) <= effect else (middle, many)
    return min(many, MOST_SEEDS)


def levels(looks: Sequence[int]) -> list[float]:
    """The level of each look. O'Brien and Fleming's boundary gives the first of two its part, the last has the rest."""
    from scipy.stats import norm

    if len(looks) == 1:
        return [LEVEL]
    first = 2 * float(norm.sf(norm.isf(LEVEL / 2) / math.sqrt(looks[0] / looks[1])))
    return [first, LEVEL - first]


def one_sided_p(values: Sequence[float], edge: float, sign: int) -> float:
    """p of the t test that the mean lies beyond the edge, upwards (1) or downwards (-1); 1 for a single value."""
    import numpy as np
    from scipy import stats

    values = sign * (np.asarray(values, dtype=float) - edge)
    if len(values) < 2:
        return 1.0
    if (values == values[0]).all():
        return 0.0 if values[0] > 0 else 1.0
    t = values.mean() / (values.std(ddof=1) / math.sqrt(len(values)))
    return float(stats.t.sf(t, len(values) - 1))
