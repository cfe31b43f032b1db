"""`lib.advise`: which protocol for a workload and a cluster, and how sure.

Every protocol that can run there runs once, on a seed that is kept for tuning. Those that process samples fast enough to be the
first at the goal, and the best of each family, are tuned as in a comparison. The fastest of these run on two more seeds, and
the fastest of those, with the best of each family, are compared with the first protocol on all seeds (`compare.py`). Timing
runs then show what the choice depends on (`what_if.py`)."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lib import BadOption, Cluster, Job, Run, VirtualCluster, Workload, sweep
from lib.options.checked import Count, Share, checked
from lib.protocols import ALL
from lib.seeds import judging, tuning
from lib.training.sweep import SweepFailed
from notebooks import compare_figure, study
from notebooks.advisor import what_if
from notebooks.advisor.compare import MOST, best_rate, check_options, measure, tune
from notebooks.advisor.comparison import CLOCK, Comparison
from notebooks.advisor.trial import FEW, Trial, metric_of, seconds_to, with_samples

CLOSE = 0.001
"""Of the metric: a protocol that ends no further below the first has lost nothing that is counted."""
FRUGAL = 0.8
"""A protocol that would be too slow even with this share of the fewest samples that any needed so far is not tuned. The least
that was seen is 0.84 of the first's (15 conditions drawn at random, 30 protocols at all rates)."""
HEAT = 2
"""Seeds on which twice as many are compared as on all."""
STAGES = (
    "every protocol once",
    "learning rate of the first",
    "learning rates of the fast ones",
    "two more seeds",
    "all seeds",
    "other clusters",
)


@dataclass(frozen=True, eq=False)
class Advice:
    """An answer, with what it rests on."""

    assumed: dict[str, str]
    """What the runs assume, in words; what the caller did not say is marked as a default."""
    tried: pd.DataFrame
    """A row for each protocol that can run there, the fastest first: the `rate`, times the workload's, at which it ended highest;
    `time` to the goal over the first's and `difference` in the metric, both of that single run; `as`: the protocol whose run was
    identical."""
    refused: dict[str, str]
    """Protocols that cannot run there, and why."""
    comparison: Comparison
    what_if: pd.DataFrame
    """Seconds to the goal of each that was compared (columns) on clusters that differ in one thing (rows)."""
    updates: float
    """Of a run: samples over those of a batch of every worker."""

    def doubts(self) -> list[str]:
        """A sentence for each reason not to trust it, the gravest first."""
        sentences, choice = [], self.comparison.choice()
        if self.updates < FEW:
            sentences.append(
                f"A run is only {self.updates:,.0f} updates (batches of every worker). Below {FEW}, the protocol that updates "
                f"most often looks best, and later losses are not seen: give {math.ceil(FEW / self.updates)} times the samples."
            )
        once = self.tried.set_index("protocol")
        faster = once[(once["time"] < once.loc[choice, "time"]) & ~once["as"].isin(self.comparison.runs["protocol"])]
        if len(faster):
            sentences.append(
                f"Faster than {choice} on the tuning seed, but not compared on all seeds: {', '.join(faster.index)}."
            )
        best = self.comparison.runs.drop_duplicates("protocol").set_index("protocol")["best"]
        if edge := [name for name, rate in best.items() if not MOST > rate > 1 / MOST]:
            sentences.append(f"The best learning rate is the last that is tried: {', '.join(edge)}.")
        return sentences

    def depends_on(self) -> list[str]:
        """Whether the choice stays the fastest without a measurable loss on each other cluster, and what it costs if not; one
        sentence if it always stays."""
        choice, table, sentences, ahead = self.comparison.choice(), self.comparison.summary(), [], []
        lost = {name for names in table.loc[table["difference, high"] < 0, "protocol"] for name in names.split(" = ")}
        for where, row in self.what_if.drop(columns=lost - {choice}, errors="ignore").iterrows():
            best, more, rest = row.idxmin(), row[choice] / row.min() - 1, row.drop(choice).dropna()
            if more >= CLOCK:
                sentences.append(f"If {where}: {best} is the fastest, and {choice} takes {100 * more:.0f} % longer.")
                continue
            ahead.append(rest.min() / row[choice] if len(rest) else math.inf)
            than = f"{ahead[-1]:.2f}x as fast as {rest.idxmin()}" if len(rest) else "the only one at the goal"
            sentences.append(f"If {where}: {choice} stays the fastest, {than}.")
        if 1 < len(sentences) == len(ahead):
            least = f"at least {min(ahead):.2f}x as fast as the next" if min(ahead) < math.inf else "alone at the goal"
            return [
                f"On all {len(sentences)} clusters that were simulated, with other workers, networks and steps, {choice} stays "
                f"the fastest, {least}."
            ]
        return sentences

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        rows = self.comparison.summary().replace({np.nan: None}).to_dict("records")
        names = {"without_loss": self.comparison.choice(), "fastest": self.comparison.fastest()["protocol"]}
        text = {"answer": self.comparison.answer(), "depends_on": self.depends_on(), "doubts": self.doubts()}
        more = {"refused": self.refused, "what_if": self.what_if.replace({np.nan: None}).to_dict("index")}
        tried = self.tried.replace({np.nan: None}).to_dict("records")
        return {"assumed": self.assumed, **names, **text, "compared": rows, "tried": tried, **more}


