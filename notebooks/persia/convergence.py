"""How well and how fast Persia's modes learn: all at one pair of rates, and each at its own best, tried on seeds kept for it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lib import Run
from notebooks import grid_search, regime, study
from notebooks.advisor.trial import crossing
from notebooks.persia.tasks import GPUS, TABLE_2, job

RATES = (0.3, 1.0, 3.0)
"""Times a task's usual learning rates, half a decade apart: where a mode's grid begins."""

SEED = ["task", "seed"]
AVERAGE = "average"
"""Of the tasks, in the place of a task's name."""


def tune(
    tasks: Sequence[str], modes: Sequence[str], rates: Sequence[float], seeds: Iterable[int], samples: int
) -> pd.DataFrame:
    """The curve of each mode's AUC on each task over the network's rate and the rows'."""
    axes, base_job = dict.fromkeys(("dense", "rows"), rates), partial(job, samples=samples)
    return grid_search.curve(
        base_job, lambda run, **_: study.quality(run, "auc"), axes, seeds, task=tasks, protocol=modes
    )


def claim_table(cases: Sequence[study.Case], runs: Sequence[Run]) -> pd.DataFrame:
    """A row for each run, as claims read it; then, under the task's name *average*, what the tasks come to of a mode and seed."""
    data = study.table(cases, runs, auc="auc", staleness="staleness_mean")
    whole = (
        data.groupby(["protocol", "seed"], sort=False)[["auc", "staleness"]].mean().reset_index().assign(task=AVERAGE)
    )
    data = pd.concat([data, whole], ignore_index=True)
    data = study.differences(data, ["auc"], SEED, protocol="sync")
    return data.assign(subject=data["task"] + ", " + data["protocol"])


def histories(cases: Sequence[study.Case], runs: Sequence[Run]) -> pd.DataFrame:
    """AUC of the test day in the course of a pass, of what trains; one evaluation's seconds are a mean over the seeds."""
    data = study.histories(cases, runs, "time", "samples", "auc").query("protocol != 'frozen'").assign(all="")
    data["part"] = (data["samples"] / data.groupby([*SEED, "protocol"])["samples"].transform("max")).round(2)
    data["time"] = data.groupby(["task", "protocol", "part"])["time"].transform("mean")
    return data


def by_rareness(modes: Sequence[str], times: Sequence[int], seeds: Iterable[int], samples: int) -> pd.DataFrame:
    """AUC minus sync's on Criteo's task with several times more ids of a field: a column for each mode, a row for each
    number of samples per id."""

    def rare_job(times: int, protocol: str, seed: int) -> dict:
        run = job("criteo", protocol, seed, samples=samples)
        task = run["workload"]
        return run | {"workload": replace(task, vocabulary=times * task.vocabulary)}

    data, _ = study.run_grid(rare_job, study.grid(times=times, protocol=modes, seed=seeds), auc="auc")
    batch = GPUS * job("criteo", modes[0], 0, samples=samples)["workload"].batch_size
    met = [regime.ids(rare_job(each, modes[0], 0)["workload"], 0, batch, samples)["samples per id"] for each in times]
    data["samples for an id"] = data["times"].map(dict(zip(times, met, strict=True)))
    data = study.differences(data, ["auc"], ["times", "seed"], protocol="sync")
    return data.groupby(["samples for an id", "protocol"], sort=False)["auc less sync's"].mean().unstack()


def beside_paper(data: pd.DataFrame) -> pd.DataFrame:
    """Each mode's mean AUC minus sync's of the same seed, in hundredths, next to Table 2's."""
    ours = 100 * data.groupby(["task", "protocol"], sort=False)["auc less sync's"].mean().unstack().drop(columns="sync")
    paper = pd.DataFrame(TABLE_2).T.loc[lambda t: t.index.isin(ours.index)]
    theirs = 100 * paper.sub(paper["sync"], axis=0).drop(columns="sync")
    theirs.loc[AVERAGE] = theirs.mean()
    return ours.round(2).rename(columns="{}".format).join(theirs.round(2).rename(columns="paper, {}".format))


def time_to_auc(
    cases: Sequence[study.Case], runs: Sequence[Run], same: Sequence[str] = SEED, share: float = 0.1
) -> pd.DataFrame:
    """A row for each run but the frozen ones: what it took to sync's AUC of the `same` task and seed minus a `share` of what
    sync brought: by default a tenth, parity's margin.

    `times as fast as sync` is 0 where that is never reached. It is how many samples sync needs over the mode's own, times how
    many more of them the mode trains in a second.
    """
    data = study.table(cases, runs, auc="auc")
    sync, frozen = (study.baseline(data, "auc", same, protocol=mode) for mode in ("sync", "frozen"))
    data["brings"] = sync - frozen
    data["goal"] = sync - share * data["brings"]
    took = []
    for run, start, goal in zip(runs, frozen, data["goal"], strict=True):
        points = run.history[["time", "samples", run.history_column("auc")]].dropna().to_numpy(float)
        found = crossing(np.vstack([(0, 0, start), points]), goal)
        took.append((math.inf, math.inf) if found is None else found)
    data = data.assign(**pd.DataFrame(took, columns=["seconds", "samples"])).query("protocol != 'frozen'")
    data["times as fast as sync"] = study.baseline(data, "seconds", same, protocol="sync") / data["seconds"]
    data["samples, of sync's"] = data["samples"] / study.baseline(data, "samples", same, protocol="sync")
    return data.assign(subject=data["task"] + ", " + data["protocol"])


def slow_server_job(task: str, protocol: str, seed: int, wait: float, **shape) -> dict:
    """The same run with servers that take `wait` seconds more for each request, many at once; not for frozen runs."""
    base = job(task, protocol, seed, **shape)
    server = replace(base["cluster"].server, launch=0.0 if protocol == "frozen" else wait)
    return base | {"cluster": replace(base["cluster"], server=server)}
