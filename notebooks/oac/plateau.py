"""A graph that is trained until it learns no more: when a mode is near its end, what asynchrony costs by how often batches meet.

The graph has FB15k-237's shape, or is FB15k-237. It is small, so that a batch of the paper's share of it has other conflicts than
in the paper; a batch's size and the setup decide them, and the paper's two are points among others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib import Adagrad, Run, Workload, workloads
from lib.seeds import tuning
from notebooks import grid_search, study
from notebooks import setting as page
from notebooks.advisor.trial import crossing
from notebooks.oac.replay import equal, replaced_share
from notebooks.oac.tasks import SETUPS
from notebooks.planted_control import CONTROL, PlantedControl
from reports.claims import interval

TRUTH = {"rank": 4, "sharpness": 8.0}
"""Of a synthetic graph: so sharp and of so few dimensions that its triples, 37 to an entity, can teach it in a few epochs."""
SHAPE = {"entities": 14_541, "relations": 237, "triples": 272_115, **TRUTH}
SMALL = {"entities": 400, "relations": 8, "triples": 4_000, **TRUTH}
"""To be tried at smoke."""

NODES = 86e6
"""Entities of Freebase86m."""

NEAR = 0.9
"""Of the plateau: what is near it."""

EARLY = 0.7175 / 0.73
"""Of the plateau: what the paper's sequential run has after its first epoch (Fig. 3a)."""

TUNED, OWN, BOTH = "pipelined (tuned)", "pipelined (own rate)", "pipelined (tuned, own rate)"
"""Asynchrony with as many batches in flight as bring it near the plateau fastest; with all of them, at the rate that is best for
it; with as many and at such a rate as bring it there fastest. All others have sequential's rate."""

UNTRAINED = "untrained"
"""What has learnt nothing: from there to the best is all that can be lost."""

MODES = ("sequential", "pipelined", TUNED, "oac", UNTRAINED)
OWNS = (OWN, BOTH)
"""What a rate of its own does for asynchrony, asked in setup 1, where it loses."""
EQUALS = ("sequential", TUNED, UNTRAINED, CONTROL)
"""What is held to be equal in setup 2, and what shows that a loss would be seen."""
DROPPED = 0.52
"""The share of updates that the planted control leaves out, by `planted_control.dose` on a tuning seed: 0.5 of them cost 4 % of
what training brings and 0.7 cost 24 %, where two margins are 6 %."""

RANKED = {"evaluation_triples": 4_000, "evaluation_candidates": 1_000}
"""As Marius ranks Freebase86m's triples, against a thousand entities, half of them by degree; so many triples that modes can be
distinguished."""

SKEW = 0.8
"""Zipf's exponent of a synthetic graph's degrees."""


class Setting(NamedTuple):
    """How often batches in flight meet."""

    setup: str
    batch: int
    exponent: float = SKEW
    """`SKEW`, or another."""


BATCHES = (768, 64)
"""Triples of a batch of either setup: so large that about as many rows meet another batch's as in the paper (`met`), or more."""
POINTS: Mapping[str, Setting] = {name: Setting(name, batch) for name, batch in zip(SETUPS, BATCHES, strict=True)}

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


def paper_conflicts(setup: str) -> float:
    """The share of a batch's rows that another in flight has too, in the paper, if all rows were met alike."""
    machine = SETUPS[setup]
    return 1 - (1 - machine.rows / NODES) ** (machine.cores - 1)


