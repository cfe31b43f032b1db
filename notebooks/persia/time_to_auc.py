"""How long Persia's modes take to what synchronous training learns, in the runs of Table 2 and Figure 7."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from lib.results.run import Run
from notebooks.persia.tasks import job

SHARE = 0.1
"""Of what synchronous training brings, how much the AUC that is waited for lies below its end: the margin of parity."""


def reached(course: pd.DataFrame, start: float, goal: float) -> tuple[float, float]:
    """Seconds and samples to the first moment at which the AUC is at the goal, on straight lines between evaluations that begin
    at `start`; infinite where it never is."""
    before = np.array([0.0, 0.0, start])
    for point in course[["time", "samples", "auc"]].to_numpy(float):
        if point[2] >= goal:
            part = max(0.0, (goal - before[2]) / (point[2] - before[2]))
            seconds, samples = (before + part * (point - before))[:2]
            return float(seconds), float(samples)
        before = point
    return math.inf, math.inf


def waited(places: Sequence[tuple[str, str, int]], runs: Sequence[Run]) -> pd.DataFrame:
    """A row for each run but the frozen ones: what it took to sync's AUC of the same seed, less a tenth of what sync brought.

    `times as fast as sync` is 0 where that is never reached. It is how many samples sync needs over the mode's own, times how
    many more of them the mode trains in a second.
    """
    ends = {place: run.summary["auc"] for place, run in zip(places, runs, strict=True)}
    rows = []
    for (task, mode, seed), run in zip(places, runs, strict=True):
        if mode == "frozen":
            continue
        sync, frozen = ends[task, "sync", seed], ends[task, "frozen", seed]
        goal = sync - SHARE * (sync - frozen)
        seconds, samples = reached(run.history.dropna(subset=["auc"]), frozen, goal)
        rows.append((task, mode, seed, goal, seconds, samples))
    data = pd.DataFrame(rows, columns=["task", "protocol", "seed", "goal", "seconds", "samples"])
    sync = data[data["protocol"] == "sync"].set_index(["task", "seed"])[["seconds", "samples"]]
    there = sync.reindex(pd.MultiIndex.from_frame(data[["task", "seed"]])).to_numpy().T
    data["times as fast as sync"] = there[0] / data["seconds"]
    data["samples, of sync's"] = data["samples"] / there[1]
    return data.assign(subject=data["task"] + ", " + data["protocol"])


def courses(places: Sequence[tuple[str, str, int]], runs: Sequence[Run]) -> pd.DataFrame:
    """AUC by seconds; those of one evaluation stand at their mean over the seeds."""
    parts = []
    for (task, mode, seed), run in zip(places, runs, strict=True):
        found = run.history.dropna(subset=["auc"])[["time", "auc"]].reset_index(drop=True)
        parts.append(found.assign(task=task, protocol=mode, seed=seed, number=found.index))
    data = pd.concat(parts, ignore_index=True)
    data["time"] = data.groupby(["task", "protocol", "number"])["time"].transform("mean")
    return data


def slow(task: str, mode: str, seed: int, wait: float, **shape: Any) -> dict[str, Any]:
    """The same run where a server takes `wait` seconds more for whatever it is asked, many things at once."""
    made = job(task, mode, seed, **shape)
    here = made["cluster"]
    return made | {"cluster": replace(here, server=replace(here.server, launch=wait))}


def by_wait(
    task: str, spots: Sequence[tuple[int, str, int]], runs: Sequence[Run], frozen: Mapping[int, Run]
) -> pd.DataFrame:
    """Milliseconds of waiting -> how many times as fast as sync with the same wait each mode is; spots: wait, mode, seed."""
    rows = []
    for wait in dict.fromkeys(wait for wait, _, _ in spots):
        here = [(spot, run) for spot, run in zip(spots, runs, strict=True) if spot[0] == wait]
        places = [(task, mode, seed) for (_, mode, seed), _ in here] + [(task, "frozen", seed) for seed in frozen]
        rows.append(waited(places, [*(run for _, run in here), *frozen.values()]).assign(milliseconds=wait))
    data = pd.concat(rows, ignore_index=True)
    return data.groupby(["milliseconds", "protocol"], sort=False)["times as fast as sync"].mean().unstack()
