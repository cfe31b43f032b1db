"""How well and how fast the modes of Figures 2 and 3 learn, and how the number of batches in flight is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lib.results.run import Run
from lib.seeds import tuning
from lib.training.sweep import sweep
from lib.workloads import Workload
from notebooks.oac.tasks import Setup
from tests.soak.pipelines import digest_of, serial

UNTRAINED = "untrained"
"""What has learnt nothing: from there to the best is all that can be lost."""

FAST = 0.97
"""A setting is tuned for quality among those that keep so much of the greatest speed."""


def job(setup: Setup, mode: str, seed: int, epochs: float, tuned: int) -> dict[str, Any]:
    """A mode's run by its name in the figures."""
    name, _, few = mode.partition(" ")
    made = setup.job("oac" if name == UNTRAINED else name, seed, epochs=epochs, in_flight=tuned if few else None)
    return made | ({"protocol": "frozen"} if name == UNTRAINED else {"evaluations": max(1, round(epochs))})


def tried(setup: Setup, epochs: float, profile: str) -> pd.DataFrame:
    """Pipelined with more and more batches in flight: what it learns in a quarter of the pass, and how fast."""
    seeds = tuning(1 if profile == "smoke" else 2)
    many = [2, 3, 4, 6, 8, 12, setup.cores]
    runs = sweep([setup.job("pipelined", seed, epochs=epochs / 4, in_flight=each) for each in many for seed in seeds])
    rows = [
        {"in flight": each, "mrr": run.summary["mrr"], "batches a second": run.steady_qps / setup.batch}
        for each, run in zip([each for each in many for _ in seeds], runs, strict=True)
    ]
    return pd.DataFrame(rows).groupby("in flight").mean().round(4)


def best(found: pd.DataFrame) -> int:
    """Batches in flight with which quality is best, among those that are as good as fastest."""
    fast = found[found["batches a second"] >= FAST * found["batches a second"].max()]
    return int(fast["mrr"].idxmax())


def courses(places: Sequence[tuple[str, str, int]], runs: Sequence[Run]) -> pd.DataFrame:
    """MRR after each epoch."""
    parts = []
    for (setup, mode, seed), run in zip(places, runs, strict=True):
        found = run.history.dropna(subset=["mrr"])[["time", "samples", "mrr"]]
        epoch = found["samples"] / run.provenance["workload"]["triples"]
        parts.append(found.assign(epoch=epoch.round(2), setup=setup, protocol=mode, seed=seed))
    return pd.concat(parts, ignore_index=True)


def judged(
    places: Sequence[tuple[str, str, int]], runs: Sequence[Run], jobs: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    """A row for each run, as claims read it; the first of OAC in each setup is replayed."""
    table = pd.DataFrame(places, columns=["setup", "protocol", "seed"])
    table["mrr"], table["early"] = [run.summary["mrr"] for run in runs], [_early(run) for run in runs]
    table["qps"] = [run.steady_qps for run in runs]
    table["conflicts"] = [run.summary.get("rows_validated_away", 0) / run.summary.get("rows_read", 1) for run in runs]
    slow = table[table["protocol"] == "sequential"].set_index(["setup", "seed"])["qps"]
    table["speed over sequential"] = (
        table["qps"] / slow.loc[pd.MultiIndex.from_frame(table[["setup", "seed"]])].to_numpy()
    )
    table["subject"] = table["setup"] + ", " + table["protocol"]
    first = table[table["protocol"] == "oac"].drop_duplicates("setup")
    same = [float(equal(runs[row], jobs[row]["workload"])) for row in first.index]
    replayed = first[["setup", "seed"]].assign(subject=first["setup"] + ", replayed", equal=same)
    return pd.concat([table, replayed], ignore_index=True)


def equal(run: Run, task: Workload) -> bool:
    """Whether a pipeline left what one batch after another leaves, in the order in which the device computed them."""
    return run.digest == digest_of(serial(task, run.provenance["seed"], run.summary["order"]))


def _early(run: Run) -> float:
    """MRR after the first epoch."""
    return float(run.history["mrr"].dropna().iloc[0])
