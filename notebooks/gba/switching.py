"""GBA's Figure 6: every mode inherits Sync's model, and Sync every mode's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lib.options.document import load
from lib.results.run import Run
from lib.store.optim import Adagrad, Adam
from lib.training.sweep import sweep
from notebooks.gba.tasks import MODES, Task, at_rate

DIRECTIONS = ("from Sync", "to Sync")
PAIR = ("sync", "gba", "frozen")
"""Those between whom parity is judged, and the line that says what can be lost."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One task's runs, by mode, with one for each seed."""

    away: Mapping[str, Sequence[Run]]
    """Each mode's days after Sync's base, at Sync's rate."""
    own: Mapping[str, Sequence[Run]]
    """The same days at each mode's own best rate."""
    back: Mapping[str, Sequence[Run]]
    """Sync's days after each mode's."""

    @property
    def runs(self) -> list[Run]:
        made = [run for way in (self.away, self.own, self.back) for group in way.values() for run in group]
        return list({id(run): run for run in made}.values())  # where a mode's rate is Sync's, they are the same


def base(task: Task, profile: str, seed: int) -> dict[str, Any]:
    """The job of Sync's base, which every mode inherits."""
    return task.job(profile, "sync", seed, until_day=task.sizes[profile].base) | {"keep": True}


def bases(task: Task, profile: str, seeds: Iterable[int]) -> list[Run]:
    return sweep([base(task, profile, seed) for seed in seeds])


def days(task: Task, profile: str, mode: str, start: Run, until: int, **phase) -> dict[str, Any]:
    """The job that goes on from another run's model, day by day."""
    job = task.job(profile, mode, start.provenance["seed"], until_day=until, **phase)
    return job | {"start": start, "evaluations": "daily", "keep": True}


def switching(task: Task, profile: str, seeds: Sequence[int], others: int = 5) -> Study:
    """Base, then every mode's days, then Sync's; and what trains no more after the base, or after Sync's days.

    Modes take over from Sync at its rate. What Sync takes over was trained at the mode's own rate, which Sync keeps; Async has
    Adagrad with its own, and Sync after it Adam with Sync's. No parity is claimed of modes beside Sync and GBA: they take the
    first `others` of the seeds."""
    size = task.sizes[profile]
    middle, end = size.base + size.days, size.base + 2 * size.days
    starts = bases(task, profile, seeds)
    of = {mode: starts if mode in PAIR else starts[:others] for mode in (*MODES, "frozen", "one worker")}
    there = _by_mode(task, profile, {mode: (at, {}) for mode, at in of.items()}, middle)
    own = {mode: (of[mode], _own(task, mode)) for mode in MODES if _own(task, mode)}
    left = {mode: there[mode] for mode in MODES} | _by_mode(task, profile, own, middle)
    jobs = {mode: [days(task, profile, "sync", run, end, **_own(task, mode)) for run in left[mode]] for mode in MODES}
    jobs["frozen"] = [days(task, profile, "frozen", run, end) for run in there["sync"]]
    runs = iter(sweep([job for group in jobs.values() for job in group]))
    return Study(away=there, own=left, back={mode: [next(runs) for _ in group] for mode, group in jobs.items()})


def _by_mode(
    task: Task, profile: str, phases: Mapping[str, tuple[Sequence[Run], dict[str, Any]]], until: int
) -> dict[str, list[Run]]:
    """The runs of each mode from its starts, with its own options of a phase. Sync's rate may be too large for a mode to go on
    with: then batches whose loss is not finite are left out."""
    jobs = [
        days(task, profile, mode, at, until, **own) | ({} if mode in PAIR else {"on_nan": "skip"})
        for mode, (starts, own) in phases.items()
        for at in starts
    ]
    runs = iter(sweep(jobs))
    return {mode: [next(runs) for _ in starts] for mode, (starts, _) in phases.items()}


def _own(task: Task, mode: str) -> dict[str, Any]:
    """The optimisers of a mode whose best rate is not Sync's."""
    rate = task.adam.get(mode, task.adam["sync"])
    return {} if rate == task.adam["sync"] else at_rate(Adam(lr=rate))


def at_rates(task: Task, profile: str, seeds: Iterable[int], factors: Iterable[float]) -> pd.DataFrame:
    """At Sync's best rate times each factor, base included: the mean AUC over the days of Sync, of GBA, and of what trains no
    more, as claims read them."""
    seeds, rows = list(seeds), []
    for factor in factors:
        own = replace(task, adam={"sync": factor * task.adam["sync"]})
        until = own.sizes[profile].base + own.sizes[profile].days
        starts = bases(own, profile, seeds)
        for mode, runs in _by_mode(own, profile, {mode: (starts, {}) for mode in PAIR}, until).items():
            about = {"task": task.name, "rates": factor, "protocol": mode}
            about |= {"subject": f"{task.name}, rate x {factor:g} {mode}"}
            rows += [about | {"seed": seed, "mean": mean_auc(run)} for seed, run in zip(seeds, runs, strict=True)]
    return pd.DataFrame(rows)


