"""`lib.explain`: where the time of a run goes, by worker and by cause; and the same of the step times of a real job.

A simulated run is timed again on clusters that lack one cause of delay: no worker is slow, only one worker is slow, one worker
is as fast as the others, the network is free, the servers are free. What a cause costs is the time that the run gains without
it. Causes overlap, so that the costs need not add up to the whole.

In a trace of a job that waits for all workers in each step, a step takes as long as its slowest worker. The same questions are
answered from the steps themselves, as in Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis,
OSDI 2025: a worker that is not slow takes the median of the step."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from lib import BadOption, Cluster, Lognormal, Slowdown, VirtualCluster, Workload, sweep
from lib.cluster.slowdowns import SamplePath
from notebooks.advisor.trial import Trial

if TYPE_CHECKING:
    from data_prep.traces.formats import Trace

FREE = 1e6
"""A part that costs nothing is so many times faster."""
LISTED = 16
"""Workers that are explained one by one, at most: those that compute longest."""


@dataclass(frozen=True, kw_only=True)
class Spared(Slowdown):
    """A slowdown that some workers do not have."""

    name: ClassVar = "spared"

    slowdown: Slowdown
    workers: tuple[int, ...]
    """The spared ones."""

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> SamplePath:
        kind = Lognormal() if rank in self.workers else self.slowdown
        return kind.sample_path(seed, node, rank, nth_of_kind)


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where the time of a run goes."""

    seconds: float
    """Of the whole run."""
    causes: pd.DataFrame
    """Cause of delay -> `lost`, the seconds that the run gains without it, and their `share` of the run."""
    workers: pd.DataFrame
    """Worker -> `share` of the run that is lost through it alone (the others being as fast as the median), and `saved`, the
    share that the run gains if this worker alone is as fast as the median; for a simulated run also the shares of its own time
    by what it did, and the share of its gradients that is `unused`: dropped, or decayed for their age."""

    def sentences(self) -> list[str]:
        """The largest cause, and the workers behind it."""
        first = self.causes["share"].idxmax()
        found = [f"Without {first} the run would take {_percent(self.causes.loc[first, 'share'])} less time."]
        slowest = self.workers["saved"].idxmax()
        if self.workers.loc[slowest, "saved"] >= 0.01:
            saved, alone = (_percent(self.workers.loc[slowest, name]) for name in ("saved", "share"))
            found.append(
                f"Worker {slowest} costs most: {saved} would be saved if it were as fast as the median; alone it costs {alone}."
            )
        else:
            found.append("No single worker costs a hundredth of the time.")
        if "unused" in self.workers and self.workers["unused"].max() >= 0.01:
            worst, usual = self.workers["unused"].idxmax(), self.workers["unused"].median()
            share = _percent(self.workers.loc[worst, "unused"])
            found.append(
                f"Of worker {worst}'s gradients {share} are dropped or decayed; the median is {_percent(usual)}."
            )
        return found


