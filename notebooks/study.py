"""A study: axes in, a table of runs out, then paired by seed.

    places = study.grid(task=TASKS, protocol=("sync", "gba"), seed=claims.judging(5))
    data, runs = study.swept(job, places, auc="auc", qps=study.pace)
    data["less sync's"] = data["auc"] - study.beside(data, "auc", ["task", "seed"], protocol="sync")

A *place* is a dict, axis -> value: what `job` takes by name, and the columns by which the table knows the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from lib.results.run import Run
from lib.training.sweep import sweep

Place = Mapping[str, Any]
Key = TypeVar("Key")
pace = attrgetter("steady_qps")
"""Samples a second, a figure like others."""


def grid(**axes: Iterable[Any]) -> list[Place]:
    """Every combination of the axes' values, those of the last axis next to each other."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def made(jobs: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Run]:
    """Each job's run, by what the job is known by."""
    return dict(zip(jobs, sweep(jobs.values()), strict=True))


def swept(job: Callable[..., Mapping[str, Any]], places: Iterable[Place], *several, **figures) -> Any:
    """The table of the runs of `job(**place)`, as `told` makes it, and the runs."""
    places = list(places)
    runs = sweep([job(**place) for place in places])
    return told(places, runs, *several, **figures), runs


def told(
    places: Iterable[Place],
    runs: Iterable[Run],
    *several: Callable[..., Place],
    **figures: str | Callable[[Run], Any],
) -> pd.DataFrame:
    """A row for each run: its place, the figures (names of its summary, or functions of it), and what each of `several` says of
    the run, given its place."""
    rows = []
    for place, run in zip(places, runs, strict=True):
        own = {name: run.summary[of] if isinstance(of, str) else of(run) for name, of in figures.items()}
        rows.append({**place, **own, **{name: value for each in several for name, value in each(run, **place).items()}})
    return pd.DataFrame(rows)


def beside(data: pd.DataFrame, column: str, same: Sequence[str], **base: Any) -> np.ndarray:
    """For each row, the column of the row that is the `base` (protocol="sync") and has the `same` values (task, seed)."""
    there = data[(data[[*base]] == pd.Series(base)).all(axis=1)].set_index([*same])[column]
    places = pd.MultiIndex.from_frame(data[[*same]]) if len(same) > 1 else data[same[0]]
    return there.reindex(places).to_numpy()


def courses(places: Iterable[Place], runs: Iterable[Run], *columns: str) -> pd.DataFrame:
    """The rows of the runs' histories that have all the columns, each with its run's place."""
    histories = (run.history.dropna(subset=[*columns])[[*columns]] for run in runs)
    return pd.concat([each.assign(**place) for place, each in zip(places, histories, strict=True)], ignore_index=True)


def crossing(course: np.ndarray, goal: float) -> np.ndarray | None:
    """Where a course, whose last column is the metric, is at the goal first, on straight lines between its rows: the other
    columns there. None where it never is; one that begins there is there in its first row."""
    above = course[:, -1] >= goal
    if not above.any():
        return None
    at = int(above.argmax())
    before, after = course[max(at - 1, 0)], course[at]
    share = (goal - before[-1]) / (after[-1] - before[-1]) if at else 1.0
    return (before + share * (after - before))[:-1]
