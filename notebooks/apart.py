"""What staying apart costs: every way of keeping in step beside Sync, over how long, how far apart and how fast it learns.

A *way* is a protocol at a distance. What is apart has one measure a family: under servers the mean age of an applied gradient,
and under the hybrid of a row's, in updates of Sync's size; between replicas the steps from one mix to the next; in a pipeline
the batches in flight beside one. All see the same samples, `UPDATE` for an update of Sync, and have Sync's rates times a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from lib import protocols
from lib.cluster.virtual.cluster import VirtualCluster
from lib.protocols.rule import Rule
from lib.reporting import plots
from lib.results.run import Run
from lib.seeds import not_judging
from lib.store.optim import Adam
from lib.training.sweep import sweep
from lib.workloads.light import LightClicks
from notebooks import study

WORKERS, BATCH = 8, 64
UPDATE = WORKERS * BATCH
"""Samples of an update of Sync."""
SLOWDOWN = 0.6
"""Of the workers' steps, lognormal."""
GRID = {"rows": (0.001, 0.003, 0.01), "dense": (0.001, 0.003, 0.01)}
"""Adam's rates that are tried first; the grid goes on past its ends."""
EVALUATED = 50_000
LONG = ("longest", "second longest", "third longest")
"""Lengths, as claims call them."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A protocol at a distance."""

    family: str
    rule: Rule
    workers: int = WORKERS
    batch: int = BATCH
    far: float | None = None
    """The distance, where it is set and not measured."""

    @property
    def protocol(self) -> str:
        return self.rule.name

    @property
    def update(self) -> int:
        """Samples of one of its updates of rows."""
        return self.batch * self.rule.sparse.batches_a_step(self.workers)

    def distance(self, run: Run) -> float:
        return run.summary["staleness_mean"] * self.update / UPDATE if self.far is None else self.far


def _way(family: str, name: str, workers: int = WORKERS, far: float | None = None, **options: Any) -> Way:
    batch = BATCH if family != "pipelines" else UPDATE
    return Way(family=family, rule=protocols.get(name, **options), workers=workers, batch=batch, far=far)


servers, hybrid = partial(_way, "servers"), partial(_way, "hybrid", "hybrid")
replicas, pipelines = partial(_way, "replicas"), partial(_way, "pipelines", workers=1)


def pipelined(many: int) -> Way:
    return pipelines("pipelined", far=many - 1, in_flight=many, readers=many, writers=many)


WAYS: Mapping[str, Way] = {
    "gba": servers("gba", size=WORKERS),
    "gba, 2 workers": servers("gba", 2, size=WORKERS),
    "gba, 32 workers": servers("gba", 32, size=WORKERS),
    "async": servers("async"),
    "async, 2 workers": servers("async", 2),
    "async, 32 workers": servers("async", 32),
    "hop-bs": servers("hop-bs"),
    "s-easgd": replicas("s-easgd", far=1),
    "s-ma": replicas("s-ma", far=1),
    "fr-easgd": replicas("fr-easgd", far=1),
    "fr-easgd, every 16": replicas("fr-easgd", far=16, every=16),
    "ds-sync": replicas("ds-sync", far=1),
    "local-sgd": replicas("local-sgd", far=4),
    "local-sgd, every 16": replicas("local-sgd", far=16, every=16),
    "hybrid, tau 1": hybrid(tau=1),
    "hybrid, tau 4": hybrid(tau=4),
    "pipelined, 2": pipelined(2),
    "pipelined, 8": pipelined(8),
    "oac": pipelines("oac", far=0),
}
"""What the law is fitted on."""
UNSEEN: Mapping[str, Way] = {
    "gba, 16 workers": servers("gba", 16, size=WORKERS),
    "async, 16 workers": servers("async", 16),
    "fr-easgd, every 4": replicas("fr-easgd", far=4, every=4),
    "local-sgd, every 8": replicas("local-sgd", far=8, every=8),
    "hybrid, tau 2": hybrid(tau=2),
    "pipelined, 4": pipelined(4),
}
"""What it is judged on, beside the longest runs."""
SYNC = servers("sync")
ALONE = pipelines("sequential", far=0)
EVERY = {"sync": SYNC, "sequential": ALONE, **WAYS, **UNSEEN}
BASES = {"pipelines": "sequential"}
"""Family -> whom it is held against, where that is not Sync."""


RATED = ("gba", "gba, 32 workers", "async", "s-easgd", "local-sgd", "hybrid, tau 1")
"""What is tried beside Sync's rates, too."""
RATES = (1 / 3, 1, 3)
BEYOND = 9
"""Of Sync alone: what smaller updates cost at thrice its rates is read off there."""


