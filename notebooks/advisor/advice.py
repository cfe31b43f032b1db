"""`lib.advise`: which protocol for a workload and a cluster, and how sure.

Every protocol that can run there is run on a seed that is kept for trials, beside the first. Whoever processes samples so fast
that it could be the soonest at the goal is tried at other rates, as in a comparison; the soonest, each at its own best rate,
meet on two seeds more, and the soonest of these, with the soonest of those that lost nothing, are compared with the first on
all (`compare.py`). Then the few are timed where one thing is otherwise (`what_if.py`): what the choice depends on, and what it
costs there.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from lib import BadOption, Cluster, Job, Run, Workload, sweep
from lib.options.checked import Count, Share, checked
from lib.protocols import ALL
from lib.seeds import tuning
from lib.training.sweep import SweepFailed
from notebooks.advisor import what_if
from notebooks.advisor.compare import best_rate, check_options, compare_trials, measure, tune
from notebooks.advisor.comparison import Comparison, Priority
from notebooks.advisor.trial import Trial, metric_of, seconds_to

CLOCK = 0.03
"""What the modelled clock is off by at its best (`94_fidelity`): nearer than that nobody is sooner."""
CLOSE = 0.001
"""Of the metric: who ends no further below the first has lost nothing that is counted."""
FEW = 100
"""Updates below which a run says little of longer ones (`02_regime`)."""
FRUGAL = 0.8
"""Of the fewest samples that anybody needed to the goal so far: who could not be the soonest with so few is not tried at other
rates. The least that was seen is 0.84 of the first's (15 conditions that nobody chose, 30 protocols at all rates)."""
LEAST = 64_000
"""Samples of a run, unless they or a profile are given: as many, or FEW batches of every worker; never more than a pass."""
HEAT = 2
"""Seeds on which twice as many are compared as on all."""


@dataclass(frozen=True, eq=False)
class Advice:
    """What was tried once, and what was compared."""

    tried: pd.DataFrame
    """A row for each protocol that can run there, the soonest first: the `rate`, times the workload's, at which it ended
    highest; `time` to the goal over the first's and `difference` in the metric, both of that single run; `as`: the protocol
    whose run it was to the last bit."""
    refused: dict[str, str]
    """Protocols that cannot run there, and why."""
    comparison: Comparison
    what_if: pd.DataFrame
    """Seconds to the goal of each that was compared (columns), where one thing is otherwise (rows)."""
    updates: float
    """Of a run: samples over those of a batch of every worker."""

    def doubts(self) -> list[str]:
        """A sentence for each reason not to trust it."""
        sentences = []
        if self.updates < FEW:
            sentences.append(
                f"a run here is {self.updates:,.0f} batches of every worker; below {FEW} whoever updates most often is the "
                f"soonest, and who loses what later is not seen: give {math.ceil(FEW / self.updates)} times the samples"
            )
        choice, compared = self.comparison.choice(), set(self.comparison.runs["protocol"])
        once = self.tried.set_index("protocol")
        sooner = once[(once["time"] < once.loc[choice, "time"]) & ~once["as"].isin(compared)]
        if len(sooner):
            sentences.append(
                f"sooner than {choice} on the seed of the trials, and not compared on all: {', '.join(sooner.index)}"
            )
        return sentences

    def depends_on(self, priority: Priority = "time") -> list[str]:
        """Say for each condition whether the choice stays the fastest, and what it costs if not; one sentence if it always
        stays."""
        choice, sentences, ahead = self.comparison.choice(priority), [], []
        for where, row in self.what_if.iterrows():
            best, more, rest = row.idxmin(), row[choice] / row.min() - 1, row.drop(choice).dropna()
            if more >= CLOCK:
                sentences.append(f"where {where}: {best}; {choice} would take {100 * more:.0f} % longer")
                continue
            ahead.append(rest.min() / row[choice] if len(rest) else math.inf)
            beside = f"{ahead[-1]:.2f} times as soon as {rest.idxmin()}" if len(rest) else "alone at the goal"
            sentences.append(f"where {where}: {choice} still, {beside}")
        if 1 < len(sentences) == len(ahead):
            least = (
                f"{min(ahead):.2f} times as soon as the next at least" if min(ahead) < math.inf else "alone at the goal"
            )
            return [
                f"in all {len(sentences)} places that were asked, with other workers, networks and steps: {choice}, {least}"
            ]
        return sentences


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
    """Try every registered protocol for workers, and compare the `keep` best with the `first`; options as for `compare`."""
    keep, seeds = checked(Count, keep, "advise", "keep"), checked(Count, seeds, "advise", "seeds")
    goal = checked(Share, goal, "advise", "goal")
    names = [
        first,
        *(name for name, kind in ALL.items() if kind.family != "pipeline" and name not in (first, "frozen")),
    ]
    check_options(options, names, workload, cluster)
    (seed,) = tuning(1)
    present = Trial.of(workload, first, cluster, options)
    batch = _batch_of_all(present, seed)
    if not options.keys() & {"samples", "profile"}:
        options["samples"] = min(present.workload.samples, max(LEAST, FEW * batch))
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
    runs = {name: {1.0: run} for name, run in once.items()} | tune({first: trials[first]})
    start, end = blank.summary[metric], runs[first][best_rate(runs[first])].summary[metric]
    until = partial(seconds_to, metric=metric, start=start, goal=start + goal * (end - start))
    lossless = [name for name in once if once[name].summary[metric] >= once[first].summary[metric] - CLOSE]
    safe = min(
        (name for name in lossless if until(once[name]) > 0 and name != first),
        key=lambda name: until(once[name]),
        default=first,
    )
    able = dict.fromkeys([first, *_could_be_first(runs, until), safe])
    runs |= tune({name: trials[name] for name in able})
    own = {name: best_rate(tried) for name, tried in runs.items()}
    tried = _table({name: (rate, runs[name][rate]) for name, rate in own.items()}, first, metric, until)
    soonest = [name for name in dict.fromkeys(tried.dropna()["as"]) if name in able and name != first]
    heat = dict.fromkeys([first, *soonest[: 2 * keep], safe])
    heats = measure(
        {name: trials[name] for name in heat}, {name: (own[name],) for name in heat}, min(HEAT, seeds), goal
    )
    order = _mean_seconds(heats).drop(first).sort_values(na_position="last").index
    few = {name: trials[name] for name in dict.fromkeys([first, *order[:keep], safe])}
    comparison = compare_trials(few, seeds, goal, own)
    updates = once[first].summary["samples"] / batch
    return Advice(tried, refused, comparison, what_if.seconds(few, _mean_seconds(comparison), seed), updates)


