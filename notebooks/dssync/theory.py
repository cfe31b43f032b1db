"""DS-Sync's Eq. 2 and Appendix A on a quadratic whose curvatures, optimum and noise are known.

The recursion is Eq. 3 and 4 with the kit's own groups, one row of numbers a worker. With L = 1 the bound is
E norm(mean - w*)^2 <= v / (t + gamma), v = max(4 B / mu^2, (gamma + 1) Delta), B = sigma^2 / N + 8 G^2, gamma = max(8 L / mu, 2),
for steps of 2 / (mu (gamma + t)).

Eq. 21 and v do not agree: (L/2) v with gamma = 8 L / mu has (2 L + mu / 4) Delta where Eq. 21 has 2 L Delta. `bounds` gives
both, and Delta is taken at the start, as Eq. 21 writes it.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from lib.protocols.dssync import DSSync
from lib.streams import stream
from notebooks import study
from notebooks.dssync.matrices import mixing_matrix

MU, DIM, FAR = 0.25, 16, 3.0
"""Least curvature (the greatest, L, is 1), parameters, the start's distance."""
GAMMA = max(8 / MU, 2)
RULES = {"ds-sync": "ds-sync", "bsp": "all-reduce", "alone": None}
"""Which workers average: groups, all of them, or none."""


def shares(rule: str, workers: int) -> list[np.ndarray]:
    """The mixing matrices of a period, two rounds; BSP's gradients of equal copies are averages of all."""
    if RULES[rule] == "ds-sync":
        return [mixing_matrix(DSSync(), round, workers) for round in range(2)]
    return [np.full((workers, workers), 1 / workers) if RULES[rule] else np.eye(workers)] * 2


def course(rule: str, workers: int, seed: int, steps: int, noise: float) -> pd.DataFrame:
    """One run, step by step: the mean squared gradient and how far the members of the step's groups are apart before it, then the
    groups' mean squared distance from the optimum and their loss."""
    curvature = np.geomspace(MU, 1, DIM)
    random = stream(seed, "ds-sync theory", workers)
    start = random.standard_normal(DIM)
    x = np.tile(FAR * start / np.linalg.norm(start), (workers, 1))  # the optimum is 0
    rounds, rows = shares(rule, workers), []
    # Lemma A.2: of a mean with these weights, the variance over sigma^2 / N.
    variance = np.sqrt(workers) * max((groups**2).sum(1).max() for groups in rounds)
    for step in range(1, steps + 1):
        gradient = x * curvature + random.standard_normal((workers, DIM)) * noise / np.sqrt(DIM)
        groups = rounds[(step - 1) % 2]
        mean = groups @ x
        apart = ((mean - x) ** 2).sum(1).mean()
        one_step = (
            expected_distance(mean, curvature, rate(step), noise, groups) / lemma_a1(x, rate(step), noise, groups)
        ).max()
        x = groups @ (x - rate(step) * gradient)
        distance, loss = (x**2).sum(1).mean(), 0.5 * (x**2 @ curvature).mean()
        rows.append((step, distance, apart, loss, (gradient**2).sum(1).mean(), one_step))
    columns = ["step", "distance", "apart", "loss", "gradient", "one step over bound"]
    about = {"rule": rule, "workers": workers, "seed": seed, "variance over bound": variance}
    return pd.DataFrame(rows, columns=columns).assign(**about)


def expected_distance(
    mean: np.ndarray, curvature: np.ndarray, rate: float, noise: float, groups: np.ndarray
) -> np.ndarray:
    """For each worker, the expected squared distance from the optimum after one step of its group's mean."""
    return ((mean * (1 - rate * curvature)) ** 2).sum(1) + (rate * noise) ** 2 * (groups**2).sum(1)


def lemma_a1(x: np.ndarray, rate: float, noise: float, groups: np.ndarray) -> np.ndarray:
    """For each worker, what Lemma A.1 bounds that by: (1 - rate mu) of the distance before, the variance of the group's mean
    gradient, and twice the mean squared distance of the group's members from their mean (the lemma prints "q" for two)."""
    mean = ((groups @ x) ** 2).sum(1)
    spread = groups @ (x**2).sum(1) - mean
    return (1 - rate * MU) * mean + (rate * noise) ** 2 * (groups**2).sum(1) + 2 * spread


