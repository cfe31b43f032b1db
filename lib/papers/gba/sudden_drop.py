"""GBA's Figure 2: the mode is switched in the middle of training, with one set of hyper-parameters or the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from lib.papers.gba.tasks import Task
from lib.results.run import Run
from lib.store.optim import Adagrad, Adam
from lib.training.schedule import Schedule

CASES: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "sync": (("sync", "S"), ("sync", "S")),
    "gba (S)": (("sync", "S"), ("gba", "S")),
    "async (S)": (("sync", "S"), ("async", "S")),
    "async (A)": (("sync", "S"), ("async", "A")),
    "async": (("async", "A"), ("async", "A")),
    "sync (S)": (("async", "A"), ("sync", "S")),
    "sync (A)": (("async", "A"), ("sync", "A")),
}
"""Name -> mode and set of hyper-parameters, before the switch and after it."""

DAYS = 4
"""Length of the pass, from scratch, in days of the task."""


def job(task: Task, profile: str, case: str, seed: int) -> dict[str, Any]:
    size = task.sizes[profile]
    half = DAYS * size.day // 2
    before, after = (task.phase(mode, **hyper(task, name, mode)) for mode, name in CASES[case])
    workload = replace(task.workload(profile), samples=2 * half, days=DAYS, world=seed)
    return {
        "workload": workload,
        "protocol": Schedule(phases=(replace(before, until_samples=half), after)),
        "cluster": task.cluster(profile, "gba"),
        "seed": seed,
        "evaluations": 20,
        "trace": False,
    }


def hyper(task: Task, name: str, mode: str) -> dict[str, Any]:
    """A set of hyper-parameters for a phase in a mode: an optimiser with its rates, and the samples of a worker's step."""
    kind, rates, batch = (Adam, task.adam, task.sync[1]) if name == "S" else (Adagrad, task.adagrad, task.lone)
    dense, rows = (kind(lr=lr) for lr in rates)
    return {"batch_size": task.others[1] if mode == "gba" else batch, "dense_optimizer": dense, "row_optimizer": rows}


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


def judged(table: pd.DataFrame, late: pd.DataFrame) -> pd.DataFrame:
    """Criteo's drops as claims read them: `scratch, async S` is the switch to Async with set S in the middle of training from
    scratch, `late, async S` the one after long training (columns start, protocol, seed, drop), and `sync stays` what went on."""
    own = table[table["task"] == "criteo"]
    stays = own["protocol"].isin(["sync", "async"])
    scratch = own["protocol"].where(~stays, own["protocol"] + " stays").str.replace(r"[()]", "", regex=True)
    stays = late["protocol"] == late["start"].map({"from sync": "sync S", "from async": "async A"})
    after = late["protocol"].where(~stays, late["protocol"].str.split().str[0] + " stays")
    return pd.concat(
        [own.assign(subject="scratch, " + scratch), late.assign(subject="late, " + after)], ignore_index=True
    )
