"""What staying apart costs: ways of keeping in step other than Sync, over how long, how far apart and how fast they learn.

A *way* is a protocol at a distance. What is apart has one measure a family: under servers the mean age of an applied gradient,
and under the hybrid of a row's, in updates of Sync's size; between replicas the steps from one mix to the next; in a pipeline
the batches in flight in addition to one. All see the same samples, `UPDATE` for an update of Sync, and have Sync's rates times a
number, or rates of their own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pandas as pd

from lib import Adam, Pair, Rule, Run, VirtualCluster, protocols, sweep
from lib.options.yaml_source import load
from lib.seeds import not_judging
from lib.tasks.clicks import LightClicks
from notebooks import law, study
from notebooks.gradient_age import cluster_of_age

WORKERS, BATCH = 8, 64
UPDATE = WORKERS * BATCH
"""Samples of an update of Sync."""
SLOWDOWN = 0.6
"""Of the workers' steps, lognormal."""
GRID = {"rows": (0.001, 0.003, 0.009), "dense": (0.001, 0.003, 0.009)}
"""Adam's rates that are tried first at the shortest length; it goes on past its ends, and then from its best."""
EVALUATED = 50_000
BRIEF, LONG = 1_000, 3_000
"""Updates beyond which rates other than Sync's are not tried, and from which on one seed tunes; some ways end with either."""

Rates = Mapping[tuple[str, int], Mapping[str, float]]
"""(way, updates) -> rates of rows and dense."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A protocol at a distance."""

    family: str
    rule: Rule | Pair
    workers: int = WORKERS
    batch: int = BATCH
    far: float | None = None
    """The distance, where it is set and not measured."""
    upto: float = math.inf
    """The longest runs that it has: what costs much to run, or has nothing more to teach, stops earlier."""
    age: float | None = None
    """Workers under whom GBA's gradients are so old; None: they hold parameters for all of a step."""
    hidden: tuple[int, ...] = (16,)
    beta1: float = 0.9
    slower: str = ""
    """The part, rows or dense, whose smaller updates are given a smaller rate."""

    @property
    def base(self) -> str:
        """The way that this one is compared with."""
        return BASES.get(self.family, "sync")

    @property
    def update(self) -> int:
        """Samples of one of its updates of rows."""
        return self.batch * self.rule.sparse.batches_a_step(self.workers)

    def distance(self, run: Run) -> float:
        return run.summary["staleness_mean"] * self.update / UPDATE if self.far is None else self.far


def _way(family: str, rule: Mapping | None = None, sparse: str = "", dense: str = "", hidden=(16,), **options) -> Way:
    """A way as `asynchrony.yaml` has it; a pipeline is one worker, whose batches are as large as an update of Sync."""
    protocol = protocols.get(**rule) if rule else Pair(sparse=protocols.get(sparse), dense=protocols.get(dense))
    own = {"workers": 1, "batch": UPDATE} if family == "pipelines" else {}
    return Way(family=family, rule=protocol, hidden=tuple(hidden), **own | options)


_FILE = load(Path(__file__).with_suffix(".yaml"))
WAYS, UNSEEN, PARTS, ROWS, NOT_FITTED = (
    {name: _way(**way) for name, way in _FILE[part].items()}
    for part in ("fitted", "unseen", "parts", "rows", "controls")
)
NO_MOMENTUM: Mapping[str, Way] = {
    f"{name}, no momentum": replace(way, family="no momentum", beta1=0.0)
    for name, way in {**NOT_FITTED, **WAYS}.items()
    if name in ("sync", "gba", "async")
}


def _like(name: str, way: Mapping | None = None, **rule: int) -> Way:
    """That way with other options, of any length."""
    own = WAYS[name]
    return replace(own, upto=math.inf, rule=replace(own.rule, **rule), **(way or {}))