def advise(
    workload: Workload | str,
    cluster: Cluster | str,
    *,
    first: str = "sync",
    keep: int = 4,
    seeds: int = 5,
    goal: float = 0.9,
    **options,
) -> Advice:
    """Try every registered protocol for workers. Compare the `keep` fastest and the best of each family with the `first`;
    options as for `compare`."""
    keep, seeds = checked(Count, keep, "advise", "keep"), checked(Count, seeds, "advise", "seeds")
    goal = checked(Share, goal, "advise", "goal")
    names = [
        first,
        *(name for name, kind in ALL.items() if kind.family != "pipeline" and name not in (first, "frozen")),
    ]
    check_options(options, names, workload, cluster)
    (seed,) = tuning(1)
    given, options = options, with_samples(workload, first, cluster, options)
    trials, refused = {}, {}
    for name in names:
        try:
            Job.of(**(trial := Trial.of(workload, name, cluster, options)).job(1.0, seed))
        except BadOption as error:
            if name == first:
                raise
            refused[name] = str(error)
        else:
            trials[name] = trial
    blank, once, lost = _once(trials, seed)
    refused |= lost
    metric = metric_of(blank)
    runs = {name: {1.0: run} for name, run in once.items()} | tune({first: trials[first]}, _stage(2))
    start, end = (study.quality(run, metric) for run in (blank, runs[first][best_rate(runs[first])]))
    until = partial(seconds_to, metric=metric, start=start, goal=start + goal * (end - start))
    ends = {name: study.quality(run, metric) for name, run in once.items()}
    lossless = [name for name in once if ends[name] >= ends[first] - CLOSE]
    safe = min(
        (name for name in lossless if until(once[name]) > 0 and name != first),
        key=lambda name: until(once[name]),
        default=first,
    )
    fast = pd.Series({name: until(run) for name, run in once.items()}).dropna().sort_values().index
    able = dict.fromkeys([first, *_could_be_first(runs, until), *_first_of_family(fast), safe])
    runs |= tune({name: trials[name] for name in able}, _stage(3))
    own = {name: best_rate(tried) for name, tried in runs.items()}
    tried = _table({name: (rate, runs[name][rate]) for name, rate in own.items()}, first, metric, until)
    order = [name for name in dict.fromkeys(tried.dropna()["as"]) if name in able and name != first]
    heat = dict.fromkeys([first, *order[: 2 * keep], *_first_of_family(order), safe])
    heats = measure(
        {name: trials[name] for name in heat},
        {name: (own[name],) for name in heat},
        judging(min(HEAT, seeds)),
        goal,
        _stage(4),
    )
    order = _mean_seconds(heats).drop(first).sort_values(na_position="last").index
    few = {name: trials[name] for name in dict.fromkeys([first, *order[:keep], *_first_of_family(order), safe])}
    comparison = measure(few, {name: (own[name],) for name in few}, judging(seeds), goal, _stage(5))
    conditions = what_if.seconds(few, _mean_seconds(comparison), seed, _stage(6))
    updates = once[first].summary["samples"] / trials[first].update
    return Advice(assumptions(trials[first], given), tried, refused, comparison, conditions, updates)


