"""DS-Sync's Figures 2 and 5 and Table 4: steps, and seconds on the paper's cluster, until a mode is where BSP gets.

The paper's target is BSP's mean less one standard deviation. Here each seed has a world of its own, so the target is BSP's best
of that seed, less the deviation over the seeds. What a mode learns by steps is that of the pages of accuracy; how long a step
takes is that of Figures 3 and 4: the paper's models on its cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from notebooks.dssync import overhead

MODEL = {"images": "CIFAR-10", "questions": "SQuAD", "clicks": "Criteo"}
"""Our tasks -> the paper's models."""

RULE = {"BSP": "bsp", "DS-Sync": "ds-sync", "ASP": "asp"}
"""The modes whose seconds are modelled."""

TABLE_4 = {
    ("CIFAR-10", 4): (2.837, 6566 / 2940),
    ("SQuAD", 4): (1.211, 1.0),
    ("Criteo", 4): (1.050, 1.0),
    ("CIFAR-10", 16): (3.311, 1833 / 780),
    ("SQuAD", 16): (1.662, 2050 / 1950),
    ("Criteo", 16): (1.069, 2260 / 1980),
}
"""Model and nodes -> how many times as long BSP takes until it has converged, and how many times as many iterations."""


def seconds(tasks: Iterable[str], seeds: Iterable[int]):
    """Task, number of workers, mode and seed -> seconds of a step on the paper's cluster; and the runs that say so."""
    found, runs = overhead.iterations([MODEL[task] for task in tasks], seeds)
    modes, names = ({value: key for key, value in table.items()} for table in (RULE, MODEL))
    found = found.assign(task=found["model"].map(names), mode=found["protocol"].map(modes))
    return found.set_index(["task", "nodes", "mode", "seed"])["seconds"], runs


def timed(courses: pd.DataFrame, workers: int, step: pd.Series) -> pd.DataFrame:
    """Courses of so many workers with their seconds; a mode whose steps are not modelled has none."""
    keys = zip(courses["task"], courses["protocol"], courses["seed"], strict=True)
    each = [step.get((task, workers, mode, seed), math.nan) for task, mode, seed in keys]
    return courses.assign(workers=workers, seconds=courses["step"] * each)


def reached(courses: pd.DataFrame) -> pd.DataFrame:
    """Steps and seconds of each run until its metric first is at the target, between two evaluations on a straight line. One that
    never is there counts as if it were at its end, which is too good for it; `there` is 0 then."""
    keys = ["task", "workers", "seed"]
    bests = courses[courses["protocol"] == "BSP"].groupby(keys)["metric"].max()
    floor = bests - bests.groupby(["task", "workers"]).transform("std").fillna(0.0)
    rows = []
    for (task, workers, mode, seed), course in courses.groupby(["task", "workers", "protocol", "seed"], sort=False):
        rows.append(
            {
                "subject": f"{mode}, {task}, {workers}",
                "task": task,
                "workers": workers,
                "mode": mode,
                "seed": seed,
                "target": floor[task, workers, seed],
                "above target": course["metric"].max() - floor[task, workers, seed],
                **_first(course.sort_values("step"), floor[task, workers, seed]),
            }
        )
    return pd.DataFrame(rows)


def beside(found: pd.DataFrame) -> pd.DataFrame:
    """BSP's seconds and steps to the target over DS-Sync's, in the mean over the seeds, beside Table 4's."""
    keys = ["task", "workers", "seed"]
    wide = found.pivot_table(index=keys, columns="mode", values=["seconds", "steps"], sort=False)
    times = pd.DataFrame({name: wide[name]["BSP"] / wide[name]["DS-Sync"] for name in ("seconds", "steps")})
    times = times.groupby(["task", "workers"], sort=False).mean()
    paper = [TABLE_4[MODEL[task], workers] for task, workers in times.index]
    return times.join(pd.DataFrame(paper, index=times.index, columns=["paper's seconds", "paper's iterations"]))


def _first(course: pd.DataFrame, target: float) -> dict[str, float]:
    """Where the course crosses the target; one that begins above it has crossed it at its first evaluation."""
    above = (course["metric"] >= target).to_numpy()
    at = int(above.argmax()) if above.any() else len(course) - 1
    after, before = course.iloc[at], course.iloc[max(at - 1, 0)]
    crosses = at > 0 and above.any()
    share = (target - before["metric"]) / (after["metric"] - before["metric"]) if crosses else 1.0
    gone = {name: before[name] + share * (after[name] - before[name]) for name in ("step", "seconds")}
    return {"steps": gone["step"], "seconds": gone["seconds"], "there": float(above.any())}
