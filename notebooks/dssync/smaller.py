"""DS-Sync with smaller messages and smaller groups: numbers of half precision, and more levels than the paper's two.

Among W workers groups of N make as many levels as there are factors of at most N: 16 workers in fours are at the average of all
after two averages, in twos after four. A ring of chunks takes 2 (N - 1) / N of the vector's bytes, so a smaller group's average
costs less, and by half precision half of that.
"""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from lib import Run
from lib.protocols.dssync import DSSync
from notebooks import study
from notebooks.dssync import quality, vector
from notebooks.dssync.matrices import residual, steps_to_average

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


def exchanges(seeds: Iterable[int]) -> tuple[pd.DataFrame, list[Run]]:
    """What an average costs in timing runs, in units of D / B, and over its formula."""

    def job(workers: int, group: int, half: bool, seed: int) -> dict:
        cluster, rule = vector.cluster(workers, UNIT, latency=1e-6), DSSync(size=group, half=half)
        return vector.job(rule, cluster, seed, seconds=STEP, steps=STEPS)

    crews = (study.grid(workers=[n], group=sizes, half=(False, True), seed=seeds) for n, sizes in GROUPS.items())
    places = [case for each in crews for case in each]
    found, runs = study.run_grid(job, places, cost=lambda run: (run.summary["virtual_seconds"] / STEPS - STEP) / UNIT)
    formula = 2 * (found["group"] - 1) / found["group"] / (1 + found["half"])
    found["over formula"] = found["cost"] / formula
    numbers = found["half"].map({False: "whole", True: "half"})
    found["subject"] = numbers + ", " + found["group"].astype(str) + " of " + found["workers"].astype(str)
    return found, runs


def levels(found: pd.DataFrame) -> pd.DataFrame:
    """Of each number of workers and size of a group: its levels, which are the averages until everyone has that of all; what an
    average costs; what all of them cost together; and what is left of a disagreement after two."""
    costs = found.groupby(["workers", "group", "half"], sort=False)["cost"].mean().unstack()
    rules = [(DSSync(size=group), workers) for workers, group in costs.index]
    own = {"levels": [steps_to_average(rule, workers) for rule, workers in rules]}
    own |= {"cost": costs[False], "in half precision": costs[True]}
    own |= {
        "until all have it": costs[False] * own["levels"],
        "left after two": [residual(rule, 2, n) for rule, n in rules],
    }
    return pd.DataFrame(own, index=costs.index)


def cases(tasks: Sequence[str], seeds: Sequence[int]) -> list[study.Case]:
    """Four workers on all tasks, sixteen on one if it is among them; and a model that learns nothing, once for each."""
    found = []
    for mode, (workers, _) in RULES.items():
        some = [task for task in tasks if workers == 4 or task == ALONE]
        found += study.grid(task=some, workers=[workers], mode=[mode], seed=seeds)
    counts = dict.fromkeys((each["task"], each["workers"]) for each in found)
    frozen = {"mode": quality.FROZEN, "seed": seeds[0]}
    return found + [{"task": task, "workers": workers, **frozen} for task, workers in counts]


def job(task: str, workers: int, mode: str, seed: int, **shape) -> dict:
    """As in the tables of accuracy, with another of DS-Sync's rules."""
    if mode == quality.FROZEN:
        return quality.job(task, mode, seed, workers=workers, **shape)
    return quality.job(task, "DS-Sync", seed, workers=workers, **shape) | {"protocol": RULES[mode][1]}
