"""How well and how fast the modes of Figures 2 and 3 learn, and how the number of batches in flight is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lib.results.run import Run
from lib.seeds import tuning
from lib.workloads import Workload
from notebooks import study
from notebooks.oac.tasks import HOST, Machine, Setup
from tests.soak.pipelines import digest_of, serial

UNTRAINED = "untrained"
"""What has learnt nothing: from there to the best is all that can be lost."""

FAST = 0.97
"""A setting is tuned for quality among those that keep so much of the greatest speed."""


def job(setup: Setup, mode: str, seed: int, *, epochs: float, tuned: int, machine: Machine = HOST) -> dict[str, Any]:
    """A mode's run by its name in the figures."""
    name, _, few = mode.partition(" ")
    made = setup.job(
        "oac" if name == UNTRAINED else name, seed, epochs=epochs, in_flight=tuned if few else None, machine=machine
    )
    return made | ({"protocol": "frozen"} if name == UNTRAINED else {"evaluations": max(1, round(epochs))})


def tried(setup: Setup, epochs: float, profile: str) -> pd.DataFrame:
    """Pipelined with more and more batches in flight: what it learns in a quarter of the pass, and how fast."""
    data, _ = study.swept(
        lambda many, seed: setup.job("pipelined", seed, epochs=epochs / 4, in_flight=many),
        study.grid(many=[2, 3, 4, 6, 8, 12, setup.cores], seed=tuning(1 if profile == "smoke" else 2)),
        mrr="mrr",
        pace=lambda run: run.steady_qps / setup.batch,
    )
    data = data.rename(columns={"many": "in flight", "pace": "batches a second"})
    return data.groupby("in flight")[["mrr", "batches a second"]].mean().round(4)


def best(found: pd.DataFrame) -> int:
    """Batches in flight with which quality is best, among those that are as good as fastest."""
    fast = found[found["batches a second"] >= FAST * found["batches a second"].max()]
    return int(fast["mrr"].idxmax())


def courses(places: Sequence[study.Place], runs: Sequence[Run]) -> pd.DataFrame:
    """MRR after each epoch; seeds' seconds, which differ by some thousandths, stand at their mean."""
    triples = [run.provenance["workload"]["triples"] for run in runs]
    spots = ({**place, "triples": each} for place, each in zip(places, triples, strict=True))
    data = study.courses(spots, runs, "time", "samples", "mrr")
    data["epoch"] = (data["samples"] / data.pop("triples")).round(2)
    data["time"] = data.groupby(["setup", "protocol", "epoch"])["time"].transform("mean")
    return data


def judged(places: Sequence[study.Place], runs: Sequence[Run], jobs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each run, as claims read it; `early` is after the first epoch, and every run of OAC is replayed."""
    early = {"early": lambda run: float(run.history["mrr"].dropna().iloc[0])}
    table = study.told(places, runs, mrr="mrr", qps=study.pace, conflicts=replaced, **early)
    end, start, slow = (
        study.beside(table, column, ["setup", "seed"], protocol=mode)
        for column, mode in (("mrr", "sequential"), ("mrr", UNTRAINED), ("qps", "sequential"))
    )
    table["brings"], table["speed over sequential"] = end - start, table["qps"] / slow
    table["subject"] = table["setup"] + ", " + table["protocol"]
    replayed = table[table["protocol"] == "oac"]
    same = [float(equal(runs[row], jobs[row]["workload"])) for row in replayed.index]
    replayed = replayed[["setup", "seed"]].assign(subject=replayed["setup"] + ", replayed", equal=same)
    return pd.concat([table, replayed], ignore_index=True)


def replaced(run: Run) -> float:
    """The share of rows that validation replaced."""
    return run.summary.get("rows_validated_away", 0) / run.summary.get("rows_read", 1)


def equal(run: Run, task: Workload) -> bool:
    """Whether a pipeline left what one batch after another leaves, in the order in which the device computed them."""
    return run.digest == digest_of(serial(task, run.provenance["seed"], run.summary["order"]))
