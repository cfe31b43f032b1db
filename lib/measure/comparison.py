"""`lib.compare`: protocols beside the first of them, with the same workload, cluster and seeds.

All are seen at the rates that the workload has, and each at a multiple of its own: of both optimisers' rates together, tried on a
seed that is kept for that and tried further until the best has worse ones on either side. Whatever differs is a difference of
runs with one seed, whose planted data, where there are some, are of that seed as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from lib.cluster.base import Cluster
from lib.errors import BadOption
from lib.measure.compared import Comparison
from lib.options.checked import Count, Share, checked
from lib.protocols import get
from lib.protocols.rule import Pair, Rule
from lib.results.run import Run
from lib.seeds import judging, tuning
from lib.training.given import resolve, taken
from lib.training.sweep import sweep
from lib.training.train import Options
from lib.workloads import Workload

STEP, MOST = 3.0, 3.0**4
"""From one multiple of the rates to the next, and the largest that is tried; the least is one over it."""
EVALUATIONS = 10
SETTINGS = {field.name for field in fields(Options)}
METRICS = ("auc", "accuracy", "f1", "mrr")
"""What is compared: the first of these that the workload is evaluated by."""


def compare(
    protocols: Sequence[Rule | str],
    workload: Workload | str,
    cluster: Cluster | str,
    *,
    seeds: int = 5,
    goal: float = 0.9,
    **options: Any,
) -> Comparison:
    """Train the workload under each protocol on the cluster, on so many seeds and in all cores; as `lib.train` takes them, an
    option going to whatever has it."""
    seeds = checked(Count, seeds, "compare", "seeds")
    goal = checked(Share, goal, "compare", "goal")
    trials = _trials(protocols, workload, cluster, options)
    best = _tuned(trials)
    places = [
        (name, rate, seed) for name in trials for rate in dict.fromkeys((1.0, best[name])) for seed in judging(seeds)
    ]
    runs = dict(zip(places, sweep([trials[name].job(rate, seed) for name, rate, seed in places]), strict=True))
    first = next(iter(trials))
    untrained = sweep([trials[first].untrained(seed) for seed in judging(seeds)])
    metric = _metric(untrained[0])
    rows = []
    for seed, blank in zip(judging(seeds), untrained, strict=True):
        start, end = blank.summary[metric], runs[first, best[first], seed].summary[metric]
        for name, rate in dict.fromkeys(place[:2] for place in places):
            run = runs[name, rate, seed]
            course = [(0.0, start), *run.history[["time", metric]].dropna().to_numpy()]
            reached = crossing(np.array(course), start + goal * (end - start))
            figures = {"metric": run.summary[metric], "seconds": math.nan if reached is None else float(reached[0])}
            per = {"samples/s": run.summary["qps"], "bytes/sample": run.summary["bytes"] / run.summary["samples"]}
            age = {"age": run.summary["staleness_mean"], "digest": run.digest}
            rows.append({"protocol": name, "rate": rate, "best": best[name], "seed": seed} | figures | per | age)
    return Comparison(pd.DataFrame(rows), metric, goal)


def _trials(
    protocols: Sequence[Rule | str], workload: Workload | str, cluster: Cluster | str, options: Mapping[str, Any]
) -> dict[str, _Trial]:
    """By the protocol's name, the first one first."""
    trials, used = {}, set()
    for protocol in protocols:
        has = taken(Options, workload, protocol, cluster, options)
        used |= has.keys()
        name = protocol if isinstance(protocol, str) else protocol.name
        made = resolve(Options, workload, protocol, cluster, has)
        settings = {name: value for name, value in has.items() if name.split(".")[0] in SETTINGS}
        trials[name] = _Trial(*made[:3], {"evaluations": EVALUATIONS, "trace": False} | settings)
    if len(trials) < 2:
        raise BadOption("compare: give two protocols at least; the others are held against the first")
    if lost := options.keys() - used:
        resolve(Options, workload, protocols[0], cluster, {name: options[name] for name in lost})
    return trials


@dataclass(frozen=True)
class _Trial:
    """One protocol on the workload and the cluster."""

    workload: Workload
    protocol: Rule | Pair
    cluster: Cluster
    settings: Mapping[str, Any]

    def job(self, rate: float, seed: int, **changed: Any) -> dict[str, Any]:
        workload = self.workload
        faster = {
            name: replace(own := getattr(workload, name), lr=own.lr * rate)
            for name in ("dense_optimizer", "row_optimizer")
        }
        world = {"world": seed} if hasattr(workload, "world") and not getattr(workload, "data", None) else {}
        given = {"workload": replace(workload, **faster, **world), "protocol": self.protocol, "cluster": self.cluster}
        return {**given, "seed": seed, **self.settings, **changed}

    def untrained(self, seed: int) -> dict[str, Any]:
        """A pass that trains nothing."""
        return self.job(1.0, seed, protocol=get("frozen"), samples=self.workload.batch_size, evaluations=1)


def _tuned(trials: Mapping[str, _Trial]) -> dict[str, float]:
    """Each protocol's best multiple of the rates."""
    found: dict[str, dict[float, float]] = {name: {} for name in trials}
    wanted = [(name, rate) for name in trials for rate in (1 / STEP, 1.0, STEP)]
    (seed,) = tuning(1)
    while wanted:
        runs = sweep([trials[name].job(rate, seed, evaluations=1) for name, rate in wanted])
        metric = _metric(runs[0])
        for (name, rate), run in zip(wanted, runs, strict=True):
            found[name][rate] = np.nan_to_num(run.summary[metric], nan=-math.inf)
        best = {name: max(tried, key=tried.get) for name, tried in found.items()}
        beside = [(name, rate * step) for name, rate in best.items() for step in (1 / STEP, STEP)]
        wanted = [
            (name, rate)
            for name, rate in beside
            if 1 / MOST <= rate <= MOST and not any(math.isclose(rate, other) for other in found[name])
        ]
    return best


def _metric(run: Run) -> str:
    if (found := next((name for name in METRICS if name in run.summary), None)) is None:
        raise BadOption(f"compare: the workload is evaluated by none of {', '.join(METRICS)}")
    return found


def crossing(course: np.ndarray, goal: float) -> np.ndarray | None:
    """Where a course, whose last column is the metric, is at the goal first, on straight lines between its rows: the other
    columns there. None where it never is; one that begins there is there in its first row."""
    above = course[:, -1] >= goal
    if not above.any():
        return None
    at = int(above.argmax())
    before, after = course[max(at - 1, 0)], course[at]
    share = (goal - before[-1]) / (after[-1] - before[-1]) if at else 1.0
    return (before + share * (after - before))[:-1]