TO_DRAW: Mapping[str, Way] = {
    **{f"gba, {many} workers": _like("gba", {"workers": many}) for many in range(9, 32)},
    **{f"async, {many} workers": _like("async", {"workers": many}) for many in range(3, 32)},
    **{f"fr-easgd, every {gap}": _like("fr-easgd, every 16", {"far": gap}, every=gap) for gap in range(2, 16)},
    **{f"local-sgd, every {gap}": _like("local-sgd, every 16", {"far": gap}, every=gap) for gap in range(5, 16)},
    **{f"hybrid, tau {tau}": _like("hybrid, tau 1", tau=tau) for tau in (1, 2, 3, 4)},
    **{
        f"pipelined, {many}": _like("pipelined, 8", {"far": many - 1}, in_flight=many, readers=many, writers=many)
        for many in range(2, 9)
    },
}
"""Among what the blind check draws."""
EVERY = {**TO_DRAW, **NOT_FITTED, **WAYS, **UNSEEN, **NO_MOMENTUM, **PARTS, **ROWS}
BASES = {"pipelines": "sequential", "no momentum": "sync, no momentum", "rows alone": "rows, sync"}
"""Family -> what it is compared with, where that is not Sync."""
COLLAPSING = ("gba", "gba, 32 workers", "async", "async, 32 workers", "hybrid, tau 1", "hybrid, tau 4")
"""What is driven faster and faster until it collapses, next to Sync."""
FASTER = (1 / 3, 1, 3, 9, 27)
OWN = ("async", "local-sgd, every 16")
"""What is tuned itself, too."""
RATED = ("async", law.CONTROL)
RATES = (1 / 3, 1, 3)
"""Of Sync's, tried with those."""


def cases(lengths: Sequence[int], seeds: Iterable[int]) -> tuple[list[study.Case], list[study.Case]]:
    """What laws are fitted on, and what they are judged on: the longest runs, and ways that they have not seen."""
    *short, longest = lengths
    brief = [each for each in short if each <= BRIEF]
    bases = study.grid(way=NOT_FITTED, updates=lengths, rate=(1,), seed=seeds)
    bases += study.grid(way=("sync",), updates=brief, rate=(RATES[0], RATES[-1]), seed=seeds)
    known = study.grid(way=WAYS, updates=short, rate=(1,), seed=seeds)
    known += study.grid(way=RATED, updates=brief, rate=(RATES[0], RATES[-1]), seed=seeds)
    held_out = study.grid(way=WAYS, updates=(longest,), rate=(1,), seed=seeds)
    held_out += study.grid(way=UNSEEN, updates=short, rate=(1,), seed=seeds)
    return _within_reach([*bases, *known]), _within_reach(held_out)


def _within_reach(wanted: Iterable[study.Case]) -> list[study.Case]:
    return [each for each in wanted if each["updates"] <= EVERY[each["way"]].upto]


def pairs(ways: Iterable[str], lengths: Iterable[int], seeds: Iterable[int], rates=(1,)) -> list[study.Case]:
    """Cases of these ways and of their bases, as far as both are run."""
    ways = list(ways)
    both = dict.fromkeys([*(EVERY[way].base for way in ways), *ways])
    reach = max(EVERY[way].upto for way in ways)
    taught = _within_reach(study.grid(way=both, updates=lengths, rate=rates, seed=seeds))
    return [each for each in taught if each["updates"] <= reach]


