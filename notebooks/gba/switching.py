"""GBA's Figure 6: every mode inherits Sync's model, and Sync every mode's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib import Run
from lib.options.yaml_source import load
from notebooks import regime, study
from notebooks.gba.tasks import MODES, TASKS, Task, at_rate
from notebooks.planted_control import CONTROL
from reports import claims, plots

DIRECTIONS = ("from Sync", "to Sync")
PAIR = ("sync", "gba", "frozen", CONTROL)
"""Those between which equivalence is judged, the line that says what can be lost, and the planted control."""
EDGE = 13.0
"""The multiple of the paper's rates at which BSP loses here, with joined rows, what it loses in Tab. 6.1 on Criteo: 0.0084 at 12
times and 0.0105 at 15 on pilot seeds. GBA's AUC at 9 times had been seen by then, on two others."""

Runs = dict[tuple[str, int], Run]
"""Mode and seed -> run."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One task's runs, all at the paper's rates."""

    away: Runs
    """Each mode's days after Sync's base."""
    back: Runs
    """Sync's days after each mode's."""

    @property
    def runs(self) -> list[Run]:
        return [*self.away.values(), *self.back.values()]


def base(task: Task, profile: str, seed: int, **phase) -> dict:
    """The job of Sync's base, which every mode inherits."""
    return task.job(profile, "sync", seed, **{"until_day": task.sizes[profile].base} | phase) | {"keep": True}


def bases(task: Task, profile: str, seeds: Iterable[int], **phase) -> dict[int, Run]:
    return study.run({seed: base(task, profile, seed, **phase) for seed in seeds})


def days(task: Task, profile: str, mode: str, start: Run, until: int | None = None, **more) -> dict:
    """The job that continues from another run's model day by day, over the days of the study unless `until` says otherwise.
    Where a rate is too large for a mode, batches whose loss is not finite are left out."""
    size = task.sizes[profile]
    until = min(until or size.base + size.days, size.base + 2 * size.days)
    job = task.job(profile, mode, start.provenance["seed"], until_day=until, **more)
    return job | {"start": start, "evaluations": "daily", "keep": True} | ({} if mode in PAIR else {"on_nan": "skip"})


def switching(task: Task, profile: str, seeds: Iterable[int], others: int = 5) -> Study:
    """Base, then every mode's days, then Sync's; and what trains no more after the base, or after Sync's days.

    All have one rate, the paper's, but Async, whose Adagrad has its own; Sync after it begins with a fresh Adam. No parity is
    claimed of modes other than Sync and GBA: they take the first `others` of the seeds."""
    size, starts = task.sizes[profile], bases(task, profile, seeds)
    seeds_of = {mode: [*starts][: None if mode in PAIR else others] for mode in (*size.modes, "frozen", CONTROL)}
    away = study.run(
        {(mode, seed): days(task, profile, mode, starts[seed]) for mode in seeds_of for seed in seeds_of[mode]}
    )
    jobs = {}
    for (mode, seed), run in away.items():
        goes_on, start = (mode, away["sync", seed]) if mode in ("frozen", CONTROL) else ("sync", run)
        jobs[mode, seed] = days(task, profile, goes_on, start, size.base + 2 * size.days)
    return Study(away=away, back=study.run(jobs))


def at_factor(task: Task, factor: float) -> Task:
    """At the paper's rates times a factor."""
    own = {name: factor * getattr(task.printed, name) for name in ("adam", "adagrad")}
    return replace(task, printed=replace(task.printed, **own))


def with_joined_rows(task: Task) -> Task:
    """With a row's sum divided by all workers, by Sync's too, in place of those that met its id as Algorithm 2 prints it."""
    return replace(task, name=f"{task.name}, joined rows", rows_divided_by="all")


def by_rate(task: Task, profile: str, seeds: Iterable[int], factors: Iterable[float], length: int) -> pd.DataFrame:
    """At the paper's rates times each factor, base included, which all have: the AUC on the last of so many days, and on average,
    of Sync, of GBA and BSP, and of what trains no more, as claims read them."""
    parts = []
    for factor in factors:
        own = at_factor(task, factor)
        starts, until = bases(own, profile, seeds), task.sizes[profile].base + length
        cases = study.grid(task=[task.name], rates=[factor], protocol=("sync", "gba", "frozen", "bsp"), seed=starts)
        jobs = {tuple(at.values()): days(own, profile, at["protocol"], starts[at["seed"]], until) for at in cases}
        found = study.table(cases, study.run(jobs).values(), mean=mean_auc, last=last_auc)
        parts.append(found.assign(subject=f"{task.name}, rate x {factor:g} " + found["protocol"]))
    return pd.concat(parts, ignore_index=True)


