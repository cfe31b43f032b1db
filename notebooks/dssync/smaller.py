"""DS-Sync with smaller messages and smaller groups: numbers of half precision, and more levels than the paper's two.

Among W workers groups of N make as many levels as there are factors of at most N: 16 workers in fours are at the average of all
after two averages, in twos after four. A ring of chunks takes 2 (N - 1) / N of the vector's bytes, so a smaller group's average
costs less, and by half precision half of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

import lib
from lib.protocols.dssync import DSSync
from lib.results.run import Run
from notebooks.dssync import quality, vector

GROUPS = {4: (4, 2), 16: (16, 4, 2), 64: (64, 8, 4, 2)}
"""Workers -> the most that average together: all of them first."""

UNIT, STEP, STEPS = 0.04, 1e-3, 6
"""Seconds in which a link carries the vector, 50 MB on 10 Gbit/s; of a worker's step; steps of a run."""

RULES: Mapping[str, tuple[int, DSSync]] = {
    "whole numbers": (4, DSSync()),
    "half precision": (4, DSSync(half=True)),
    "fours": (16, DSSync()),
    "twos": (16, DSSync(size=2)),
}
"""What is compared in what it learns: the number of workers, and the rule."""

ALONE = "images"
"""The task on which sixteen workers train."""


class Place(NamedTuple):
    """A run."""

    task: str
    mode: str
    workers: int
    seed: int


def exchanges(seeds: Iterable[int]) -> tuple[pd.DataFrame, list[Run]]:
    """What an average costs in timing runs, in units of D / B, and over its formula."""
    places = [
        (workers, size, half, seed)
        for workers, sizes in GROUPS.items()
        for size in sizes
        for half in (False, True)
        for seed in seeds
    ]
    jobs = [
        vector.job(DSSync(size=size, half=half), _cluster(workers), seed, seconds=STEP, steps=STEPS)
        for workers, size, half, seed in places
    ]
    runs = lib.sweep(jobs)
    found = pd.DataFrame(places, columns=["workers", "group", "half", "seed"])
    found["cost"] = [(run.summary["virtual_seconds"] / STEPS - STEP) / UNIT for run in runs]
    formula = 2 * (found["group"] - 1) / found["group"] / (1 + found["half"])
    found["over formula"] = found["cost"] / formula
    numbers = found["half"].map({False: "whole", True: "half"})
    found["subject"] = numbers + ", " + found["group"].astype(str) + " of " + found["workers"].astype(str)
    return found, runs


def levels(found: pd.DataFrame) -> pd.DataFrame:
    """Of each number of workers and size of a group: its levels, which are the averages until everyone has that of all; what an
    average costs; what all of them cost together; and what is left of a disagreement after two."""
    costs = found.groupby(["workers", "group", "half"], sort=False)["cost"].mean().unstack()
    rows = []
    for (workers, group), cost in costs.iterrows():
        rule = DSSync(size=int(group))
        steps = rule.steps_to_average(workers)
        rows.append(
            {
                "workers": workers,
                "group": group,
                "levels": steps,
                "cost": cost[False],
                "in half precision": cost[True],
                "until all have it": cost[False] * steps,
                "left after two": rule.left(2, workers),
            }
        )
    return pd.DataFrame(rows).set_index(["workers", "group"])


def places(tasks: Sequence[str], seeds: Sequence[int]) -> list[Place]:
    """Four workers on all tasks, sixteen on one; and a model that learns nothing, once for each."""
    found = []
    for mode, (workers, _) in RULES.items():
        found += [Place(task, mode, workers, seed) for task in tasks if workers == 4 or task == ALONE for seed in seeds]
    counts = dict.fromkeys((each.task, each.workers) for each in found)
    return found + [Place(task, quality.FROZEN, workers, seeds[0]) for task, workers in counts]


def job(place: Place, rate: float, steps: int, evaluations: int) -> dict[str, Any]:
    """As in the tables of accuracy, with another of DS-Sync's rules."""
    task, mode, workers, seed = place
    if mode == quality.FROZEN:
        return quality.job(task, mode, rate, seed, steps, evaluations, workers)
    return quality.job(task, "DS-Sync", rate, seed, steps, evaluations, workers) | {"protocol": RULES[mode][1]}


def measured(found: Sequence[Place], runs: Sequence[Run]) -> pd.DataFrame:
    """What claims read: the best and the last metric of each run."""
    data = quality.measured([(place.task, place.mode, place.seed) for place in found], runs)
    data["workers"] = [place.workers for place in found]
    return data.assign(subject=data["task"] + ", " + data["workers"].astype(str) + ", " + data["mode"])


def _cluster(workers: int):
    return vector.cluster(workers, UNIT, latency=1e-6)
