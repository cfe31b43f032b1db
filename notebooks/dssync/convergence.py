"""DS-Sync's Figures 2 and 5 and Table 4: steps, and seconds on the paper's cluster, until a mode is where BSP gets.

The paper's target is BSP's mean minus one standard deviation. Here each seed has a world of its own, so the target is BSP's
quality on that seed, minus the deviation over the seeds. What a mode learns by steps is that of the pages of accuracy; how long
a step takes is that of Figures 3 and 4: the paper's models on its cluster.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from lib import Run
from notebooks import study
from notebooks.advisor.trial import crossing
from notebooks.dssync import overhead

MODEL = {"images": "CIFAR-10", "questions": "SQuAD", "clicks": "Criteo"}
"""Our tasks -> the paper's models."""

RULE = {"BSP": "bsp", "DS-Sync": "ds-sync", "ASP": "asp"}
"""The modes whose seconds are modelled."""


def seconds(tasks: Iterable[str], seeds: Iterable[int], **network: float) -> tuple[pd.Series, list[Run]]:
    """Seconds of a step on the paper's cluster by task, number of workers, mode and seed; and the runs that measure them."""
    found, runs = overhead.iterations([MODEL[task] for task in tasks], seeds, RULE.values(), **network)
    modes, names = ({value: key for key, value in table.items()} for table in (RULE, MODEL))
    found = found.assign(task=found["model"].map(names), mode=found["protocol"].map(modes))
    return found.set_index(["task", "nodes", "mode", "seed"])["seconds"], runs


def with_seconds(courses: pd.DataFrame, step: pd.Series) -> pd.DataFrame:
    """Courses with their seconds; a mode whose steps are not modelled has none."""
    keys = courses[["task", "workers", "protocol", "seed"]].itertuples(index=False, name=None)
    return courses.assign(seconds=courses["step"] * [step.get(key, math.nan) for key in keys])


def steps_to_target(courses: pd.DataFrame) -> pd.DataFrame:
    """Steps and seconds of each run until its metric first is at the target, between two evaluations on a straight line. One that
    never is there counts as if it were at its end, which is too good for it; `there` is 0 then. `course` is how high a curve
    runs: its mean from the first evaluation to the last."""
    keys = ["task", "workers", "seed"]
    bsp = courses[courses["protocol"] == "BSP"]
    late = bsp["step"] > study.EARLY * bsp.groupby(keys)["step"].transform("max")
    ends = bsp[late].groupby(keys)["metric"].mean()
    floor = ends - ends.groupby(["task", "workers"]).transform("std").fillna(0.0)
    rows = []
    for (*case, mode), course in courses.groupby([*keys, "protocol"], sort=False):
        target, points = floor[tuple(case)], course.sort_values("step")[["step", "seconds", "metric"]].to_numpy(float)
        found = crossing(points, target)
        steps, seconds = points[-1, :2] if found is None else found
        about = {"subject": f"{mode}, {case[0]}, {case[1]}", **dict(zip(keys, case, strict=True)), "mode": mode}
        about |= {"target": target, "above target": course["metric"].max() - target}
        even = np.linspace(points[0, 0], points[-1, 0], 101)  # evaluations are closer to each other at the end
        about |= {"course": np.interp(even, points[:, 0], points[:, 2]).mean(), "steps of a worker": points[-1, 0]}
        rows.append(about | {"steps": steps, "seconds": seconds, "there": float(found is not None)})
    return pd.DataFrame(rows)


def beside_paper(found: pd.DataFrame) -> pd.DataFrame:
    """BSP's seconds and steps to the target over DS-Sync's, in the mean over the seeds, next to Table 4's."""
    wide = found.pivot_table(index=["task", "workers", "seed"], columns="mode", values=["seconds", "steps"], sort=False)
    times = pd.DataFrame({name: wide[name]["BSP"] / wide[name]["DS-Sync"] for name in ("seconds", "steps")})
    times = times.groupby(["task", "workers"], sort=False).mean()
    paper = [overhead.TABLE_4[MODEL[task], workers] for task, workers in times.index]
    ratios = [(bsp / ds, steps / less) for steps, bsp, less, ds in paper]
    return times.join(pd.DataFrame(ratios, index=times.index, columns=["paper's seconds", "paper's iterations"]))
