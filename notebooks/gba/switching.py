"""GBA's Figure 6: every mode inherits Sync's model, and Sync every mode's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lib.options.document import load
from lib.results.run import Run
from lib.store.optim import Adagrad, Adam
from notebooks import regime, study
from notebooks.gba.tasks import MODES, Task, at_rate

DIRECTIONS = ("from Sync", "to Sync")
PAIR = ("sync", "gba", "frozen")
"""Those between whom parity is judged, and the line that says what can be lost."""

Runs = dict[tuple[str, int], Run]
"""Mode and seed -> run."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One task's runs."""

    away: Runs
    """Each mode's days after Sync's base, at Sync's rate."""
    own: Runs
    """The same days at each mode's own best rate."""
    back: Runs
    """Sync's days after each mode's."""

    @property
    def runs(self) -> list[Run]:
        made = [run for way in (self.away, self.own, self.back) for run in way.values()]
        return list({id(run): run for run in made}.values())  # where a mode's rate is Sync's, they are the same


def base(task: Task, profile: str, seed: int, **phase) -> dict[str, Any]:
    """The job of Sync's base, which every mode inherits."""
    return task.job(profile, "sync", seed, until_day=task.sizes[profile].base, **phase) | {"keep": True}


def bases(task: Task, profile: str, seeds: Iterable[int]) -> dict[int, Run]:
    return study.made({seed: base(task, profile, seed) for seed in seeds})


def days(task: Task, profile: str, mode: str, start: Run, until: int | None = None, **phase) -> dict[str, Any]:
    """The job that goes on from another run's model, day by day; the days of the study, unless it is said until when."""
    until = until or task.sizes[profile].base + task.sizes[profile].days
    job = task.job(profile, mode, start.provenance["seed"], until_day=until, **phase)
    return job | {"start": start, "evaluations": "daily", "keep": True}


def switching(task: Task, profile: str, seeds: Iterable[int], others: int = 5) -> Study:
    """Base, then every mode's days, then Sync's; and what trains no more after the base, or after Sync's days.

    Modes take over from Sync at its rate. What Sync takes over was trained at the mode's own rate, which Sync keeps; Async has
    Adagrad with its own, and Sync after it Adam with Sync's. No parity is claimed of modes beside Sync and GBA: they take the
    first `others` of the seeds."""
    starts, end = bases(task, profile, seeds), task.sizes[profile].base + 2 * task.sizes[profile].days
    asked = {mode: [*starts][: None if mode in PAIR else others] for mode in (*MODES, "frozen", "one worker")}
    away = study.made(
        {(mode, seed): _days(task, profile, mode, starts[seed]) for mode in asked for seed in asked[mode]}
    )
    own = {(mode, seed): run for (mode, seed), run in away.items() if mode in MODES}
    other = {mode: _own(task, mode) for mode in MODES if _own(task, mode)}
    own |= study.made(
        {(m, seed): _days(task, profile, m, starts[seed], **other[m]) for m in other for seed in asked[m]}
    )
    jobs = {(m, seed): days(task, profile, "sync", run, end, **_own(task, m)) for (m, seed), run in own.items()}
    jobs |= {("frozen", seed): days(task, profile, "frozen", away["sync", seed], end) for seed in starts}
    return Study(away=away, own=own, back=study.made(jobs))


def _days(task: Task, profile: str, mode: str, start: Run, **own) -> dict[str, Any]:
    """Sync's rate may be too large for a mode to go on with: then batches whose loss is not finite are left out."""
    return days(task, profile, mode, start, **own) | ({} if mode in PAIR else {"on_nan": "skip"})


def _own(task: Task, mode: str) -> dict[str, Any]:
    """The optimisers of a mode whose best rate is not Sync's."""
    rate = task.adam.get(mode, task.adam["sync"])
    return {} if rate == task.adam["sync"] else at_rate(Adam(lr=rate))


def at_rates(task: Task, profile: str, seeds: Iterable[int], factors: Iterable[float]) -> pd.DataFrame:
    """At Sync's best rate times each factor, base included: the mean AUC over the days of Sync, of GBA, and of what trains no
    more, as claims read them."""
    parts = []
    for factor in factors:
        own = replace(task, adam={"sync": factor * task.adam["sync"]})
        starts = bases(own, profile, seeds)
        places = study.grid(task=[task.name], rates=[factor], protocol=PAIR, seed=starts)
        jobs = {(at["protocol"], at["seed"]): days(own, profile, at["protocol"], starts[at["seed"]]) for at in places}
        found = study.told(places, study.made(jobs).values(), mean=mean_auc)
        parts.append(found.assign(subject=f"{task.name}, rate x {factor:g} " + found["protocol"]))
    return pd.concat(parts, ignore_index=True)


