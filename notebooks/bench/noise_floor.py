"""How far rounding alone moves a run's quality: python -m notebooks.bench.noise_floor [TASK ...]

Runs of one seed whose starts differ by 2e-7, about two units in the last place, have the same data, the same schedule and the
same first loss to six digits. What lies between their qualities in the end is chaos that no protocol has earned, and a difference
between protocols below it is not claimed. The captions of pages quote the table (`notebooks.noise_floor`), which names the commit
that measured it.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from lib import Run, paths, seeds
from lib.results.provenance import commit
from notebooks import conditions, study
from notebooks.dssync import quality
from notebooks.gba import switching
from notebooks.gba import tasks as gba
from notebooks.noise_floor import TABLE
from notebooks.oac import tasks as oac
from notebooks.persia import tasks as persia
from notebooks.shadowsync import alphas

NUDGE = 2e-7
"""By what share starts differ."""
STARTS = 4
SAME = ["task", "metric", "protocol"]


class Task(NamedTuple):
    """What is trained to learn the floor of a page."""

    job: Callable[..., dict]
    """`job(protocol, seed=...)`"""
    protocols: tuple[str, ...]
    metric: str = "auc"
    figure: Callable[[Run], float] | None = None
    """None: the run's quality by the metric."""


def _criteo(protocol: str, seed: int) -> dict:
    """Four days of GBA's Criteo from scratch, each tested on the next."""
    return gba.TASKS["criteo"].at("laptop").job("laptop", protocol, seed, until_day=4) | {"evaluations": "daily"}


TASKS: Mapping[str, Task] = {
    "compare": Task(partial(conditions.job, samples=512_000, condition=conditions.BUSY), ("sync", "gba", "async")),
    "gba": Task(_criteo, ("sync", "gba", "async"), figure=switching.last_auc),
    "persia": Task(partial(persia.job, "criteo", samples=120_000), ("sync", "hybrid", "async")),
    "shadowsync": Task(
        lambda protocol, seed: alphas.job(5, protocol, seed, samples=128_000),
        ("s-easgd", "fr-easgd (5)", "fr-easgd (30)"),
        "ne",
        lambda run: -alphas.figure(run),
    ),
    "dssync clicks": Task(
        lambda protocol, seed: quality.job("clicks", protocol, seed, steps=250, evaluations=study.marks()),
        ("BSP", "ASP", "DS-Sync"),
    ),
    "dssync images": Task(
        lambda protocol, seed: quality.job("images", protocol, seed, steps=250, evaluations=study.marks()),
        ("BSP", "DS-Sync"),
        "accuracy",
    ),
    "oac clicks": Task(partial(oac.click_job, "deepfm", samples=60_000), ("sequential", "pipelined")),
}


def nudge(job: dict, start: int) -> dict:
    """The same run from a start that differs by so many times `NUDGE`: its new rows; where it has none, its first step."""
    workload, times = job["workload"], 1 + start * NUDGE
    if workload.tables():
        return job | {"workload": replace(workload, scale=times * workload.scale)}
    rate = workload.dense_optimizer
    return job | {"workload": replace(workload, dense_optimizer=replace(rate, lr=times * rate.lr))}


def measure(name: str, of: Iterable[int], starts: int = STARTS) -> pd.DataFrame:
    """A row for each protocol of a task and seed: the standard deviation of its quality over the starts."""
    task = TASKS[name]
    cases = study.grid(task=[name], metric=[task.metric], protocol=task.protocols, seed=of, start=range(starts))
    figure = task.figure or (lambda run: study.quality(run, task.metric))
    jobs = {
        tuple(case.values()): nudge(task.job(protocol=case["protocol"], seed=case["seed"]), case["start"])
        for case in cases
    }
    data = study.table(cases, study.run(jobs).values(), value=figure)
    spread = data.groupby([*SAME, "seed"], sort=False)["value"].std(ddof=1)
    return spread.rename("spread").reset_index().assign(starts=starts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m notebooks.bench.noise_floor", description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all by default")
    wanted = parser.parse_args().tasks or [*TASKS]
    for name in wanted:
        found = measure(name, seeds.PILOT[:1]).assign(commit=commit())
        kept = pd.read_csv(TABLE) if TABLE.exists() else found.iloc[:0]
        table = pd.concat([kept[kept["task"] != name], found], ignore_index=True)
        paths.write_text_atomic(TABLE, table.to_csv(index=False, lineterminator="\n", float_format="%.3g"))
        print(found.to_string(index=False))


if __name__ == "__main__":
    main()
