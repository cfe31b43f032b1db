"""GBA's Figure 2: the mode is switched in the middle of training, with one set of hyper-parameters or the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from lib import Phase, Run, Schedule
from notebooks import study
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

DAYS = 2
"""Length of the pass, from scratch, in days of the task."""


def job(task: Task, profile: str, case: str, seed: int) -> dict:
    half = DAYS * task.sizes[profile].day // 2
    before, after = (phase(task, mode, name) for mode, name in CASES[case])
    workload = replace(task.workload(profile), samples=2 * half, days=DAYS, world=seed)
    plan = Schedule(phases=(replace(before, until_samples=half), after))
    return study.job(workload, plan, task.cluster(profile, "gba"), seed, evaluations=20)


def controls(
    task: Task, profile: str, cases: Iterable[str], seeds: Iterable[int], rates: Sequence[float], held: Sequence[float]
) -> pd.DataFrame:
    """What a drop takes: the same switch at the paper's rates times a factor, and with parameters held for another share of a
    batch's time, so that gradients are older; one thing at a time, and both."""

    def control_job(protocol: str, rate: float, share: float, seed: int) -> dict:
        own = switching.at_factor(task, rate)
        return job(own, profile, protocol, seed) | {"cluster": own.cluster(profile, "gba", held=share)}

    places = study.grid(protocol=cases, rate=rates, share=held, seed=seeds)
    data, runs = study.run_grid(control_job, places, age="staleness_mean")
    keys = [*places[0]]
    return data.merge(drops(curves(places, runs), keys), on=keys)


def phase(task: Task, mode: str, name: str) -> Phase:
    """A mode with a set of hyper-parameters: an optimiser with its rate, and the samples of a worker's step."""
    kind, batch = (task.adam, task.sync[1]) if name == "S" else (task.adagrad, task.lone)
    return task.phase(mode, batch_size=task.others[1] if mode == "gba" else batch, **at_rate(kind))


def late_job(task: Task, profile: str, start: Run, mode: str, name: str) -> dict:
    """The job of a day in a mode with a set of hyper-parameters after another run, evaluated after every 5 % of it."""
    size = task.sizes[profile]
    job = switching.days(task, profile, "sync", start, size.base + 1)
    plan = Schedule(phases=(replace(phase(task, mode, name), until_day=size.base + 1),))
    changes = {"protocol": plan, "cluster": task.cluster(profile, "gba")}
    return job | changes | {"evaluations": 40 * size.days, "keep": False}


def curves(places: Iterable[study.Case], runs: Sequence[Run]) -> pd.DataFrame:
    """AUC against progress in per cent."""
    whole = ({**place, "samples of all": run.summary["samples"]} for place, run in zip(places, runs, strict=True))
    found = study.histories(whole, runs, "samples", "auc")
    return found.assign(progress=100 * found.pop("samples") / found.pop("samples of all"))


def drops(curves: pd.DataFrame, keys: Sequence[str] = ("task", "protocol", "seed")) -> pd.DataFrame:
    """For each run, by its place: the AUC before the switch, the lowest of the three evaluations after it, how far it fell, and
    the end's."""
    data = curves.sort_values("progress")
    early, keys = data["progress"] <= 50.01, [*keys]
    before, end = (each.groupby(keys, sort=False)["auc"].last() for each in (data[early], data))
    lowest = data[~early].groupby(keys, sort=False).head(3).groupby(keys, sort=False)["auc"].min()
    return pd.DataFrame({"before": before, "lowest": lowest, "end": end, "drop": before - lowest}).reset_index()


def drops_below(after: pd.DataFrame, stays: Mapping[str, str], keys: Sequence[str]) -> pd.DataFrame:
    """By how much each run falls below the mode that stays, by where it starts: the most at the first three evaluations after
    the switch, which are every 5 % of the progress."""
    after = after.assign(progress=(after["progress"] + 0.1) // 5 * 5).sort_values("progress")
    after = after.groupby([*keys, "progress"], sort=False, as_index=False)["auc"].last()
    own = after[after["protocol"] == after["start"].map(stays)].drop(columns="protocol")
    both = after.merge(own, on=[*(key for key in keys if key != "protocol"), "progress"], suffixes=("", "_stay"))
    first = both.assign(below=both["auc_stay"] - both["auc"]).groupby([*keys], sort=False).head(3)
    return first.groupby([*keys], sort=False)["below"].max().reset_index()


def claim_table(table: pd.DataFrame) -> pd.DataFrame:
    """Drops as claims read them: `criteo, async S` is the switch to Async with set S, `criteo, from sync` what stayed there."""
    stays = table["protocol"].map({"sync": "from sync", "async": "from async"})
    case = stays.fillna(table["protocol"].str.replace(r"[()]", "", regex=True))
    return table.assign(subject=table["task"] + ", " + case)
