"""`lib.compare`: protocols beside the first of them, with the same workload, cluster and seeds.

All are seen at the rates that the workload has, and each at a multiple of its own: of both optimisers' rates together, tried on a
seed that is kept for that and tried further until the best has worse ones on either side. Whatever differs is a difference of
runs with one seed, whose planted data, where there are some, are of that seed as well.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib import BadOption, Cluster, Pair, Rule, Run, Workload, sweep
from lib.options.checked import Count, Share, checked
from lib.seeds import judging, tuning
from lib.training.resolve import applicable, resolve
from lib.training.train import Options
from notebooks.advisor.comparison import Comparison
from notebooks.advisor.trial import Trial, metric_of, seconds_to

STEP, MOST = 3.0, 3.0**4
"""From one multiple of the rates to the next, and the largest that is tried; the least is one over it."""


def compare(
    protocols: Sequence[Rule | Pair | str],
    workload: Workload | str,
    cluster: Cluster | str,
    *,
    seeds: int = 5,
    goal: float = 0.9,
    **options: Any,
) -> Comparison:
    """Train the workload under each protocol on the cluster, on so many seeds and in all cores; as `lib.train` takes them, an
    option going to whatever has it."""
    of = {each if isinstance(each, str) else each.name: each for each in protocols}
    if len(of) < 2:
        raise BadOption("compare: give two protocols at least; the others are held against the first")
    check_options(options, of.values(), workload, cluster)
    return compare_trials({name: Trial.of(workload, each, cluster, options) for name, each in of.items()}, seeds, goal)


def compare_trials(
    trials: Mapping[str, Trial], seeds: int, goal: float, own: Mapping[str, float] | None = None
) -> Comparison:
    """The same of protocols that are settled, by their names, and at multiples of their `own` where these are known."""
    seeds = checked(Count, seeds, "compare", "seeds")
    goal = checked(Share, goal, "compare", "goal")
    own = own or {name: best_rate(runs) for name, runs in tune(trials, evaluations=1).items()}
    return measure(trials, {name: (own[name], 1.0) for name in trials}, seeds, goal)


def measure(trials: Mapping[str, Trial], rates: Mapping[str, Sequence[float]], seeds: int, goal: float) -> Comparison:
    """Each at its multiples of the rates, of which the first is its own, on so many seeds."""
    cases = [(name, rate, seed) for name in trials for rate in dict.fromkeys(rates[name]) for seed in judging(seeds)]
    runs = dict(zip(cases, sweep([trials[name].job(rate, seed) for name, rate, seed in cases]), strict=True))
    first = next(iter(trials))
    untrained = sweep([trials[first].untrained(seed) for seed in judging(seeds)])
    metric = metric_of(untrained[0])
    rows = []
    for seed, blank in zip(judging(seeds), untrained, strict=True):
        start, end = blank.summary[metric], runs[first, rates[first][0], seed].summary[metric]
        for name, rate in dict.fromkeys(case[:2] for case in cases):
            run = runs[name, rate, seed]
            figures = {"metric": run.summary[metric]}
            figures["seconds"] = seconds_to(run, metric, start, start + goal * (end - start))
            per = {"samples/s": run.summary["qps"], "bytes/sample": run.summary["bytes"] / run.summary["samples"]}
            age = {"age": run.summary["staleness_mean"], "digest": run.digest}
            rows.append({"protocol": name, "rate": rate, "best": rates[name][0], "seed": seed} | figures | per | age)
    return Comparison(pd.DataFrame(rows), metric, goal)


def check_options(
    options: Mapping[str, Any], protocols: Iterable[Rule | Pair | str], workload: Any, cluster: Any
) -> None:
    """Say which option nothing of any run has."""
    protocols = list(protocols)
    lost = options.keys() - {
        name for each in protocols for name in applicable(Options, workload, each, cluster, options)
    }
    if lost:
        resolve(Options, workload, protocols[0], cluster, {name: options[name] for name in lost})


def tune(trials: Mapping[str, Trial], **changed: Any) -> dict[str, dict[float, Run]]:
    """Each protocol's runs by the multiple of the rates, on the seed that is kept for that, with other options where some are
    `changed`."""
    found: dict[str, dict[float, Run]] = {name: {} for name in trials}
    wanted = [(name, rate) for name in trials for rate in (1 / STEP, 1.0, STEP)]
    (seed,) = tuning(1)
    while wanted:
        runs = sweep([trials[name].job(rate, seed, **changed) for name, rate in wanted])
        for (name, rate), run in zip(wanted, runs, strict=True):
            found[name][rate] = run
        beside = [(name, best_rate(tried) * step) for name, tried in found.items() for step in (1 / STEP, STEP)]
        wanted = [
            (name, rate)
            for name, rate in beside
            if 1 / MOST <= rate <= MOST and not any(math.isclose(rate, other) for other in found[name])
        ]
    return found


def best_rate(tried: Mapping[float, Run]) -> float:
    """The multiple at which a protocol ends highest."""
    metric = metric_of(next(iter(tried.values())))
    return max(tried, key=lambda rate: np.nan_to_num(tried[rate].summary[metric], nan=-math.inf))
