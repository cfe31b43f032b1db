"""`lib.advise`: which protocol for a workload and a cluster, and how sure.

Every protocol that can run there is run once, on a seed that is kept for trials, beside the first; the few that were soonest at
the goal, and the soonest of those that lost nothing, are compared with it on seeds of their own
(`lib/measure/comparison.py`). Who was left out by a single run may be as good as the last that was not: the table of all says by
how much it was behind. Then the few are timed where one thing is otherwise (`lib/measure/elsewhere.py`): what the choice hangs
on, and what it costs there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lib.cluster.base import Cluster
from lib.errors import BadOption
from lib.measure import elsewhere
from lib.measure.compared import Comparison, Priority
from lib.measure.comparison import compared, told
from lib.measure.trial import Trial, metric_of, seconds_to
from lib.options.checked import Count, checked
from lib.protocols import ALL
from lib.seeds import tuning
from lib.training.sweep import SweepFailed, sweep
from lib.training.train import Job
from lib.workloads import Workload

CLOCK = 0.03
"""What the modelled clock is off by at its best (`94_fidelity`): nearer than that nobody is sooner."""
CLOSE = 0.001
"""Of the metric: who ends no further below the first has lost nothing that is counted."""
FEW = 100
"""Updates below which a run says little of longer ones (`02_regime`)."""


@dataclass(frozen=True, eq=False)
class Advice:
    """What was tried once, and what was compared."""

    tried: pd.DataFrame
    """A row for each protocol that can run there, the soonest first: `time` to the goal over the first's and `difference` in the
    metric, both of a single run at the workload's own rates; `as`: the protocol whose run it was to the last bit."""
    refused: dict[str, str]
    """Protocols that cannot run there, and why."""
    comparison: Comparison
    elsewhere: pd.DataFrame
    """Seconds to the goal of each that was compared (columns), where one thing is otherwise (rows)."""
    updates: float
    """Of a run: samples over those of a batch of every worker."""

    def doubts(self) -> list[str]:
        """A sentence for each reason not to trust it."""
        compared, told = set(self.comparison.runs["protocol"]), []
        if self.updates < FEW:
            told.append(
                f"a run here is {self.updates:,.0f} batches of every worker; below {FEW} whoever updates most often is the "
                f"soonest, and who loses what later is not seen: give {math.ceil(FEW / self.updates)} times the samples"
            )
        sooner = self.tried[(self.tried["time"] < 1) & ~self.tried["as"].isin(compared)]
        if left := [*sooner["protocol"]]:
            told.append(f"sooner than {self.comparison.first} in the table of all, and not compared: {', '.join(left)}")
        return told

    def hangs(self, priority: Priority = "time") -> list[str]:
        """A sentence for each condition: whether the choice is the soonest there too, and what it costs if not; one for all
        where it always is."""
        choice, told, ahead = self.comparison.choice(priority), [], []
        for where, row in self.elsewhere.iterrows():
            best, more, rest = row.idxmin(), row[choice] / row.min() - 1, row.drop(choice).dropna()
            if more >= CLOCK:
                told.append(f"where {where}: {best}; {choice} would take {100 * more:.0f} % longer")
                continue
            ahead.append(rest.min() / row[choice] if len(rest) else math.inf)
            beside = f"{ahead[-1]:.2f} times as soon as {rest.idxmin()}" if len(rest) else "alone at the goal"
            told.append(f"where {where}: {choice} still, {beside}")
        if 1 < len(told) == len(ahead):
            least = (
                f"{min(ahead):.2f} times as soon as the next at least" if min(ahead) < math.inf else "alone at the goal"
            )
            return [
                f"in all {len(told)} places that were asked, with other workers, networks and steps: {choice}, {least}"
            ]
        return told


def advise(
    workload: Workload | str,
    cluster: Cluster | str,
    *,
    first: str = "sync",
    keep: int = 3,
    seeds: int = 5,
    goal: float = 0.9,
    **options: Any,
) -> Advice:
    """Try every registered protocol for workers, and compare the `keep` best with the `first`; options as for `compare`."""
    keep = checked(Count, keep, "advise", "keep")
    names = [
        first,
        *(name for name, kind in ALL.items() if kind.family != "pipeline" and name not in (first, "frozen")),
    ]
    told(options, names, workload, cluster)
    (seed,) = tuning(1)
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
    jobs = [trials[first].untrained(seed), *(trial.job(1.0, seed) for trial in trials.values())]
    try:
        blank, *runs = sweep(jobs)
    except SweepFailed as failed:  # there may be too few samples for who mixes seldom
        blank, *runs = failed.runs
        if blank is None or runs[0] is None:
            raise
        lost = [name for name, run in zip(trials, runs, strict=True) if run is None]
        refused |= dict(zip(lost, str(failed).splitlines()[1:], strict=True))
    metric, found = metric_of(blank), {name: run for name, run in zip(trials, runs, strict=True) if run is not None}
    start, end = blank.summary[metric], found[first].summary[metric]
    there = start + goal * (end - start)
    seconds, same = (
        seconds_to(found[first], metric, start, there) or math.nan,
        {},
    )  # 0: it learnt nothing that could be sooner
    rows = [
        {
            "protocol": name,
            "time": seconds_to(run, metric, start, there) / seconds,
            "difference": run.summary[metric] - end,
            "as": same.setdefault((run.digest, run.summary["virtual_seconds"], run.summary["wall_seconds"]), name),
        }
        for name, run in found.items()
    ]
    tried = pd.DataFrame(rows).sort_values("time", kind="stable").reset_index(drop=True)
    arrived = tried.dropna()
    best = [name for name in dict.fromkeys(arrived["as"]) if name != first]
    safe = [name for name in dict.fromkeys(arrived[arrived["difference"] >= -CLOSE]["as"]) if name != first]
    few = {name: trials[name] for name in dict.fromkeys([first, *best[:keep], *safe[:1]])}
    comparison = compared(few, seeds, goal)
    own = comparison.paired()
    known = own.groupby("protocol")["seconds"].agg(lambda found: found.mean(skipna=False))
    plan = Job.of(**trials[first].job(1.0, seed)).course.plan
    updates = found[first].summary["samples"] / (plan.workers * trials[first].workload.batch_size)
    return Advice(tried, refused, comparison, elsewhere.seconds(few, known, seed), updates)
