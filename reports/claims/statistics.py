"""The few tests that verdicts rest on: t intervals, one-sided t tests, Holm's correction."""

import math
from collections.abc import Iterable, Mapping, Sequence

CONFIDENCE = 0.95
POWER = 0.9
LEVEL = (1 - CONFIDENCE) / 2
"""Of a one-sided test: it rejects where the interval's end lies beyond the edge."""


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % t-interval (NaN for a single value, and where a value is infinite)."""
    import numpy as np
    from scipy import stats

    values = np.asarray(list(values), dtype=float)
    mean = float(values.mean())
    if len(values) < 2 or math.isinf(mean):
        return mean, math.nan, math.nan
    if (values == values[0]).all():  # equal numbers have no spread, however their mean is rounded
        return float(values[0]), float(values[0]), float(values[0])
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return mean, mean - half, mean + half


def smallest_effect(half: float, count: int) -> float:
    """The smallest effect that so many seeds detect nine times in ten, two-sided at 5 %.

    It is (t(0.975) + t(0.9)) s / sqrt(n) with n - 1 degrees of freedom; `half` of the 95 % interval is the first term.
    """
    from scipy import stats

    confidence, power = stats.t.ppf(((1 + CONFIDENCE) / 2, POWER), count - 1)
    return half * float(1 + power / confidence)


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


def holm(found: Mapping[str, float]) -> dict[str, float]:
    """Adjust each p for their number: the smallest times their number, the next times one less, never falling."""
    adjusted, largest = {}, 0.0
    for place, (name, p) in enumerate(sorted(found.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(found) - place) * p))
        adjusted[name] = largest
    return adjusted
