"""GBA's Figure 2: the mode is switched in the middle of training, with one set of hyper-parameters or the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from lib.results.run import Run
from lib.store.optim import Adagrad, Adam
from lib.training.schedule import Phase, Schedule
from notebooks.gba import switching
from notebooks.gba.tasks import Task, at_rate

CASES: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "sync": (("sync", "S"), ("sync", "S")),
    "gba (S)": (("sync", "S"), ("gba", "S")),
    "async (S)": (("sync", "S"), ("async", "S")),
    "async (A)": (("sync", "S"), ("async", "A")),
    "one worker (S)": (("sync", "S"), ("one worker", "S")),
    "one worker (A)": (("sync", "S"), ("one worker", "A")),
    "async": (("async", "A"), ("async", "A")),
    "sync (S)": (("async", "A"), ("sync", "S")),
    "sync (A)": (("async", "A"), ("sync", "A")),
}
"""Name -> mode and set of hyper-parameters, before the switch and after it. One worker under Async is the control: its updates
are as large and as many as Async's, and none is stale."""

DAYS = 4
"""Length of the pass, from scratch, in days of the task."""


def job(task: Task, profile: str, case: str, seed: int) -> dict[str, Any]:
    size = task.sizes[profile]
    half = DAYS * size.day // 2
    before, after = (phase(task, mode, name) for mode, name in CASES[case])
    workload = replace(task.workload(profile), samples=2 * half, days=DAYS, world=seed)
    return {
        "workload": workload,
        "protocol": Schedule(phases=(replace(before, until_samples=half), after)),
        "cluster": task.cluster(profile, "gba"),
        "seed": seed,
        "evaluations": 20,
        "trace": False,
    }


def phase(task: Task, mode: str, name: str) -> Phase:
    """A mode with a set of hyper-parameters: an optimiser with its rate, and the samples of a worker's step."""
    kind, batch = (Adam(lr=task.adam["sync"]), task.sync[1]) if name == "S" else (Adagrad(lr=task.adagrad), task.lone)
    return task.phase(mode, batch_size=task.others[1] if mode == "gba" else batch, **at_rate(kind))


def late(task: Task, profile: str, start: Run, mode: str, name: str) -> dict[str, Any]:
    """The job of a day in a mode with a set of hyper-parameters after another run, evaluated after every 5 % of it."""
    size = task.sizes[profile]
    job = switching.days(task, profile, "sync", start, size.base + 1)
    after = replace(phase(task, mode, name), until_day=size.base + 1)
    return job | {
        "protocol": Schedule(phases=(after,)),
        "cluster": task.cluster(profile, "gba"),
        "evaluations": 40 * size.days,
        "keep": False,
    }


def curve(run: Run) -> pd.DataFrame:
    """AUC against progress in per cent."""
    found = run.history.dropna(subset=["auc"])
    return pd.DataFrame({"progress": 100 * found["samples"] / run.summary["samples"], "auc": found["auc"]})


def drops(curves: pd.DataFrame) -> pd.DataFrame:
    """For each run: the AUC before the switch, the lowest of the three evaluations after it, how far it fell, and the end's."""
    rows = []
    for (task, case, seed), group in curves.groupby(["task", "protocol", "seed"], sort=False):
        group = group.sort_values("progress")
        before = float(group.loc[group["progress"] <= 50.01, "auc"].iloc[-1])
        lowest = float(group.loc[group["progress"] > 50.01, "auc"].iloc[:3].min())
        end = float(group["auc"].iloc[-1])
        rows.append({"task": task, "protocol": case, "seed": seed, "before": before, "lowest": lowest, "end": end})
    table = pd.DataFrame(rows)
    return table.assign(drop=table["before"] - table["lowest"])


def below(after: pd.DataFrame, stays: Mapping[str, str]) -> pd.DataFrame:
    """By how much a mode falls below the one that stays, by where it starts: each seed's most at the first three evaluations."""
    keys = ["start", "protocol", "seed"]
    own = after[after["protocol"] == after["start"].map(stays)]
    both = after.merge(own, on=["start", "seed", "progress"], suffixes=("", "_stay"))
    first = both.assign(drop=both["auc_stay"] - both["auc"]).groupby(keys, sort=False).head(3)
    most = first.groupby(keys, sort=False)["drop"].max()
    return most.groupby(["start", "protocol"], sort=False).agg(["mean", "min", "max"])


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """Drops as claims read them: `criteo, async S` is the switch to Async with set S, `criteo, from sync` what stayed there."""
    stays = table["protocol"].map({"sync": "from sync", "async": "from async"})
    case = stays.fillna(table["protocol"].str.replace(r"[()]", "", regex=True))
    return table.assign(subject=table["task"] + ", " + case)
