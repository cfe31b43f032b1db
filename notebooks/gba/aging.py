"""What age costs: over how much was trained before, of rows and of dense parameters apart, and under variants of GBA's rule."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes

from lib import Adam, Run
from notebooks import regime, study
from notebooks.gba import switching
from notebooks.gba.tasks import Task
from notebooks.gba.theory import PlainDecay
from reports import claims, plots

STILL = Adam(lr=1e-9)
PARTS: Mapping[str, Mapping] = {
    "both": {},
    "rows": {"dense_optimizer": STILL},
    "dense": {"row_optimizer": STILL},
}
"""What is trained, the other part all but held still: then only its gradients' age can cost anything."""
UNEQUAL = 1.5
"""Spread of the slowdowns under which some tokens are older than iota."""


def by_length(
    task: Task, profile: str, seeds: Iterable[int], lengths: Sequence[int], helds: Sequence[float], days: int
) -> tuple[pd.DataFrame, list[Run]]:
    """GBA's and BSP's AUC minus Sync's over so many days, after bases of these lengths and with parameters held for these
    shares of a batch's time; `first` is the first day's. Sync's gradients have no age, so one run of it serves all shares."""
    parts, made = [], []
    for length in lengths:
        starts = switching.bases(task, profile, seeds, until_day=length)

        def job(protocol: str, held: float, seed: int, starts=starts, until=length + days) -> dict:
            return switching.days(task, profile, protocol, starts[seed], until, held=held)

        cases = study.grid(protocol=["sync"], held=helds[:1], seed=starts)
        cases += study.grid(protocol=("gba", "bsp"), held=helds, seed=starts)
        figures = {"mean": switching.mean_auc, "first": switching.first_auc, "age": "staleness_mean"}
        data, runs = study.run_grid(job, cases, **figures)
        for figure in ("mean", "first"):
            data[figure] -= study.baseline(data, figure, ["seed"], protocol="sync")
        updates = length * task.sizes[profile].day // (task.sync[0] * task.sync[1])
        parts.append(data[data["protocol"] != "sync"].assign(updates=updates))
        made += runs
    return pd.concat(parts, ignore_index=True), made


def by_part(task: Task, profile: str, seeds: Iterable[int], days: int, held: float) -> tuple[pd.DataFrame, list[Run]]:
    """Where rows alone are trained after Sync's base, dense parameters alone, and both: which share of what Sync's days bring
    over training no more BSP loses, whose gradients are older than GBA's. A row for each part and seed."""
    starts, until = switching.bases(task, profile, seeds), task.sizes[profile].base + days

    def job(part: str, protocol: str, seed: int) -> dict:
        return switching.days(task, profile, protocol, starts[seed], until, held=held, **PARTS.get(part, {}))

    cases = study.grid(part=PARTS, protocol=("sync", "bsp"), seed=starts)
    cases += study.grid(part=["none"], protocol=["frozen"], seed=starts)
    data, runs = study.run_grid(job, cases, mean=switching.mean_auc, age="staleness_mean")
    data["brings"] = study.baseline(data, "mean", ["part", "seed"], protocol="sync")
    data["lost"] = data["brings"] - data["mean"]
    data["brings"] -= study.baseline(data, "mean", ["seed"], protocol="frozen")
    data = data[data["protocol"] == "bsp"].drop(columns=["protocol", "mean"])
    return data.assign(share=data["lost"] / data["brings"], subject=data["part"] + " alone"), runs


def variants(task: Task) -> dict[str, tuple[str, dict]]:
    """Of GBA's rule, from the same base: name -> mode, and what is changed."""
    rule, joined = task.rule("gba"), replace(task, rows_divided_by="all")
    workers, unequal = task.others[0], {"slowdown": UNEQUAL}
    return {
        "sync": ("sync", {}),
        "sync, joined rows": ("sync", {"protocol": joined.rule("sync")}),
        "gba": ("gba", {}),
        "gba, joined rows": ("gba", {"protocol": joined.rule("gba")}),
        "gba, N = 2 M": ("gba", {"protocol": replace(rule, size=workers), "workers": 2 * workers}),
        "gba, N = 4 M": ("gba", {"protocol": replace(rule, size=workers), "workers": 4 * workers}),
        "gba, very unequal": ("gba", unequal),
        "gba, iota 0, very unequal": ("gba", {"protocol": replace(rule, iota=0), **unequal}),
        "gba, nothing left out, very unequal": ("gba", {"protocol": replace(rule, iota=math.inf), **unequal}),
        "gba, rows by the global step, very unequal": (
            "gba",
            {"protocol": PlainDecay(iota=rule.iota, rows_divided_by=rule.rows_divided_by), **unequal},
        ),
        "frozen": ("frozen", {}),
    }


def run_variants(task: Task, profile: str, seeds: Iterable[int], days: int) -> tuple[pd.DataFrame, list[Run]]:
    """So many days of each variant after Sync's base: the mean AUC, the first day's, ages, and gradients left out."""
    starts, until, kinds = switching.bases(task, profile, seeds), task.sizes[profile].base + days, variants(task)

    def job(subject: str, seed: int) -> dict:
        mode, changed = kinds[subject]
        return switching.days(task, profile, mode, starts[seed], until, **changed)

    figures = {"mean": switching.mean_auc, "first": switching.first_auc, "age": "staleness_mean"}
    return study.run_grid(job, study.grid(subject=kinds, seed=starts), left_out="decayed", **figures)


def draw(ax: Axes, table: pd.DataFrame, mode: str) -> None:
    """A panel of the map: the mean of the seeds and its 95 % interval over the updates before, and the paper's tasks."""
    for held, tone in zip(sorted(table["held"].unique()), plots.shades(mode, table["held"].nunique()), strict=True):
        mine = table[table["held"] == held].groupby("updates")
        ends = mine["mean"].apply(lambda numbers: claims.interval(1e3 * numbers))
        found = pd.DataFrame(ends.tolist(), ends.index, ["mean", "low", "high"])
        bars = [found["mean"] - found["low"], found["high"] - found["mean"]]
        label = f"{table.loc[table['held'] == held, 'age'].mean():.2g} updates old"
        ax.errorbar(found.index, found["mean"], bars, color=tone, marker="o", label=label)
    for task, figures in regime.paper_regime("gba").items():
        lost = switching.PAPER[task, "from sync", mode][2] - switching.PAPER[task, "from sync", "sync"][2]
        ax.plot(figures["updates before"], 1e3 * lost, "o", mfc="none", mec=plots.BLACK)
        ax.annotate(task, (figures["updates before"], 1e3 * lost), (4, 4), textcoords="offset points", fontsize=8)
    ax.axhline(0, color=plots.BLACK, linewidth=0.8)
    ax.set(xscale="log", xlabel="updates before the switch", ylabel="AUC less Sync's, 10^-3", title=mode)
    ax.legend(fontsize=8)
