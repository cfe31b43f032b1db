"""One measured number, and how it is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls
from torch.utils.benchmark import Timer


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured number; its name ends with its unit."""

    name: str
    value: float
    what: str


def median_seconds(function: Callable[[], Any], budget: float) -> float:
    """The median time of a call, of as many as fit in `budget` seconds, on one thread of torch."""
    return Timer("function()", globals={"function": function}).blocked_autorange(min_run_time=budget).median


def fit_line(work: list[float], seconds: list[float]) -> tuple[float, float, float]:
    """(a, b, residual) of seconds = a + b * work, by least squares of relative errors with a >= 0; the residual is the
    largest relative error."""
    x, y = np.array(work), np.array(seconds)
    (a, b), _ = nnls(np.stack([1 / y, x / y], axis=1), np.ones(len(y)))
    return float(a), float(b), float(np.abs((a + b * x) / y - 1).max())