def _batch_of_all(trial: Trial, seed: int) -> int:
    """Samples of a batch of every worker."""
    return Job.of(**trial.job(1.0, seed)).staged_run.plan.workers * trial.workload.batch_size


def _once(trials: Mapping[str, Trial], seed: int) -> tuple[Run, dict[str, Run], dict[str, str]]:
    """Run the workload once without training and once under each protocol; return what failed with the reason."""
    first = next(iter(trials))
    jobs = [trials[first].untrained(seed), *(trial.job(1.0, seed) for trial in trials.values())]
    try:
        blank, *runs = sweep(jobs)
    except SweepFailed as failed:  # there may be too few samples for who mixes seldom
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
        return []  # the first learnt nothing that anybody could be sooner at
    fewest = np.nanmin([found * runs[name][rate].summary["qps"] for (name, rate), found in seconds.items()])
    soonest = np.nanmin([*seconds.values()])
    return [name for name in runs if FRUGAL * fewest / runs[name][1.0].summary["qps"] < soonest]


def _table(
    found: Mapping[str, tuple[float, Run]], first: str, metric: str, until: Callable[[Run], float]
) -> pd.DataFrame:
    """What was tried: of each the run at its own rate, beside the first's."""
    ours = found[first][1]
    seconds, same = until(ours) or math.nan, {}  # 0: it learnt nothing that could be sooner
    rows = [
        {
            "protocol": name,
            "rate": rate,
            "time": until(run) / seconds,
            "difference": run.summary[metric] - ours.summary[metric],
            "as": same.setdefault((run.digest, run.summary["virtual_seconds"], run.summary["wall_seconds"]), name),
        }
        for name, (rate, run) in found.items()
    ]
    return pd.DataFrame(rows).sort_values("time", kind="stable").reset_index(drop=True)


def _mean_seconds(found: Comparison) -> pd.Series:
    """Mean seconds to the goal of each protocol at its own rate; nan if a seed does not reach it."""
    return found.paired().groupby("protocol", sort=False)["seconds"].agg(lambda of: of.mean(skipna=False))
