"""One measured number, and how it is measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured number; its name ends with its unit."""

    name: str
    value: float
    what: str


def median_seconds(function: Callable[[], Any], budget: float, least: int = 5) -> float:
    """The median time of a call, after one that does not count, of as many as fit in `budget` seconds."""
    function()
    times: list[float] = []
    end = time.perf_counter() + budget
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fit_line(work: list[float], seconds: list[float]) -> tuple[float, float, float]:
    """(a, b, residual) of seconds = a + b * work, by least squares of relative errors with a >= 0; the residual is the
    largest relative error."""
    x, y = np.array(work), np.array(seconds)
    (a, b), *_ = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(y)))
    if a < 0:
        a, b = 0.0, float((x / y).sum() / ((x / y) ** 2).sum())
    return float(a), float(b), float(np.abs((a + b * x) / y - 1).max())