def against_bsp(rates: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """What GBA loses against what BSP does at each factor, the mean of the seeds and its interval, and the paper's tasks; and the
    numbers."""
    less = rates["mean"] - study.baseline(rates, "mean", ["task", "rates", "seed"], protocol="sync")
    table = rates.assign(loses=1e3 * less).query("protocol in ['bsp', 'gba']")
    drawn = table.pivot_table(index=["task", "rates", "seed"], columns="protocol", values="loses").reset_index()
    with plots.style():
        fig = Figure(figsize=(plots.WIDTH, 3.4), layout="constrained")
        ax = fig.subplots()
        for mark, (task, of_task) in zip("os", drawn.groupby("task"), strict=False):
            ends = [(each["bsp"].mean(), *claims.interval(each["gba"])) for _, each in of_task.groupby("rates")]
            bsp, gba, low, high = map(np.array, zip(*ends, strict=True))
            ax.errorbar(
                bsp, gba, [gba - low, high - gba], color=plots.colour("gba")[0], marker=mark, label=task, linewidth=1
            )
            for at, factor in enumerate(sorted(of_task["rates"].unique())):
                ax.annotate(f"x {factor:g}", (bsp[at], gba[at]), (5, 5), textcoords="offset points", fontsize=8)
        for task in TASKS:
            bsp, gba = (
                1e3 * (PAPER[task, "from sync", m][2] - PAPER[task, "from sync", "sync"][2]) for m in ("bsp", "gba")
            )
            ax.plot(bsp, gba, "o", mfc="none", mec=plots.BLACK)
            ax.annotate(f"paper's {task}", (bsp, gba), (5, -11), textcoords="offset points", fontsize=8)
        ax.axline((0, 0), slope=1, color=plots.BLACK, linewidth=0.8, linestyle=":")
        ax.set(xlabel="BSP's AUC less Sync's, 10^-3", ylabel="GBA's AUC less Sync's, 10^-3")
        ax.legend()
    return fig, drawn


def asynchrony(task: Task, profile: str, seeds: Iterable[int], factors: Iterable[float]) -> pd.DataFrame:
    """Two days after Sync's base under Async at the paper's rate of Adagrad times each factor, by all workers and by one alone,
    which is never stale."""
    starts, until = bases(task, profile, seeds), task.sizes[profile].base + min(2, task.sizes[profile].days)

    def job(rate: float, mode: str, seed: int) -> dict:
        return days(task, profile, mode, starts[seed], until, **at_rate(at_factor(task, rate).adagrad))

    return study.run_grid(job, study.grid(rate=factors, mode=("async", "one worker"), seed=starts), mean=mean_auc)[0]


def by_own_rates(
    task: Task, profile: str, seeds: Iterable[int], rates: Mapping[str, Mapping]
) -> tuple[pd.DataFrame, list[Run]]:
    """Each mode's mean AUC after Sync's base minus Sync's with the same seed, at the paper's rates and at each mode's own
    best. A row for each mode and seed."""
    starts = bases(task, profile, seeds)

    def job(at: str, mode: str, seed: int) -> dict:
        return days(task, profile, mode, starts[seed], **(rates[mode] if at == OWN else {}))

    data, runs = study.run_grid(job, study.grid(at=(PAPERS, OWN), mode=rates, seed=starts), mean=mean_auc)
    data["less"] = data["mean"] - study.baseline(data, "mean", ["at", "seed"], mode="sync")
    data["above the paper's"] = data["mean"] - study.baseline(data, "mean", ["mode", "seed"], at=PAPERS)
    return data, runs


PAPERS, OWN = "at the paper's rate", "at its own best"


def mean_auc(run: Run) -> float:
    """Over the days, each on the next one's samples."""
    return float(study.course(run, "auc").mean())


def first_auc(run: Run) -> float:
    return float(study.course(run, "auc").iloc[0])


def last_auc(run: Run) -> float:
    return float(study.course(run, "auc").iloc[-1])


def daily(study_of: Study) -> pd.DataFrame:
    """A row for each direction, protocol, seed and day: the AUC on that day's unseen samples."""
    ways = zip(DIRECTIONS, (study_of.away, study_of.back), strict=True)
    parts = [_placed(runs, direction=way) for way, runs in ways]
    return pd.concat([study.histories(*part, "day", "auc") for part in parts], ignore_index=True).astype({"day": int})


def _placed(runs: Runs, **more: str) -> tuple[list[study.Case], Iterable[Run]]:
    return [{**more, "protocol": mode, "seed": seed} for mode, seed in runs], runs.values()


def regimes(tasks: Iterable[Task], profile: str, studies: Mapping[str, Study]) -> dict[str, list[dict]]:
    """The regime of GBA's days after Sync's base, task -> a seed's cells each; ids are counted of one seed."""
    found: dict[str, list[dict]] = {}
    for task in tasks:
        away, stream = studies[task.name].away, task.workload(profile)
        starts = bases(task, profile, [seed for mode, seed in away if mode == "gba"])
        for seed, start in starts.items():
            brings = mean_auc(away["sync", seed]) - mean_auc(away["frozen", seed])
            counted = None if task.name in found else stream
            row = regime.cells(away["gba", seed], [start], counted, brings)
            found.setdefault(task.name, []).append(row)
    return found


def baselines(table: pd.DataFrame) -> pd.DataFrame:
    """BSP's and Hop-BS's days after Sync's base minus Sync's, in thousandths of AUC, with the paper's and their ratio:
    whether this is the regime of the paper's baselines."""
    found = beside_paper(
        table[(table["direction"] == DIRECTIONS[0]) & table["protocol"].isin(("sync", "bsp", "hop-bs"))]
    )
    found = found.drop(index="sync", level="protocol").droplevel("direction")
    return found.assign(**{"paper / here": (found["mean, paper"] / found["mean"]).round(1)})


FIGURES = ("first", "last", "mean")


def quality(table: pd.DataFrame) -> pd.DataFrame:
    """For each task, direction, protocol and seed the AUC on the first day, the last, and on average."""
    keys = ["task", "direction", "protocol", "seed"]
    return table.sort_values("day").groupby(keys, sort=False)["auc"].agg([*FIGURES]).reset_index()


PAPER = {
    (*key.split(" ", 1), mode): days
    for key, modes in load(Path(__file__).with_name("figure_6.yaml")).items()
    for mode, days in modes.items()
}
"""Task, direction, mode -> the paper's AUC on the first day, on the last, and on average."""


def beside_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Tables 6.1 to 6.8: each mode's AUC minus Sync's on the first day, the last and on average, in thousandths, ours next to
    the paper's."""
    own = quality(table)
    order = [*dict.fromkeys(table["task"]), *DIRECTIONS, *MODES, "frozen", CONTROL]
    own = own.sort_values(["task", "direction", "protocol"], key=lambda column: column.map(order.index))
    for name in FIGURES:
        own[name] = 1000 * (own[name] - study.baseline(own, name, ["task", "direction", "seed"], protocol="sync"))
    found = own.groupby(["task", "direction", "protocol"], sort=False)[[*FIGURES]].mean().round(1)
    for case, name in enumerate(FIGURES):
        keys = [(task, direction.lower(), mode) for task, direction, mode in found.index]
        less = [1000 * (PAPER[at][case] - PAPER[*at[:2], "sync"][case]) if at in PAPER else None for at in keys]
        found.insert(2 * case + 1, f"{name}, paper", pd.Series(less, found.index, dtype=float).round(1))
    return found


def paper_points(table: pd.DataFrame) -> pd.DataFrame:
    """The paper's difference from Sync on the first and on the last day, as a table with our columns."""
    rows = []
    for (task, direction, mode), group in table.groupby(["task", "direction", "protocol"], sort=False):
        paper, sync = (PAPER[task, direction.lower(), each] for each in (mode, "sync"))
        about = {"task": task, "direction": direction, "protocol": mode}
        ends = group["day"].min(), group["day"].max()
        rows += [about | {"day": day, "AUC minus Sync's": paper[at] - sync[at]} for at, day in enumerate(ends)]
    return pd.DataFrame(rows)


def claim_table(table: pd.DataFrame, regimes: Mapping[str, Iterable[Mapping[str, float]]]) -> pd.DataFrame:
    """What the claims read: each mode's AUC in each direction, and of the regime, how many updates were before."""
    own = quality(table)
    before = {task: pd.DataFrame(list(cells))["updates before"].mean() for task, cells in regimes.items()}
    subjects = own["task"] + " " + own["direction"].str.lower() + " " + own["protocol"]
    return own.assign(subject=subjects, **{"updates before": own["task"].map(before)})