def asynchrony(task: Task, profile: str, seeds: Iterable[int], rates: Iterable[float]) -> pd.DataFrame:
    """Async's days after Sync's base at each rate of Adagrad, by all workers and by one alone, which is never stale."""
    starts = bases(task, profile, seeds)
    until = task.sizes[profile].base + task.sizes[profile].days
    places = [(rate, workers, at) for rate in rates for workers in (task.workers("async"), 1) for at in starts]
    jobs = []
    for rate, workers, start in places:
        phase = {"workers": workers, **at_rate(Adagrad(lr=rate))}
        jobs.append(days(task, profile, "async", start, until, **phase))
    rows = [
        {"rate": rate, "workers": workers, "seed": start.provenance["seed"], "mean": mean_auc(run)}
        for (rate, workers, start), run in zip(places, sweep(jobs), strict=True)
    ]
    return pd.DataFrame(rows)


def mean_auc(run: Run) -> float:
    """Over the days, each on the next one's samples."""
    return float(run.history["auc"].dropna().mean())


def daily(study: Study) -> pd.DataFrame:
    """A row for each direction, protocol, seed and day: the AUC on that day's unseen samples."""
    parts = []
    for direction, runs in zip(DIRECTIONS, (study.away, study.back), strict=True):
        for mode, group in runs.items():
            for run in group:
                found = run.history.dropna(subset=["auc"])[["day", "auc"]]
                parts.append(found.assign(direction=direction, protocol=mode, seed=run.provenance["seed"]))
    return pd.concat(parts, ignore_index=True).astype({"day": int})


def at_own_rates(study: Study) -> pd.DataFrame:
    """What each mode's mean AUC over the days after Sync's base is above Sync's with the same seed: at its own best rate, and at
    Sync's. A row for each mode and seed."""
    stays = {run.provenance["seed"]: mean_auc(run) for run in study.away["sync"]}
    rows = []
    for mode, group in study.own.items():
        for own, away in zip(group, study.away[mode], strict=True):
            seed = own.provenance["seed"]
            less = {"at Sync's rate": mean_auc(away) - stays[seed], "at its own": mean_auc(own) - stays[seed]}
            rows.append({"protocol": mode, "seed": seed} | less)
    return pd.DataFrame(rows)


def back_at_one_rate(task: Task, profile: str, study: Study) -> pd.DataFrame:
    """What Sync's days after GBA's are above those of staying in Sync with the same seed: after GBA at its own best rate, which
    Sync keeps; and after GBA at Sync's best rate, as in the paper, whose modes have one."""
    end = task.sizes[profile].base + 2 * task.sizes[profile].days
    ways = {"at GBA's rate": study.back["gba"]}
    ways["at Sync's rate"] = sweep([days(task, profile, "sync", run, end) for run in study.away["gba"]])
    stays = [mean_auc(run) for run in study.back["sync"]]
    less = {way: [mean_auc(run) - stay for run, stay in zip(runs, stays, strict=True)] for way, runs in ways.items()}
    return pd.DataFrame(less).assign(task=task.name, seed=[run.provenance["seed"] for run in study.back["sync"]])


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


PAPER = {
    (*key.split(" ", 1), mode): days
    for key, modes in load(Path(__file__).with_name("figure_6.yaml")).data.items()
    for mode, days in modes.items()
}
"""Task, direction, mode -> the paper's AUC on the first day, on the last, and on average."""


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """Tables 6.1 to 6.8: each mode's mean AUC over the days less Sync's, in thousandths, as the paper has it and here."""
    own = quality(table)
    stays = own[own["protocol"] == "sync"].drop(columns=["protocol", "first", "last"])
    own = own.merge(stays, on=["task", "direction", "seed"], suffixes=("", "_sync"))
    own["ours"] = 1000 * (own["mean"] - own["mean_sync"])
    order = [*dict.fromkeys(table["task"]), *DIRECTIONS, *MODES, "one worker", "frozen"]
    own = own.sort_values(["task", "direction", "protocol"], key=lambda column: column.map(order.index))
    found = own.groupby(["task", "direction", "protocol"], sort=False)["ours"].agg(["mean", "min", "max"]).round(1)
    places = [(task, direction.lower()) for task, direction, _ in found.index]
    keys = [(*place, mode) for place, (_, _, mode) in zip(places, found.index, strict=True)]
    less = [
        round(1000 * (PAPER[key][2] - PAPER[*place, "sync"][2]), 1) if key in PAPER else None
        for place, key in zip(places, keys, strict=True)
    ]
    found.insert(0, "paper", less)
    return found


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """What the paper's modes are above Sync on the first and on the last day, with the columns of a table of ours."""
    rows = []
    for (task, direction, mode), group in table.groupby(["task", "direction", "protocol"], sort=False):
        paper, sync = (PAPER[task, direction.lower(), each] for each in (mode, "sync"))
        about = {"task": task, "direction": direction, "protocol": mode}
        ends = group["day"].min(), group["day"].max()
        rows += [about | {"day": day, "AUC less Sync's": paper[at] - sync[at]} for at, day in enumerate(ends)]
    return pd.DataFrame(rows)


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """What the claims read: each mode's AUC, of each task and of the tasks' average, in each direction."""
    own = quality(table)
    means = own.groupby(["direction", "protocol", "seed"], sort=False)[["first", "last", "mean"]].mean().reset_index()
    both = pd.concat([own, means.assign(task="average")], ignore_index=True)
    return both.assign(subject=both["task"] + " " + both["direction"].str.lower() + " " + both["protocol"])
