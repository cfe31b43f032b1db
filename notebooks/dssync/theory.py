"""DS-Sync's Eq. 2 and Appendix A on a quadratic whose curvatures, optimum and noise are known.

The recursion is Eq. 3 and 4 with the kit's own groups, one row of numbers a worker. With L = 1 the bound is
E norm(mean - w*)^2 <= v / (t + gamma), v = max(4 B / mu^2, (gamma + 1) Delta), B = sigma^2 / N + 8 G^2, gamma = max(8 L / mu, 2),
for steps of 2 / (mu (gamma + t)).

Eq. 21 and v do not agree: (L/2) v with gamma = 8 L / mu has (2 L + mu / 4) Delta where Eq. 21 has 2 L Delta. `bounds` gives
both, and Delta is taken at the start, as Eq. 21 writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from lib.protocols.dssync import DSSync
from lib.streams import stream

MU, DIM, NOISE, FAR = 0.25, 16, 4.0, 3.0
"""Least curvature (the greatest, L, is 1), parameters, deviation of a gradient's noise over all of them, the start's distance."""
GAMMA = max(8 / MU, 2)
RULES = {"ds-sync": "ds-sync", "bsp": "all-reduce", "alone": None}
"""Who averages: in groups, all of them, nobody."""


def shares(rule: str, workers: int, period: int = 2) -> list[np.ndarray]:
    """The mixing matrices of a period; BSP's gradients of equal copies are averages of all."""
    if RULES[rule] == "ds-sync":
        return [DSSync().matrix(round, workers) for round in range(period)]
    return [np.full((workers, workers), 1 / workers) if RULES[rule] else np.eye(workers)] * period


def course(rule: str, workers: int, steps: int, seed: int) -> pd.DataFrame:
    """One run, step by step: the mean squared gradient and how far the members of the step's groups are apart before it, then the
    groups' mean squared distance from the optimum and their loss."""
    curvature = np.geomspace(MU, 1, DIM)
    random = stream(seed, "ds-sync theory", workers)
    start = random.standard_normal(DIM)
    x = np.tile(FAR * start / np.linalg.norm(start), (workers, 1))  # the optimum is 0
    rounds, rows = shares(rule, workers), []
    for step in range(1, steps + 1):
        noise = random.standard_normal((workers, DIM)) * NOISE / np.sqrt(DIM)
        gradient = x * curvature + noise
        groups = rounds[(step - 1) % 2]
        apart = ((groups @ x - x) ** 2).sum(1).mean()
        x = groups @ (x - rate(step) * gradient)
        rows.append(
            {
                "step": step,
                "distance": (x**2).sum(1).mean(),
                "apart": apart,
                "loss": 0.5 * (x**2 @ curvature).mean(),
                "gradient": (gradient**2).sum(1).mean(),
            }
        )
    return pd.DataFrame(rows).assign(rule=rule, workers=workers, seed=seed)


def rate(step: float) -> float:
    """The step's learning rate."""
    return 2 / (MU * (GAMMA + step))


def courses(rules: Iterable[str], crews: Iterable[int], steps: int, seeds: Iterable[int]) -> pd.DataFrame:
    places = ((rule, crew, seed) for rule in rules for crew in crews for seed in seeds)
    return pd.concat([course(*place[:2], steps, place[2]) for place in places], ignore_index=True)


def bounds(found: pd.DataFrame, workers: int) -> pd.DataFrame:
    """For each step: v / (t + gamma) on the distance, its loss (Eq. 24), the loss by Eq. 21 as it is printed, and Lemma A.3's
    bound on how far workers are apart. G^2 is the largest mean squared gradient over the seeds."""
    steps = np.arange(1, found["step"].max() + 1)
    most = found.groupby("step")["gradient"].mean().max()
    b = NOISE**2 / np.sqrt(workers) + 8 * most
    v = max(4 * b / MU**2, (GAMMA + 1) * FAR**2)
    distance = v / (steps + GAMMA)
    printed = 2 / MU / (GAMMA + steps) * (b / MU + 2 * FAR**2)
    return pd.DataFrame(
        {
            "step": steps,
            "distance": distance,
            "loss": distance / 2,
            "loss, Eq. 21": printed,
            "apart": 4 * rate(steps) ** 2 * most,
        }
    )


def judged(data: pd.DataFrame) -> pd.DataFrame:
    """What claims read of each run: by which power of the steps the distance falls in the last nine tenths, its mean over the
    last tenth, and the largest ratios of what was found, in the mean over seeds, to each bound."""
    return pd.DataFrame(_judged(data))


def _judged(data: pd.DataFrame) -> Iterator[dict]:
    for (rule, workers), group in data.groupby(["rule", "workers"], sort=False):
        limits, means = bounds(group, workers).set_index("step"), group.groupby("step").mean(numeric_only=True)
        above = {
            f"{name} over bound": float((means[name] / limits[name]).max()) for name in ("distance", "loss", "apart")
        }
        above["loss over Eq. 21"] = float((means["loss"] / limits["loss, Eq. 21"]).max())
        for seed, one in group.groupby("seed"):
            late = one[one["step"] > one["step"].max() / 10]
            power = np.polyfit(np.log(late["step"] + GAMMA), np.log(late["distance"]), 1)[0]
            end = one[one["step"] > 0.9 * one["step"].max()]["distance"].mean()
            about = {"subject": f"{rule}, {workers} workers", "rule": rule, "workers": workers, "seed": seed}
            yield about | {"power": float(power), "end": float(end)} | above
