"""All protocols on a grid of conditions: the clusters, combinations that no paper tried, and what is said of their runs.

tried = tuned.tried(conditions.job, conditions.auc, {"rate": RATES}, claims.tuning(1), samples=[n], protocol=conditions.MODES)
data, runs = study.swept(conditions.job, places, conditions.figures)
found = conditions.compared(data)  # condition -> lib.measure.compared.Comparison
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from lib.cluster.faults.failures import Failure
from lib.cluster.slowdowns import Lognormal, get
from lib.cluster.spec import Node
from lib.cluster.virtual.cluster import VirtualCluster
from lib.errors import BadOption
from lib.measure.compared import Comparison
from lib.measure.trial import Trial, seconds_to
from lib.protocols import ALL
from lib.reporting.claims import interval
from lib.results.run import Run
from lib.training.train import Job
from notebooks.clusters import GBIT

BATCH, GOAL = 64, 0.9
MACHINE = Node(launch=2e-3)  # a step of two milliseconds: what a framework takes, so that no latency decides by itself
EQUAL = VirtualCluster(workers=8, worker=MACHINE)
SLOW = replace(MACHINE, bandwidth=0.01 * GBIT, latency=2e-3)
CONDITIONS = {
    "equal workers": EQUAL,
    "shared day": replace(EQUAL, slowdown=get("alibaba-shared-2018", scale=1e-5)),  # a day in a second
    "heavy stragglers": replace(EQUAL, slowdown=Lognormal(sigma=1.0), speeds=(*[1.0] * 6, 0.5, 0.25)),
    "slow network": replace(
        EQUAL, worker=SLOW, server=replace(EQUAL.server, bandwidth=SLOW.bandwidth, latency=SLOW.latency)
    ),
    "many workers": replace(EQUAL, workers=32),
    "failures": replace(EQUAL, failures=(Failure(node="worker*", kind="dies", every=1.0, lasts=0.1),), patience=0.01),
}
UNTRIED = (
    "gba+ds-sync",
    "gba+s-easgd",
    "gba+diloco",
    "hop-bs+s-bmuf",
    "bsp+slowmo",
    "staleness-aware+ds-sync",
    "ssp+local-sgd",
)
"""Rows under one paper's rule, dense parameters under another's: none of the papers has them."""
MODES = (
    "sync",
    *(name for name, kind in ALL.items() if kind.family != "pipeline" and name not in ("sync", "frozen")),
    *UNTRIED,
)


def job(protocol: str, samples: int, seed: int, rate: float = 1.0, condition: str = "equal workers") -> dict[str, Any]:
    options = {"samples": samples, "batch_size": BATCH}
    return Trial.of("clicks-light", protocol, CONDITIONS[condition], options).job(rate, seed)


def auc(run: Run, **place: Any) -> float:
    return float(np.nan_to_num(run.summary["auc"]))


def possible(condition: str, protocol: str, samples: int) -> bool:
    """Whether the protocol can run there; who cannot is told by the job itself."""
    try:
        Job.of(**job(protocol, samples, 0, condition=condition))
    except BadOption:
        return False
    return True


def figures(run: Run, **place: Any) -> dict[str, Any]:
    """What a comparison asks of a run, and its course."""
    told = {"metric": run.summary["auc"], "samples/s": run.summary["qps"], "age": run.summary["staleness_mean"]}
    return {**told, "bytes/sample": run.summary["bytes"] / run.summary["samples"], "digest": run.digest, "run": run}


def compared(data: pd.DataFrame) -> dict[str, Comparison]:
    """Each condition's runs beside Sync's there; frozen tells where a course begins."""
    found = {}
    for condition, here in data.groupby("condition", sort=False):
        ends = here.pivot(index="seed", columns="protocol", values="metric")
        rows = [row for row in here.to_dict("records") if row["protocol"] != "frozen"]
        for row in rows:
            start, end = ends.loc[row["seed"], "frozen"], ends.loc[row["seed"], "sync"]
            row["seconds"] = seconds_to(row.pop("run"), "auc", start, start + GOAL * (end - start))
        found[condition] = Comparison(pd.DataFrame(rows).assign(best=lambda t: t["rate"]), "auc", GOAL)
    return found


def ranked(found: Comparison) -> pd.DataFrame:
    """A line for those that the condition cannot tell apart, the soonest first: neither the paired times nor the paired metrics of
    a line's members differ measurably from those of its first."""
    own = found.paired().drop_duplicates(["protocol", "seed"])
    times, ends = (own.pivot(index="seed", columns="protocol", values=name) for name in ("seconds", "metric"))
    order = times.mean(skipna=False).sort_values(na_position="last").index
    lines: list[list[str]] = []
    for name in order:
        for line in lines:
            if _alike(times[name] / times[line[0]] - 1) and _alike(ends[name] - ends[line[0]]):
                line.append(name)
                break
        else:
            lines.append([name])
    return pd.DataFrame(_lines(lines, times / times[["sync"]].to_numpy(), ends.sub(ends["sync"], axis=0)))


def _alike(differences: pd.Series) -> bool:
    _, low, high = interval(differences)
    return bool(low <= 0 <= high)  # also where both are equal; never where one is not at the goal


def _lines(lines: list[list[str]], times: pd.DataFrame, ends: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for rank, line in enumerate(lines, 1):
        row: dict[str, Any] = {"rank": rank, "protocols": ", ".join(line)}
        for name, values in (("time", times[line[0]]), ("AUC less sync's", ends[line[0]])):
            row |= dict(zip((name, f"{name}, low", f"{name}, high"), interval(values), strict=True))
        yield row


def decides(found: Comparison) -> dict[str, float]:
    """How much of the differences in the time to the goal is in samples a second, and how much in the samples that are needed: the
    shares of the variance of the logarithm, which add up to one. Those that are never at the goal count nowhere."""
    own = found.paired().dropna(subset=["seconds"])
    means = np.log(own.groupby("protocol")[["seconds", "samples/s"]].mean())
    time, speed = means["seconds"], means["samples/s"]
    share = np.cov(time, -speed)[0, 1] / time.var() if len(means) > 1 and time.var() else np.nan
    return {"in samples a second": share, "in samples needed": 1 - share, "at the goal": len(means)}