def places(lengths: Sequence[int], seeds: Iterable[int]) -> tuple[list[study.Place], list[study.Place]]:
    """What laws are fitted on, and what they are judged on: the longest runs, and ways that they have not seen."""
    *short, longest = lengths
    bases = study.grid(way=("sync", "sequential"), updates=lengths, rate=(*RATES, BEYOND), seed=seeds)
    known = study.grid(way=WAYS, updates=short, rate=(1,), seed=seeds)
    known += study.grid(way=RATED, updates=short, rate=(RATES[0], RATES[-1]), seed=seeds)
    held_out = study.grid(way=WAYS, updates=(longest,), rate=(1,), seed=seeds)
    held_out += study.grid(way=UNSEEN, updates=short, rate=(1,), seed=seeds)
    return [*bases, *known], held_out


def job(way: str, updates: int, rows: float, dense: float, seed: int, beta1: float = 0.9) -> dict[str, Any]:
    """So many updates of Sync's size; each seed has clicks of its own."""
    chosen = EVERY[way]
    optimisers = {"row_optimizer": Adam(lr=rows, beta1=beta1), "dense_optimizer": Adam(lr=dense, beta1=beta1)}
    world = {"world": seed, "days": 1, "drift": 0.0, "evaluation_samples": EVALUATED}
    workload = LightClicks(samples=updates * UPDATE, batch_size=chosen.batch, **world, **optimisers)
    cluster = VirtualCluster(workers=chosen.workers, slowdown=SLOWDOWN)
    return {"workload": workload, "protocol": chosen.rule, "cluster": cluster, "seed": seed, "trace": False}


def tuned(updates: int, seeds: Iterable[int], way: str = "sync") -> pd.DataFrame:
    """The curve of a way's rates at a length; `best` reads it."""

    def measured(places: Sequence[study.Place]) -> list[float]:
        return [run.summary["auc"] for run in sweep([job(way, updates, **place) for place in places])]

    return study.climbed(measured, GRID, not_judging(seeds, "rates are tried")).assign(updates=updates, way=way)


def best(curve: pd.DataFrame) -> dict[str, float]:
    """The rates with the best mean."""
    return dict(zip(("rows", "dense"), curve.groupby(["rows", "dense"])["value"].mean().idxmax(), strict=True))


def mapped(places: Sequence[study.Place], rates: Mapping[int, Mapping[str, float]]) -> tuple[pd.DataFrame, list[Run]]:
    """A row for each run at a place (way, updates, rate as a multiple of the length's best, seed), with its cost: the AUC that
    whom it is held against has at the same rate, on the same seed, less its own. Those must be among the places."""

    def asked(way: str, updates: int, rate: float, seed: int) -> dict[str, Any]:
        return job(way, updates, seed=seed, **{name: rate * lr for name, lr in rates[updates].items()})

    def about(run: Run, way: str, updates: int, rate: float, seed: int) -> study.Place:
        chosen = EVERY[way]
        told = {"family": chosen.family, "protocol": chosen.protocol, "distance": chosen.distance(run)}
        return told | {"rows": rate * rates[updates]["rows"], "larger": UPDATE / chosen.update}

    data, runs = study.swept(asked, places, about, auc="auc", ceiling="auc_ceiling")
    data["cost"] = 0.0
    for base in ("sync", "sequential"):
        mine = data["family"].map(lambda family, base=base: BASES.get(family, "sync") == base)
        theirs = study.beside(data, "auc", ["updates", "rate", "seed"], way=base)
        data.loc[mine, "cost"] = (theirs - data["auc"])[mine]
    return data, runs


def drawn(there: pd.DataFrame) -> Figure:
    """A panel for each family: what each way costs over the updates, at Sync's rates, and what the laws say of it as lines."""
    families = list(dict.fromkeys(there["family"]))
    with plots.style():
        fig = Figure(figsize=(plots.WIDTH, 2.6 * len(families)), layout="constrained")
        for ax, family in zip(fig.subplots(len(families), 1, sharex=True, squeeze=False)[:, 0], families, strict=True):
            ways = list(dict.fromkeys(there.loc[there["family"] == family, "way"]))
            for way, tone in zip(ways, sns.color_palette("colorblind", len(ways)), strict=True):
                mine = there[there["way"] == way].sort_values("updates")
                ends = 1e3 * (mine["cost"] - mine["low"]), 1e3 * (mine["high"] - mine["cost"])
                ax.errorbar(mine["updates"], 1e3 * mine["cost"], ends, color=tone, marker="o", linestyle="", label=way)
                ax.plot(mine["updates"], 1e3 * mine["foretold"], color=tone)
            ax.axhline(0, color=plots.BLACK, linewidth=0.8)
            ax.set_xscale("log")
            ax.set_yscale("symlog", linthresh=1)
            ax.set_title(family, loc="left", fontsize=10, pad=3)
            ax.set_ylabel("AUC lost, 10^-3")
            ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        ax.set_xlabel("updates of Sync")
    return fig
