"""A graph that is trained until it learns no more: when a mode is near its end, what asynchrony costs by how often batches meet.

The graph has FB15k-237's shape, or is FB15k-237. It is small, so that a batch of the paper's share of it has other conflicts than
in the paper; a batch's size and the setup decide them, and the paper's two are points among others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lib import workloads
from lib.reporting.claims import interval
from lib.results.run import Run
from lib.seeds import tuning
from lib.store.optim import Adagrad
from lib.training.sweep import sweep
from lib.workloads import Workload
from notebooks import study
from notebooks.oac.convergence import FAST, UNTRAINED, equal, replaced
from notebooks.oac.tasks import SETUPS

TRUTH = {"rank": 4, "sharpness": 8.0}
"""Of a planted graph: so sharp and of so few dimensions that its triples, 37 to an entity, can teach it in a few epochs."""
SHAPE = {"entities": 14_541, "relations": 237, "triples": 272_115, **TRUTH}
SMALL = {"entities": 400, "relations": 8, "triples": 4_000, **TRUTH}
"""To be tried at smoke."""

NODES = 86e6
"""Entities of Freebase86m."""

NEAR = 0.9
"""Of the plateau: what is near it."""

TUNED, OWN = "pipelined (tuned)", "pipelined (own rate)"
"""Asynchrony with few batches in flight, and with all of them at the rate that is best for it; all others have sequential's."""

MODES = ("sequential", "pipelined", TUNED, OWN, "oac", UNTRAINED)


SKEW = 0.8
"""Zipf's exponent of a planted graph's degrees."""


class Setting(NamedTuple):
    """How often batches in flight meet."""

    setup: str
    batch: int
    exponent: float = SKEW
    """`SKEW`, or another."""


POINTS: Mapping[str, Setting] = {"setup 1": Setting("setup 1", 768), "setup 2": Setting("setup 2", 64)}
"""Where as many rows meet another batch's as in the paper (`met`)."""

AROUND: Mapping[str, Setting] = {
    "80 of 64": Setting("setup 1", 64),
    "80 of 256": Setting("setup 1", 256),
    "20 of 256": Setting("setup 2", 256),
    "20 of 1024": Setting("setup 2", 1024),
    "20 of 256, flat": Setting("setup 2", 256, 0.4),
    "20 of 256, steep": Setting("setup 2", 256, 1.2),
}
"""Batches in flight, and the triples of one."""

SETTINGS = {**POINTS, **AROUND}


def met(setup: str) -> float:
    """The share of a batch's rows that another in flight has too, in the paper, if all rows were met alike."""
    there = SETUPS[setup]
    return 1 - (1 - there.rows / NODES) ** (there.cores - 1)