def rate(step: float) -> float:
    """The step's learning rate."""
    return 2 / (MU * (GAMMA + step))


def courses(rules: Iterable[str], crews: Iterable[int], steps: int, seeds: Iterable[int], noise: float) -> pd.DataFrame:
    """All runs, with gradients whose noise has that deviation over all parameters."""
    cases = study.grid(rule=rules, workers=crews, seed=seeds)
    return pd.concat([course(**case, steps=steps, noise=noise) for case in cases], ignore_index=True)


def bounds(found: pd.DataFrame, workers: int, noise: float) -> pd.DataFrame:
    """For each step: v / (t + gamma) on the distance, its loss (Eq. 24), the loss by Eq. 21 as it is printed, and Lemma A.3's
    bound on how far workers are apart. G^2 is the largest mean squared gradient over the seeds."""
    steps = np.arange(1, found["step"].max() + 1)
    most = found.groupby("step")["gradient"].mean().max()
    b = noise**2 / np.sqrt(workers) + 8 * most
    v = max(4 * b / MU**2, (GAMMA + 1) * FAR**2)
    distance = v / (steps + GAMMA)
    printed = 2 / MU / (GAMMA + steps) * (b / MU + 2 * FAR**2)
    limits = {"step": steps, "distance": distance, "loss": distance / 2, "loss, Eq. 21": printed}
    return pd.DataFrame(limits | {"apart": 4 * rate(steps) ** 2 * most})


def claim_table(data: pd.DataFrame, noise: float) -> pd.DataFrame:
    """What claims read of each run: by which power of the steps the distance falls in the last nine tenths, its own and the mean
    over the seeds; its mean over the last tenth, and that over BSP's on the seeds that BSP has; and the largest ratios of what
    was found, in the mean over seeds, to each bound. Lemmas A.1 and A.2 hold for expectations given the parameters, which are
    computed exactly, so that theirs are the largest ratios over seeds and workers too."""
    rows = []
    for (rule, workers), group in data.groupby(["rule", "workers"], sort=False):
        limits, means = bounds(group, workers, noise).set_index("step"), group.groupby("step").mean(numeric_only=True)
        above = {
            f"{name} over bound": float((means[name] / limits[name]).max()) for name in ("distance", "loss", "apart")
        }
        above["loss over Eq. 21"] = float((means["loss"] / limits["loss, Eq. 21"]).max())
        above |= {name: float(group[name].max()) for name in ("one step over bound", "variance over bound")}
        above["power of the mean"] = _power(means["distance"])
        for seed, one in group.groupby("seed"):
            power = _power(one.set_index("step")["distance"])
            end = one[one["step"] > 0.9 * one["step"].max()]["distance"].mean()
            about = {"subject": f"{rule}, {workers} workers", "rule": rule, "workers": workers, "seed": seed}
            rows.append(about | {"power": power, "end": float(end)} | above)
    found = pd.DataFrame(rows)
    over = ends(found)["over bsp"]
    cases = pd.MultiIndex.from_frame(found[["workers", "rule"]])
    return found.assign(**{"end over bsp": over.reindex(cases).to_numpy()})


def ends(found: pd.DataFrame) -> pd.DataFrame:
    """The mean distance over the last tenth by workers and rule, and its ratio to BSP's on BSP's seeds, which share start and
    noise."""
    shared = found[found["seed"].isin(set(found.loc[found["rule"] == "bsp", "seed"]))]
    means = shared.groupby(["workers", "rule"], sort=False)["end"].mean()
    bsp = means.xs("bsp", level="rule").reindex(means.index.get_level_values("workers")).to_numpy()
    return pd.DataFrame({"end": means, "over bsp": means / bsp})


def _power(distance: pd.Series) -> float:
    """By which power of the steps, its index, the distance falls in the last nine tenths."""
    late = distance[distance.index > distance.index.max() / 10]
    return float(np.polyfit(np.log(late.index + GAMMA), np.log(late), 1)[0])