def explain(
    workload: Workload | str, protocol: Any, cluster: Cluster | str = "virtual", *, seed: int = 0, **options: Any
) -> Explanation:
    """Time the run on the simulated cluster and on those that lack one cause of delay; options as for `lib.train`."""
    trial = Trial.of(workload, protocol, cluster, options)
    if not isinstance(given := trial.cluster, VirtualCluster):
        raise BadOption(
            f"explain: the cluster is {given.name!r}; other clusters than a virtual one cannot be timed without a cause"
        )
    count, timed = trial.update // trial.workload.batch_size, {"gradients": False, "evaluations": 1}
    given = replace(given, workers=count)
    even, wires = (
        replace(given, slowdown=Lognormal(), speeds=()),
        {"bandwidth": FREE * given.worker.bandwidth, "latency": 0.0},
    )
    server = replace(
        given.server,
        flops=FREE * given.server.flops,
        core_memory=FREE * given.server.core_memory,
        memory=None,
        launch=0.0,
    )
    causes = {
        "slow workers": even,
        "the network": replace(given, worker=replace(given.worker, **wires), server=replace(given.server, **wires)),
        "the servers' work": replace(given, server=server),
    }
    (whole,) = sweep([trial.job(1.0, seed, **timed | {"trace": True})], label="the run")
    spent = _spent(whole.trace, whole.summary["virtual_seconds"], count)
    ranks = sorted(spent["compute"].nlargest(LISTED).index)
    clusters = [*causes.values(), *(_only(given, rank) for rank in ranks), *(_without(given, rank) for rank in ranks)]
    runs = sweep([replace(trial, cluster=each).job(1.0, seed, **timed) for each in clusters], label="without a cause")
    seconds = np.array([run.summary["virtual_seconds"] for run in runs])
    total, alone, others = whole.summary["virtual_seconds"], *np.split(seconds[len(causes) :], 2)
    lost = total - seconds[: len(causes)]
    shares = {"share": (alone - seconds[0]) / total, "saved": (total - others) / total}
    workers = pd.DataFrame(shares, pd.Index(ranks, name="worker")).join(spent).join(_unused(whole.summary["by_worker"]))
    return Explanation(total, pd.DataFrame({"lost": lost, "share": lost / total}, [*causes]), workers)


def explain_trace(trace: "Trace") -> Explanation:
    """The same from the step times of a job that waits for all workers in each step; the n-th sample of each worker is one step.
    Seconds are multiples of a usual step where the trace does not say them."""
    steps = trace.table.assign(step=trace.table.groupby("worker").cumcount())
    table = steps.pivot(index="step", columns="worker", values="factor").dropna()
    times, usual = table.to_numpy() * (trace.took or 1.0), table.median(axis=1).to_numpy() * (trace.took or 1.0)
    total, even = times.max(axis=1).sum(), usual.sum()
    alone = np.maximum(times, usual[:, None]).sum(axis=0)
    others = np.array([np.maximum(np.delete(times, k, axis=1).max(axis=1), usual).sum() for k in range(times.shape[1])])
    workers = pd.DataFrame({"share": (alone - even) / total, "saved": (total - others) / total}, table.columns)
    lost = pd.DataFrame({"lost": [total - even], "share": [1 - even / total]}, ["slow workers"])
    return Explanation(float(total), lost, workers)


def _only(cluster: VirtualCluster, rank: int) -> VirtualCluster:
    """The cluster with this worker as the only slow one."""
    others = tuple(each for each in range(cluster.workers or 0) if each != rank)
    return _spared(cluster, others)


def _without(cluster: VirtualCluster, rank: int) -> VirtualCluster:
    return _spared(cluster, (rank,))


def _spared(cluster: VirtualCluster, ranks: tuple[int, ...]) -> VirtualCluster:
    speeds = tuple(1.0 if rank in ranks else speed for rank, speed in enumerate(cluster.speeds))
    return replace(cluster, slowdown=Spared(slowdown=cluster.slowdown, workers=ranks), speeds=speeds)


def _spent(trace: pd.DataFrame, seconds: float, workers: int) -> pd.DataFrame:
    """Worker's rank -> share of the run by what it did; `compute` is there for all."""
    mine = trace[trace["node"].astype(str).str.startswith("worker")]
    spent = (
        (mine["end"] - mine["start"])
        .groupby([mine["node"].astype(str), mine["kind"].astype(str)])
        .sum()
        .unstack(fill_value=0.0)
    )
    spent.index = spent.index.str.removeprefix("worker").astype(int)
    return (
        spent.reindex(range(workers), fill_value=0.0)
        .reindex(columns=dict.fromkeys(["compute", *spent.columns]))
        .fillna(0.0)
        / seconds
    )


def _unused(workers: dict[str, dict[str, float]]) -> pd.Series:
    """Worker's rank -> share of its gradients that were dropped or decayed."""
    return pd.Series(
        {
            int(node.removeprefix("worker")): (counts["dropped"] + counts["decayed"]) / counts["gradients"]
            for node, counts in workers.items()
        },
        name="unused",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