@cache
def _cluster(workers: int, batch: int, hidden: tuple[int, ...], age: float | None) -> VirtualCluster:
    cluster = VirtualCluster(workers=workers, slowdown=SLOWDOWN)
    if age is None:
        return cluster
    workload = LightClicks(batch_size=batch, hidden=hidden)
    return cluster_of_age(workload, protocols.get("gba", size=UPDATE // batch), cluster, age, within=0.05).cluster


def job(way: str | Way, updates: int, rows: float, dense: float, seed: int) -> dict:
    """So many updates of Sync's size; each seed has clicks of its own."""
    chosen = EVERY[way] if isinstance(way, str) else way
    rates = {"rows": rows, "dense": dense}
    if chosen.slower:
        rates[chosen.slower] /= math.sqrt(WORKERS)
    optimisers = {"row_optimizer": Adam(lr=rates["rows"], beta1=chosen.beta1)}
    optimisers["dense_optimizer"] = Adam(lr=rates["dense"], beta1=chosen.beta1)
    world = {"world": seed, "days": 1, "drift": 0.0, "evaluation_samples": EVALUATED, "hidden": chosen.hidden}
    workload = LightClicks(samples=updates * UPDATE, batch_size=chosen.batch, **world, **optimisers)
    cluster = _cluster(chosen.workers, chosen.batch, chosen.hidden, chosen.age)
    return study.job(workload, chosen.rule, cluster, seed)


def tune(way: str, lengths: Iterable[int], seeds: Iterable[int], first: Mapping[str, Sequence[float]] = GRID):
    """The curves of a way's rates, length after length, each but the first from the best of the one before, and a third of it."""
    axes, curves, seeds = dict(first), [], not_judging(seeds, "rates are tried")

    def measured(updates: int, wanted: Sequence[study.Case]) -> list[float]:
        return [study.quality(run, "auc") for run in sweep([job(way, updates, **case) for case in wanted])]

    for updates in lengths:
        curve = study.climb(partial(measured, updates), axes, seeds if updates < BRIEF else seeds[:1])
        curves.append(curve.assign(way=way, updates=updates))
        axes = {name: (lr / 3, lr) if len(axes[name]) > 1 else (lr,) for name, lr in _best(curve).items()}
    return pd.concat(curves, ignore_index=True)


def _best(curve: pd.DataFrame) -> dict[str, float]:
    """The rates with the best mean."""
    return dict(zip(("rows", "dense"), curve.groupby(["rows", "dense"])["value"].mean().idxmax(), strict=True))


def best(curves: pd.DataFrame) -> Rates:
    return {case: _best(curve) for case, curve in curves.groupby(["way", "updates"], sort=False)}


def measure(places: Iterable[study.Case], rates: Rates) -> tuple[pd.DataFrame, list[Run]]:
    """A row for each run of the cases (way, updates, rate as a multiple of the length's best, seed), with its cost: the AUC
    of its base in the same case minus its own. Bases must be among the cases. A way without rates of its own has its
    base's."""

    def own(way: str, updates: int) -> Mapping[str, float]:
        keys = (way, updates), (EVERY[way].base, updates), ("sync", updates)
        return next(rates[case] for case in keys if case in rates)

    def case_job(way: str, updates: int, rate: float, seed: int) -> dict:
        return job(way, updates, seed=seed, **{name: rate * lr for name, lr in own(way, updates).items()})

    def about(run: Run, way: str, updates: int, rate: float, seed: int) -> study.Case:
        chosen = EVERY[way]
        figures = {"family": chosen.family, "protocol": chosen.rule.name, "distance": chosen.distance(run)}
        return figures | {
            "rows": rate * own(way, updates)["rows"],
            "larger": UPDATE / chosen.update,
            "base": chosen.base,
        }

    data, runs = study.run_grid(case_job, places, about, auc="auc", ceiling="auc_ceiling")
    data["cost"] = 0.0
    for base in data["base"].unique():
        theirs = study.baseline(data, "auc", ["updates", "rate", "seed"], way=base)
        data.loc[data["base"] == base, "cost"] = (theirs - data["auc"])[data["base"] == base]
    return data, runs


def by_length(data: pd.DataFrame, lengths: Sequence[int]) -> pd.DataFrame:
    """The runs of the three longest lengths as subjects that claims name: "gba, second longest"."""
    spans = dict(zip(reversed(lengths[-3:]), ("longest", "second longest", "third longest"), strict=False))
    longest = data[data["updates"].isin(spans)]
    return longest.assign(subject=longest["way"] + ", " + longest["updates"].map(spans))
