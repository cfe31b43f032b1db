"""`lib.compare`: train under several protocols with the same workload, cluster and seeds, and compare them with the first.

Each protocol runs at the best multiple of its workload's learning rates: of both optimisers' rates together, tried on a seed
that is kept for tuning, and tried further until the best has worse ones on either side. `compare` also shows all at one rate.
Differences are of runs with one seed; synthetic data are of that seed as well."""

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
from notebooks import study
from notebooks.advisor.comparison import Comparison
from notebooks.advisor.trial import Trial, metric_of, seconds_to, with_samples

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
    """Train the workload under each protocol on the cluster, on so many seeds and in all cores. Options are those of `lib.train`;
    each goes to whatever has it."""
    by_name = {each if isinstance(each, str) else each.name: each for each in protocols}
    if len(by_name) < 2:
        raise BadOption("compare: give two protocols at least; the others are compared with the first")
    check_options(options, by_name.values(), workload, cluster)
    seeds = checked(Count, seeds, "compare", "seeds")
    goal = checked(Share, goal, "compare", "goal")
    options = with_samples(workload, next(iter(by_name.values())), cluster, options)
    trials = {name: Trial.of(workload, each, cluster, options) for name, each in by_name.items()}
    own = {name: best_rate(runs) for name, runs in tune(trials, "learning rates").items()}
    return measure(trials, {name: (own[name], 1.0) for name in trials}, judging(seeds), goal, f"{seeds} seeds")


def measure(
    trials: Mapping[str, Trial],
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    goal: float,
    label: str = "",
) -> Comparison:
    """Compare the trials at their multiples of the rates, of which the first is a trial's own, on the seeds."""
    cases = [(name, rate, seed) for name in trials for rate in dict.fromkeys(rates[name]) for seed in seeds]
    jobs = [trials[name].job(rate, seed) for name, rate, seed in cases]
    runs = dict(zip(cases, sweep(jobs, label=label), strict=True))
    first = next(iter(trials))
    untrained = sweep([trials[first].untrained(seed) for seed in seeds], label=label)
    metric = metric_of(untrained[0])
    rows = []
    for seed, blank in zip(seeds, untrained, strict=True):
        start, end = (study.quality(run, metric) for run in (blank, runs[first, rates[first][0], seed]))
        for name, rate in dict.fromkeys(case[:2] for case in cases):
            run = runs[name, rate, seed]
            figures = {"metric": study.quality(run, metric)}
            figures["seconds"] = seconds_to(run, metric, start, start + goal * (end - start))
            per = {"samples/s": run.summary["qps"], "bytes/sample": run.summary["bytes"] / run.summary["samples"]}
            age = {"age": run.summary["staleness_mean"], "digest": run.digest}
            rows.append({"protocol": name, "rate": rate, "best": rates[name][0], "seed": seed} | figures | per | age)
    return Comparison(pd.DataFrame(rows), metric, goal)


def check_options(
    options: Mapping[str, Any], protocols: Iterable[Rule | Pair | str], workload: Any, cluster: Any
) -> None:
    """Refuse an option that nothing of any run has."""
    protocols = list(protocols)
    lost = options.keys() - {
        name for each in protocols for name in applicable(Options, workload, each, cluster, options)
    }
    if lost:
        resolve(Options, workload, protocols[0], cluster, {name: options[name] for name in lost})


def tune(trials: Mapping[str, Trial], label: str = "") -> dict[str, dict[float, Run]]:
    """Each protocol's runs by the multiple of the rates, on the seed that is kept for tuning."""
    found: dict[str, dict[float, Run]] = {name: {} for name in trials}
    wanted = [(name, rate) for name in trials for rate in (1 / STEP, 1.0, STEP)]
    (seed,) = tuning(1)
    while wanted:
        runs = sweep([trials[name].job(rate, seed) for name, rate in wanted], label=label)
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
    return max(tried, key=lambda rate: np.nan_to_num(study.quality(tried[rate], metric), nan=-math.inf))