def assumptions(trial: Trial, options: Mapping[str, Any]) -> dict[str, str]:
    """What the runs of a trial assume, in words; what the options do not say is marked as a default."""

    def marked(text: str, *names: str) -> str:
        return text if options.keys() & {*names} else f"{text} (default)"

    workload, cluster, data = trial.workload, trial.cluster, getattr(trial.workload, "data", None)
    model = marked(f"{workload.name} on {data or 'synthetic data'}", "workload", "data", "model")
    found = {
        "model": f"{model}, batch {marked(str(workload.batch_size), 'batch_size')}",
        "a run": marked(
            f"{trial.samples:,} samples, {trial.samples / trial.update:,.0f} updates", "samples", "profile"
        ),
    }
    if not isinstance(cluster, VirtualCluster):
        return found | {"cluster": f"{cluster.name}: time is measured, not simulated"}
    step, bits = cluster.worker.seconds(workload.work()), 8e-9 * cluster.worker.bandwidth
    slow = [speed for speed in cluster.speeds if speed < 1]
    workers = marked(f"{trial.update // workload.batch_size}", "workers")
    uneven = f", of which {len(slow)} take {1 / min(slow):.3g} times as long" if slow else ""
    slowdown = options.get("slowdown", cluster.slowdown.name)
    return found | {
        "workers": workers + uneven,
        "a step": marked(f"{1e3 * step:.3g} ms", "worker", "worker.flops", "worker.launch", "model"),
        "network": marked(f"{bits:.3g} Gbit/s", "network", "worker", "worker.bandwidth"),
        "slowdown": f"{slowdown}" if "slowdown" in options else "none (default)",
    }


def _stage(number: int) -> str:
    """A stage's label in the progress line."""
    return f"stage {number} of {len(STAGES)}: {STAGES[number - 1]}"


def _first_of_family(names: Iterable[str]) -> list[str]:
    """The first of these names in each family of `protocols.yaml`."""
    names = list(names)
    firsts = (next((name for name in names if name in each["members"]), None) for each in compare_figure.families())
    return [name for name in firsts if name]


def _once(trials: Mapping[str, Trial], seed: int) -> tuple[Run, dict[str, Run], dict[str, str]]:
    """Run the workload once without training and once under each protocol; return what failed with the reason."""
    first = next(iter(trials))
    jobs = [trials[first].untrained(seed), *(trial.job(1.0, seed) for trial in trials.values())]
    try:
        blank, *runs = sweep(jobs, label=_stage(1))
    except SweepFailed as failed:  # there may be too few samples for a protocol that mixes seldom
        blank, *runs = failed.runs
        if blank is None or runs[0] is None:
            raise
        lost = [name for name, run in zip(trials, runs, strict=True) if run is None]
        why = dict(zip(lost, str(failed).splitlines()[1:], strict=True))
    else:
        why = {}
    return blank, {name: run for name, run in zip(trials, runs, strict=True) if run is not None}, why


def _could_be_first(runs: Mapping[str, Mapping[float, Run]], until: Callable[[Run], float]) -> list[str]:
    """Protocols fast enough to reach the goal first if they need as few samples as the best so far, at their own rates."""
    seconds = {(name, rate): until(run) for name, tried in runs.items() for rate, run in tried.items()}
    if not any(found > 0 for found in seconds.values()):
        return []  # the first learnt nothing
    fewest = np.nanmin([found * runs[name][rate].summary["qps"] for (name, rate), found in seconds.items()])
    soonest = np.nanmin([*seconds.values()])
    return [name for name in runs if FRUGAL * fewest / runs[name][1.0].summary["qps"] < soonest]


def _table(
    found: Mapping[str, tuple[float, Run]], first: str, metric: str, until: Callable[[Run], float]
) -> pd.DataFrame:
    """What was tried: each protocol's run at its own rate, compared with the first's."""
    ours = found[first][1]
    seconds, same = until(ours) or math.nan, {}  # 0: it learnt nothing
    rows = [
        {
            "protocol": name,
            "rate": rate,
            "time": until(run) / seconds,
            "difference": study.quality(run, metric) - study.quality(ours, metric),
            "as": same.setdefault((run.digest, run.summary["virtual_seconds"], run.summary["wall_seconds"]), name),
        }
        for name, (rate, run) in found.items()
    ]
    return pd.DataFrame(rows).sort_values("time", kind="stable").reset_index(drop=True)


def _mean_seconds(found: Comparison) -> pd.Series:
    """Mean seconds to the goal of each protocol at its own rate; nan if a seed does not reach it."""
    return found.paired().groupby("protocol", sort=False)["seconds"].agg(lambda of: of.mean(skipna=False))