def asynchrony(task: Task, profile: str, seeds: Iterable[int], rates: Iterable[float]) -> pd.DataFrame:
    """Async's days after Sync's base at each rate of Adagrad, by all workers and by one alone, which is never stale."""
    starts = bases(task, profile, seeds)

    def job(rate: float, workers: int, seed: int) -> dict[str, Any]:
        return days(task, profile, "async", starts[seed], workers=workers, **at_rate(Adagrad(lr=rate)))

    return study.swept(job, study.grid(rate=rates, workers=(task.workers("async"), 1), seed=starts), mean=mean_auc)[0]


def mean_auc(run: Run) -> float:
    """Over the days, each on the next one's samples."""
    return float(run.history["auc"].dropna().mean())


def daily(study_of: Study) -> pd.DataFrame:
    """A row for each direction, protocol, seed and day: the AUC on that day's unseen samples."""
    ways = zip(DIRECTIONS, (study_of.away, study_of.back), strict=True)
    parts = [_placed(runs, direction=way) for way, runs in ways]
    return pd.concat([study.courses(*part, "day", "auc") for part in parts], ignore_index=True).astype({"day": int})


def _placed(runs: Runs, **more: str) -> tuple[list[study.Place], Iterable[Run]]:
    return [{**more, "protocol": mode, "seed": seed} for mode, seed in runs], runs.values()


def at_own_rates(study_of: Study) -> pd.DataFrame:
    """What each mode's mean AUC over the days after Sync's base is above Sync's with the same seed: at its own best rate, and at
    Sync's. A row for each mode and seed."""
    data = study.told(*_placed(study_of.own), own=mean_auc)
    away = {key: mean_auc(study_of.away[key]) for key in study_of.own}
    stays = data["seed"].map({seed: auc for (mode, seed), auc in away.items() if mode == "sync"})
    data["at Sync's rate"] = [*away.values()] - stays
    return data.assign(**{"at its own": data.pop("own") - stays})


def back_at_one_rate(task: Task, profile: str, study_of: Study) -> pd.DataFrame:
    """What Sync's days after GBA's are above those of staying in Sync with the same seed: after GBA at its own best rate, which
    Sync keeps; and after GBA at Sync's best rate, as in the paper, whose modes have one."""
    end, seeds = task.sizes[profile].base + 2 * task.sizes[profile].days, [s for m, s in study_of.away if m == "gba"]
    ways = {"at GBA's rate": [study_of.back["gba", seed] for seed in seeds]}
    again = study.made({seed: days(task, profile, "sync", study_of.away["gba", seed], end) for seed in seeds})
    ways["at Sync's rate"] = again.values()
    stays = pd.Series([mean_auc(study_of.back["sync", seed]) for seed in seeds])
    less = {way: [*map(mean_auc, runs)] - stays for way, runs in ways.items()}
    return pd.DataFrame(less).assign(task=task.name, seed=seeds)


def regimes(tasks: Iterable[Task], profile: str, studies: Mapping[str, Study]) -> tuple[pd.DataFrame, str]:
    """The regime of GBA's days after Sync's base, beside the paper's, and what is said below; ids are counted of one seed."""
    found = {}
    for task in tasks:
        away, stream = studies[task.name].away, task.workload(profile)
        starts = bases(task, profile, [seed for mode, seed in away if mode == "gba"])
        for seed, start in starts.items():
            brings = mean_auc(away["sync", seed]) - mean_auc(away["frozen", seed])
            counted = None if task.name in found else stream
            told = regime.cells(away["gba", seed], [start], counted, brings)
            found.setdefault(task.name, []).append(told)
    return regime.table(found, regime.printed("gba")), regime.CAPTION


def quality(table: pd.DataFrame) -> pd.DataFrame:
    """For each task, direction, protocol and seed the AUC on the first day, the last, and on average."""
    keys = ["task", "direction", "protocol", "seed"]
    return table.sort_values("day").groupby(keys, sort=False)["auc"].agg(["first", "last", "mean"]).reset_index()


PAPER = {
    (*key.split(" ", 1), mode): days
    for key, modes in load(Path(__file__).with_name("figure_6.yaml")).data.items()
    for mode, days in modes.items()
}
"""Task, direction, mode -> the paper's AUC on the first day, on the last, and on average."""


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """Tables 6.1 to 6.8: each mode's mean AUC over the days less Sync's, in thousandths, as the paper has it and here."""
    own = quality(table)
    own["ours"] = 1000 * (own["mean"] - study.beside(own, "mean", ["task", "direction", "seed"], protocol="sync"))
    order = [*dict.fromkeys(table["task"]), *DIRECTIONS, *MODES, "one worker", "frozen"]
    own = own.sort_values(["task", "direction", "protocol"], key=lambda column: column.map(order.index))
    found = own.groupby(["task", "direction", "protocol"], sort=False)["ours"].agg(["mean", "min", "max"]).round(1)
    keys = [(task, direction.lower(), mode) for task, direction, mode in found.index]
    less = [round(1000 * (PAPER[at][2] - PAPER[*at[:2], "sync"][2]), 1) if at in PAPER else None for at in keys]
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
