"""`lib.advise`: which protocol for a workload and a cluster, and how sure.

Every protocol that can run there is run once, on a seed that is kept for trials, beside the first; the few that were soonest at
the goal are compared with it on seeds of their own (`lib/measure/comparison.py`). Who was left out by a single run may be as good
as the last that was not: the table of all says by how much it was behind. Then the few are timed where one thing is otherwise
(`lib/measure/elsewhere.py`): what the choice hangs on, and what it costs there.
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

    def hangs(self, priority: Priority = "time") -> list[str]:
        """A sentence for each condition: whether the choice is the soonest there too, and what it costs if not."""
        choice = self.comparison.choice(priority)
        told = []
        for where, row in self.elsewhere.iterrows():
            best, more = row.idxmin(), row[choice] / row.min() - 1
            if more < CLOCK:
                told.append(f"where {where}: {choice} still, {_beside(row, choice)}")
            else:
                told.append(f"where {where}: {best}; {choice} would take {100 * more:.0f} % longer")
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
    best = [name for name in dict.fromkeys(tried.dropna()["as"]) if name != first][:keep]
    few = {name: trials[name] for name in [first, *best]}
    comparison = compared(few, seeds, goal)
    own = comparison.paired()
    known = own.groupby("protocol")["seconds"].agg(lambda found: found.mean(skipna=False))
    return Advice(tried, refused, comparison, elsewhere.seconds(few, known, seed))


def _beside(row: pd.Series, choice: str) -> str:
    """How far ahead of the next it is."""
    rest = row.drop(choice).dropna()
    return f"{rest.min() / row[choice]:.2f} times as soon as {rest.idxmin()}" if len(rest) else "alone at the goal"