class Study(NamedTuple):
    """What all runs of the page have in common."""

    epochs: int
    shape: Mapping = SHAPE

    def workload(self, setting: str, seed: int, rate: float) -> Workload:
        """At full the paper's two settings have its models, batches and epochs, on a folder's graph or a synthetic one."""
        at, adagrad = SETTINGS[setting], Adagrad(lr=rate)
        rates = dict.fromkeys(("row_optimizer", "dense_optimizer"), adagrad)
        if page.is_full() and setting in POINTS:
            return replace(page.workload(SETUPS[at.setup].workload_name, "oac", at.setup, world=seed), **rates)
        synthetic = dict(self.shape) | {"world": seed, "exponent": at.exponent}
        size = synthetic | {"batch_size": at.batch, "negatives": at.batch // 4, "dim": 50, "scale": 0.1}
        name = "freebase86m-distmult"
        workload = workloads.get(name, **page.with_data(name, size | rates | RANKED))
        return replace(workload, samples=self.epochs * (len(workload.graph.train) if page.data() else workload.triples))

    @property
    def around(self) -> list[str]:
        """The settings next to the paper's; a real graph has the skew that it has."""
        return [name for name, at in AROUND.items() if not page.data() or at.exponent == SKEW]

    def job(self, setting: str, mode: str, seed: int, rate: float = 0.1, many: float | None = None) -> dict:
        """A mode's run, evaluated twice an epoch and ten times in its last fifth; tuned, with `many` batches in flight."""
        task, setup = self.workload(setting, seed, rate), SETUPS[SETTINGS[setting].setup]
        few = round(many) if many and mode in (TUNED, BOTH) else None
        plain = {UNTRAINED: "frozen", CONTROL: PlantedControl(dropped=DROPPED)}
        rule = plain.get(mode) or setup.rule(mode.partition(" ")[0], few)
        evaluations = 1 if mode == UNTRAINED else study.marks(2 * self.epochs)
        machine = setup.cluster(self.workload(setting, 0, rate))  # alike for all seeds, and from one graph
        return study.job(task, rule, machine, seed, evaluations=evaluations)

    def by_rate(self) -> pd.DataFrame:
        """The plateau of sequential training, and of untuned asynchrony, by the rate, on a seed kept for tuning."""
        axes = {"rate": (0.03, 0.1, 0.3)}
        return grid_search.curve(self.job, _height, axes, tuning(1), setting=POINTS, mode=("sequential", "pipelined"))

    def by_hand(self, found: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """How soon tuned asynchrony is near sequential's plateau, by batches in flight; and in setup 1 by these and the rate.
        `found` are the best of `by_rate`."""

        def job(setting: str, mode: str, many: float, rate: float | None = None, **case) -> dict:
            return self.job(setting, mode, rate=rate or found["rate"][setting, "sequential"], many=many, **case)

        def soon(run: Run, setting: str, mode: str) -> float:
            curve = run.history.dropna(subset=["mrr"])
            return 1 / seconds_to(curve["time"], curve["mrr"], NEAR * found["value"][setting, "sequential"])

        flights, limits = {"many": (2, 4, 8)}, {"many": (2, max(setup.cores for setup in SETUPS.values()))}
        both = flights | {"rate": (0.03, 0.1, 0.3)}
        return (
            grid_search.curve(job, soon, flights, tuning(1), limits=limits, setting=POINTS, mode=[TUNED]),
            grid_search.curve(job, soon, both, tuning(1), limits=limits, setting=["setup 1"], mode=[BOTH]),
        )


def _height(run: Run, **_) -> float:
    return study.quality(run, "mrr")


def seconds_to(times: Sequence[float], values: Sequence[float], wanted: float) -> float:
    """When a curve that begins with nothing at 0 first reaches a value, interpolated; infinite if it never does."""
    found = crossing(np.array([(0.0, 0.0), *zip(times, values, strict=True)]), wanted)
    return np.inf if found is None else float(found[0])


def claim_table(cases: Sequence[study.Case], runs: Sequence[Run], jobs: Sequence[Mapping]) -> pd.DataFrame:
    """A row for each run, as claims read it: `mrr` is the plateau, `early` where sequential with the same seed first has
    `EARLY` of its own, `speed` one over the seconds to `NEAR` of that, 0 where it is never reached. The runs of OAC that claims
    read, at `POINTS`, are replayed."""
    curves = [run.history.dropna(subset=["mrr"]) for run in runs]
    data = pd.DataFrame(list(cases)).assign(
        mrr=[study.quality(run, "mrr") for run in runs],
        ms=[1e3 * run.provenance["workload"]["batch_size"] / study.pace(run) for run in runs],
        conflicts=[replaced_share(run) for run in runs],
    )
    same = ["setting", "seed"]
    high = study.baseline(data, "mrr", same, mode="sequential")
    data["at"] = [int(np.argmax(curve["mrr"] >= EARLY * each)) for curve, each in zip(curves, high, strict=True)]
    at = study.baseline(data, "at", same, mode="sequential")
    data["early"] = [
        curve["mrr"].iloc[min(position, len(curve) - 1)] for curve, position in zip(curves, at, strict=True)
    ]
    wanted = NEAR * high
    data["seconds"] = [
        seconds_to(curve["time"], curve["mrr"], each) for curve, each in zip(curves, wanted, strict=True)
    ]
    data["speed"] = 1 / data["seconds"]
    data["brings"] = high - study.baseline(data, "mrr", same, mode=UNTRAINED)
    data["mrr over sequential's"] = data["mrr"] / high
    data["met"] = data["setting"].map(data[data["mode"] == "oac"].groupby("setting")["conflicts"].mean())
    data["equal"] = [
        float(equal(run, job["workload"])) if case["mode"] == "oac" and case["setting"] in POINTS else np.nan
        for case, run, job in zip(cases, runs, jobs, strict=True)
    ]
    return data.assign(subject=data["setting"] + ", " + data["mode"])


def by_conflicts(data: pd.DataFrame) -> pd.DataFrame:
    """Untuned asynchrony by how often batches meet: MRR over sequential's with the same seed, its 95 % interval, and whether it
    is measurably worse."""
    rows = []
    for setting, part in data[data["mode"] == "pipelined"].groupby("setting"):
        mean, low, high = interval(part["mrr over sequential's"].to_list())
        rows.append((setting, part["met"].mean(), mean, low, high, high < 1))
    columns = ["setting", "rows that meet", "MRR over sequential's", "from", "to", "measurably worse"]
    return pd.DataFrame(rows, columns=columns).sort_values("rows that meet").set_index("setting")


def edge(found: pd.DataFrame) -> str:
    """Say where asynchrony is measurably worse, by a table of `by_conflicts`: the least share of rows that meet, how many of the
    settings with more, and where no loss is shown."""
    worse, meets = found["measurably worse"], found["rows that meet"]
    if not worse.any():
        return "Nowhere measurably worse."
    least, above = meets[worse].min(), meets > meets[worse].min()
    many = f" and at {(above & worse).sum()} of the {above.sum()} settings with more" if above.any() else ""
    rest = ", ".join(f"{share:.0%}" for share in meets[~worse])
    return f"Measurably worse at {least:.0%} of the rows{many}" + (f"; not shown at {rest}." if rest else ".")
