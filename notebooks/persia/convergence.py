"""How well Persia's modes learn, each at the best of the same learning rates, which are tried on seeds kept for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from lib.results.run import Run
from lib.training.sweep import sweep
from notebooks.persia.tasks import TABLE_2, job

RATES = (0.3, 1.0, 3.0)
"""Times a task's usual learning rates: half a decade apart."""


def tried(
    tasks: Sequence[str], modes: Sequence[str], rates: Sequence[float], seeds: Iterable[int], samples: int
) -> pd.DataFrame:
    """The AUC of each mode on each task at each rate, a mean over the seeds."""
    seeds = list(seeds)
    places = [(task, mode, rate, seed) for task in tasks for mode in modes for rate in rates for seed in seeds]
    runs = sweep([job(task, mode, seed, samples=samples, rate=rate) for task, mode, rate, seed in places])
    data = pd.DataFrame(places, columns=["task", "protocol", "rate", "seed"])
    data["auc"] = [run.summary["auc"] for run in runs]
    return data.groupby(["task", "protocol", "rate"], sort=False)["auc"].mean().unstack()


def best(grid: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Task and mode -> the rate at which it was best."""
    return {place: float(rate) for place, rate in grid.idxmax(axis=1).items()}


def judged(places: Sequence[tuple[str, str, int]], runs: Sequence[Run]) -> pd.DataFrame:
    """A row for each run, as claims read it."""
    data = pd.DataFrame(places, columns=["task", "protocol", "seed"])
    data["auc"] = [run.summary["auc"] for run in runs]
    data["staleness"] = [run.summary["staleness_mean"] for run in runs]
    sync = data[data["protocol"] == "sync"].set_index(["task", "seed"])["auc"]
    data["auc less sync's"] = data["auc"] - sync.reindex(pd.MultiIndex.from_frame(data[["task", "seed"]])).to_numpy()
    return data.assign(subject=data["task"] + ", " + data["protocol"])


def courses(places: Sequence[tuple[str, str, int]], runs: Sequence[Run]) -> pd.DataFrame:
    """AUC of the test day in the course of a pass."""
    parts = []
    for (task, mode, seed), run in zip(places, runs, strict=True):
        found = run.history.dropna(subset=["auc"])[["samples", "auc"]]
        part = (found["samples"] / found["samples"].max()).round(2)
        parts.append(found.assign(part=part, task=task, protocol=mode, seed=seed))
    return pd.concat(parts, ignore_index=True)


def beside(data: pd.DataFrame) -> pd.DataFrame:
    """Each mode's mean AUC less sync's, in hundredths, beside Table 2's."""
    means = data.groupby(["task", "protocol"], sort=False)["auc"].mean().unstack()
    here = _less_sync(means).rename(columns="{}".format)
    paper = _less_sync(pd.DataFrame(TABLE_2).T.loc[lambda t: t.index.isin(here.index)])
    return here.round(2).join(paper.round(2).rename(columns="paper, {}".format))


def _less_sync(aucs: pd.DataFrame | Mapping) -> pd.DataFrame:
    return 100 * aucs.sub(aucs["sync"], axis=0).drop(columns="sync")
