"""GBA's Figure 6: every mode inherits Sync's model, and Sync every mode's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from lib.papers.gba.tasks import MODES, Task
from lib.protocols.gba import GBA
from lib.results.run import Run
from lib.seeds import not_judging
from lib.training.schedule import Schedule
from lib.training.sweep import sweep

DIRECTIONS = ("from Sync", "to Sync")


@dataclass(frozen=True, kw_only=True)
class Study:
    """One task's runs, by mode, with one for each seed."""

    away: Mapping[str, Sequence[Run]]
    """Each mode's days after Sync's base."""
    back: Mapping[str, Sequence[Run]]
    """Sync's days after each mode's."""


def bases(task: Task, profile: str, seeds: Iterable[int]) -> list[Run]:
    """Sync's base, which every mode inherits."""
    until = task.sizes[profile].base
    return sweep([task.job(profile, "sync", seed, until_day=until) | {"keep": True} for seed in seeds])


def away(task: Task, profile: str, seeds: Iterable[int], modes: Sequence[str] = MODES) -> dict[str, list[Run]]:
    """Each mode's days after Sync's base, evaluated on each next day."""
    until = task.sizes[profile].base + task.sizes[profile].days
    starts = bases(task, profile, seeds)
    runs = sweep([days(task, profile, mode, start, until) for mode in modes for start in starts])
    return {mode: runs[place * len(starts) :][: len(starts)] for place, mode in enumerate(modes)}


def switching(task: Task, profile: str, seeds: Iterable[int]) -> Study:
    """Base, then every mode, then Sync again; and what trains no more after the base, or after Sync's days."""
    until = task.sizes[profile].base + 2 * task.sizes[profile].days
    there = away(task, profile, seeds, (*MODES, "frozen"))
    jobs = [days(task, profile, "sync", run, until) for mode in MODES for run in there[mode]]
    jobs += [days(task, profile, "frozen", run, until) for run in there["sync"]]
    back = iter(sweep(jobs))
    return Study(away=there, back={mode: [next(back) for _ in runs] for mode, runs in there.items()})


def days(task: Task, profile: str, mode: str, start: Run, until: int, **phase) -> dict[str, Any]:
    """The job that goes on from another run's model, day by day."""
    job = task.job(profile, mode, start.provenance["seed"], until_day=until, **phase)
    return job | {"start": start, "evaluations": "daily", "keep": True}


def as_printed(task: Task, profile: str, seeds: Iterable[int]) -> dict[str, list[Run]]:
    """GBA's days after the base with its Algorithm 2 as it is printed: a row is divided by the workers that met its id."""
    size = task.sizes[profile]
    rule = GBA(iota=task.iota, rows_divided_by="met")
    jobs = []
    for start in bases(task, profile, seeds):
        job = days(task, profile, "gba", start, size.base + size.days)
        jobs.append(job | {"protocol": Schedule(phases=(replace(job["protocol"].phases[0], protocol=rule),))})
    return {"gba as printed": sweep(jobs)}


def at_rates(task: Task, profile: str, seeds: Iterable[int], factors: Iterable[float]) -> pd.DataFrame:
    """With Adam's rates times each factor, base included: Sync's mean AUC over its days, and GBA's less that. Rates are tried, so
    on no seeds that verdicts are reached on."""
    seeds, rows = not_judging(seeds, "rates are tried"), []
    for factor in factors:
        dense, rate = task.adam
        runs = away(replace(task, adam=(factor * dense, factor * rate)), profile, seeds, ("sync", "gba"))
        for sync, gba in zip(runs["sync"], runs["gba"], strict=True):
            found = {mode: run.history["auc"].mean() for mode, run in (("sync", sync), ("gba", gba))}
            seed = sync.provenance["seed"]
            rows.append(
                {"rates": factor, "seed": seed, "sync": found["sync"], "gba - sync": found["gba"] - found["sync"]}
            )
    return pd.DataFrame(rows)


def daily(study: Study) -> pd.DataFrame:
    """A row for each direction, protocol, seed and day: the AUC on that day's unseen samples."""
    parts = []
    for direction, runs in zip(DIRECTIONS, (study.away, study.back), strict=True):
        for mode, group in runs.items():
            for run in group:
                found = run.history.dropna(subset=["auc"])[["day", "auc"]]
                parts.append(found.assign(direction=direction, protocol=mode, seed=run.provenance["seed"]))
    return pd.concat(parts, ignore_index=True).astype({"day": int})


def quality(table: pd.DataFrame) -> pd.DataFrame:
    """For each task, direction, protocol and seed the AUC on the first day, the last, and on average."""
    keys = ["task", "direction", "protocol", "seed"]
    return table.sort_values("day").groupby(keys, sort=False)["auc"].agg(["first", "last", "mean"]).reset_index()


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """For each task, direction, protocol and seed the AUC less that of GBA: on the first day, the last, and on average."""
    own = quality(table)
    gba = own[own["protocol"] == "gba"].drop(columns="protocol")
    own = own.merge(gba, on=["task", "direction", "seed"], suffixes=("", "_gba"))
    for name in ("first", "last", "mean"):
        own[name] -= own.pop(f"{name}_gba")
    return own


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """What the claims read: each mode's AUC, of each task and of the tasks' average, in each direction."""
    own = quality(table)
    average = own.groupby(["direction", "protocol", "seed"], sort=False)[["first", "last", "mean"]].mean().reset_index()
    both = pd.concat([own, average.assign(task="average")], ignore_index=True)
    return both.assign(subject=both["task"] + " " + both["direction"].str.lower() + " " + both["protocol"])