class Study(NamedTuple):
    """What all runs of the page have in common."""

    epochs: int
    data: str | None = None
    """Folder of a real graph; without it one is planted."""
    shape: Mapping[str, Any] = SHAPE

    def workload(self, setting: str, seed: int, rate: float) -> Workload:
        at, adagrad = SETTINGS[setting], Adagrad(lr=rate)
        planted = dict(self.shape) | {"world": seed, "exponent": at.exponent}
        graph = {"data": self.data} if self.data else planted
        size = {"batch_size": at.batch, "negatives": at.batch // 4, "dim": 50, "scale": 0.1}
        rates = dict.fromkeys(("row_optimizer", "dense_optimizer"), adagrad)
        made = workloads.get("freebase86m-distmult", **graph, **size, **rates, evaluation_candidates=None)
        return replace(made, samples=self.epochs * (len(made.graph.train) if self.data else made.triples))

    @property
    def around(self) -> list[str]:
        """The settings beside the paper's; a real graph has the skew that it has."""
        return [name for name, at in AROUND.items() if not self.data or at.exponent == SKEW]

    def job(self, setting: str, mode: str, seed: int, rate: float = 0.1, in_flight: int | None = None) -> dict:
        """A mode's run, judged twice an epoch."""
        task, setup = self.workload(setting, seed, rate), SETUPS[SETTINGS[setting].setup]
        few = in_flight if mode == TUNED else None
        rule = "frozen" if mode == UNTRAINED else setup.rule(mode.partition(" ")[0], few)
        made = {"workload": task, "protocol": rule, "cluster": setup.cluster(task), "seed": seed, "trace": False}
        return made if mode == UNTRAINED else made | {"evaluations": 2 * self.epochs}

    def few(self, setting: str) -> int:
        """The fewest batches in flight that are as good as fastest: the gentlest asynchrony that costs no speed, by which it is
        tuned. Nothing is trained for it."""
        [seed], counts = tuning(1), (1, 2, 3, 4, 6, 8, 12, SETUPS[SETTINGS[setting].setup].cores)
        short = self._replace(epochs=1)
        jobs = [short.job(setting, TUNED, seed, in_flight=many) for many in counts]
        runs = sweep([{**job, "gradients": False, "evaluations": 1} for job in jobs])
        paces = [study.pace(run) for run in runs]
        return next(many for many, pace in zip(counts, paces, strict=True) if pace >= FAST * max(paces))


def seconds_to(times: Sequence[float], values: Sequence[float], wanted: float) -> float:
    """When a curve first comes to what is wanted, on a straight line between two of its points; infinite where it never does. It
    begins with nothing at 0."""
    times, values = np.array([0.0, *times]), np.array([0.0, *values])
    if not (there := np.flatnonzero(values >= wanted)).size:
        return np.inf
    after = there[0]
    if after == 0:
        return 0.0
    share = (wanted - values[after - 1]) / (values[after] - values[after - 1])
    return float(times[after - 1] + share * (times[after] - times[after - 1]))


def plateau(curve: Sequence[float]) -> float:
    """The mean of a curve's last third."""
    return float(np.mean(curve[-max(1, len(curve) // 3) :]))


def judged(places: Sequence[study.Place], runs: Sequence[Run], jobs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each run, as claims read it: `early` is after the first epoch, `mrr` the plateau, `speed` one over the seconds to
    `NEAR` of sequential's plateau with the same seed, 0 where that is never reached. The runs of OAC
    that claims read, at `POINTS`, are replayed."""
    curves = [run.history.dropna(subset=["mrr"]) for run in runs]
    data = pd.DataFrame(list(places)).assign(
        mrr=[plateau(curve["mrr"].to_list()) for curve in curves],
        early=[curve["mrr"].iloc[min(1, len(curve) - 1)] for curve in curves],
        ms=[1e3 * run.provenance["workload"]["batch_size"] / study.pace(run) for run in runs],
        conflicts=[replaced(run) for run in runs],
    )
    same = ["setting", "seed"]
    wanted = NEAR * study.beside(data, "mrr", same, mode="sequential")
    data["seconds"] = [
        seconds_to(curve["time"], curve["mrr"], each) for curve, each in zip(curves, wanted, strict=True)
    ]
    data["speed"] = 1 / data["seconds"]
    data["brings"] = study.beside(data, "mrr", same, mode="sequential") - study.beside(
        data, "mrr", same, mode=UNTRAINED
    )
    data["mrr over sequential's"] = data["mrr"] / study.beside(data, "mrr", same, mode="sequential")
    data["met"] = study.beside(data, "conflicts", same, mode="oac")
    data["equal"] = [
        float(equal(run, job["workload"])) if place["mode"] == "oac" and place["setting"] in POINTS else np.nan
        for place, run, job in zip(places, runs, jobs, strict=True)
    ]
    return data.assign(subject=data["setting"] + ", " + data["mode"])


def breaks(data: pd.DataFrame) -> pd.DataFrame:
    """Untuned asynchrony by how often batches meet: MRR over sequential's with the same seed, its 95 % interval, and whether it
    is measurably worse."""
    rows = []
    for setting, part in data[data["mode"] == "pipelined"].groupby("setting"):
        mean, low, high = interval(part["mrr over sequential's"].to_list())
        rows.append((setting, part["met"].mean(), mean, low, high, high < 1))
    columns = ["setting", "rows that meet", "MRR over sequential's", "from", "to", "measurably worse"]
    return pd.DataFrame(rows, columns=columns).sort_values("rows that meet").set_index("setting")
