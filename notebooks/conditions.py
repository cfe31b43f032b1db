"""All protocols on a grid of conditions: the clusters, combinations that no paper tried, and how their runs are described.

curve = grid_search.curve(conditions.job, conditions.auc, {"rate": RATES}, seeds, samples=[n], protocol=conditions.MODES)
data, runs = study.run_grid(conditions.job, cases, conditions.figures)
found = conditions.compare(data)  # condition -> notebooks.advisor.comparison.Comparison
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from lib import BadOption, Failure, Job, Lognormal, Node, Run, VirtualCluster, workloads
from lib.cluster.slowdowns import get
from lib.protocols import ALL
from notebooks import compare_figure, study
from notebooks.advisor.comparison import Comparison, interval_texts, with_interval
from notebooks.advisor.trial import Trial, seconds_to
from notebooks.clusters import GBIT
from reports import plots
from reports.claims import interval
from reports.markup import Fragment, parts

BATCH, GOAL, STEP = 64, 0.9, 2e-3
MACHINE = Node(flops=workloads.get("clicks-light", batch_size=BATCH).work().flops / STEP)
"""A batch's gradient takes two milliseconds, so that latency does not decide by itself."""
EQUAL = VirtualCluster(workers=8, worker=MACHINE)
_WIRE = {"bandwidth": 0.1 * GBIT, "latency": 1e-3}
BUSY = "shared cluster"
"""The condition that the front page shows."""
CONDITIONS = {
    BUSY: replace(EQUAL, slowdown=get("alibaba-shared-2018", scale=1e-5)),  # a day passes in a second
    "equal workers": EQUAL,
    "a slow quarter": replace(EQUAL, workers=16, speeds=(*[1.0] * 12, *[0.5] * 4)),
    "heavy stragglers": replace(EQUAL, slowdown=Lognormal(sigma=1.0), speeds=(*[1.0] * 6, 0.5, 0.25)),
    "slow network": replace(EQUAL, worker=replace(MACHINE, **_WIRE), server=replace(EQUAL.server, **_WIRE)),
    "many workers": replace(EQUAL, workers=32),
    "failures": replace(EQUAL, failures=(Failure(node="worker*", kind="dies", every=1.0, lasts=0.1),), patience=0.01),
}
COMBINATIONS = (
    "gba+ds-sync",
    "gba+s-easgd",
    "gba+diloco",
    "hop-bs+s-bmuf",
    "bsp+slowmo",
    "staleness-aware+ds-sync",
    "dc-asgd+local-sgd",
)
"""Rows under one paper's rule, dense parameters under another's: none of the papers has them."""
MOST_NAMES = 3
"""Marks that have their names in a panel, the fastest; and most protocols of a line whose names a sentence has."""
MODES = (
    "sync",
    *(name for name, kind in ALL.items() if kind.family != "pipeline" and name not in ("sync", "frozen")),
    *COMBINATIONS,
)


def job(protocol: str, samples: int, seed: int, rate: float = 1.0, condition: str = "equal workers") -> dict:
    options = {"samples": samples, "batch_size": BATCH}
    return Trial.of("clicks-light", protocol, CONDITIONS[condition], options).job(rate, seed)


def auc(run: Run, **case) -> float:
    return float(np.nan_to_num(study.quality(run, "auc")))


def can_run(condition: str, protocol: str, samples: int) -> bool:
    """Whether the protocol can run in the condition."""
    try:
        Job.of(**job(protocol, samples, 0, condition=condition))
    except BadOption:
        return False
    return True


def figures(run: Run, **case) -> dict:
    """The figures that a comparison needs of a run, and the run itself."""
    text = {"metric": study.quality(run, "auc"), "samples/s": run.summary["qps"], "age": run.summary["staleness_mean"]}
    return {**text, "bytes/sample": run.summary["bytes"] / run.summary["samples"], "digest": run.digest, "run": run}


def shared_cluster_runs(data: pd.DataFrame) -> pd.DataFrame:
    """The shared cluster's runs as `compare_figure` takes them: what the kit registers, without the combinations."""
    runs = data[(data["condition"] == BUSY) & ~data["protocol"].isin(COMBINATIONS)]
    return runs[["protocol", "seed", "metric", "samples/s"]].rename(columns={"metric": "auc", "samples/s": "qps"})


def compare(data: pd.DataFrame) -> dict[str, Comparison]:
    """Compare each condition's runs with Sync's there; the frozen run gives the metric before training."""
    found = {}
    for condition, here in data.groupby("condition", sort=False):
        ends = here.pivot(index="seed", columns="protocol", values="metric")
        rows = [row for row in here.to_dict("records") if row["protocol"] != "frozen"]
        for row in rows:
            start, end = ends.loc[row["seed"], "frozen"], ends.loc[row["seed"], "sync"]
            row["seconds"] = seconds_to(row.pop("run"), "auc", start, start + GOAL * (end - start))
        found[condition] = Comparison(pd.DataFrame(rows).assign(best=lambda t: t["rate"]), "auc", GOAL)
    return found


def rank(found: Comparison) -> pd.DataFrame:
    """Group the protocols that a condition does not distinguish, the fastest first: neither paired times nor paired metrics
    differ measurably from those of the group's first, which in Sync's group is Sync."""
    own = found.paired().drop_duplicates(["protocol", "seed"])
    times, ends = (own.pivot(index="seed", columns="protocol", values=name) for name in ("seconds", "metric"))
    order = times.mean(skipna=False).sort_values(na_position="last").index
    lines: list[list[str]] = [["sync"]]
    for name in order.drop("sync"):
        for line in lines:
            never = times[name].isna().all() == times[line[0]].isna().all()
            if never and _alike(times[name] / times[line[0]] - 1) and _alike(ends[name] - ends[line[0]]):
                line.append(name)
                break
        else:
            lines.append([name])
    lines.sort(key=lambda line: order.get_loc(line[0]))
    return pd.DataFrame(_lines(lines, times / times[["sync"]].to_numpy(), ends.sub(ends["sync"], axis=0)))


def _alike(differences: pd.Series) -> bool:
    """Also where both are equal, or neither is at the goal on any seed."""
    _, low, high = interval(differences)
    return bool(low <= 0 <= high) or bool(differences.isna().all())


def _lines(lines: list[list[str]], times: pd.DataFrame, ends: pd.DataFrame) -> Iterator[dict]:
    for rank, line in enumerate(lines, 1):
        row: dict = {"rank": rank, "protocols": ", ".join(line)}
        for name, values in (("time", times[line[0]]), ("AUC less sync's", ends[line[0]])):
            row |= with_interval(name, values)
        yield row


def table(lines: pd.DataFrame) -> pd.DataFrame:
    """A ranking as a person reads it: each figure with its interval."""
    columns = {
        "time, Sync's = 1": interval_texts(lines, "time", 1),
        "AUC less Sync's, 10⁻³": interval_texts(lines, "AUC less sync's", 1e3),
    }
    return lines[["rank", "protocols"]].assign(**columns).set_index("rank")


def variance_shares(found: Comparison) -> dict[str, float]:
    """How much of the differences in the time to the goal lies in samples a second, and how much in the samples that are
    needed: shares of the variance of the logarithm, which add up to one. Protocols that never reach the goal do not count."""
    own = found.paired().groupby("protocol")[["seconds", "samples/s"]].agg(lambda of: of.mean(skipna=False)).dropna()
    time, speed = np.log(own["seconds"]), np.log(own["samples/s"])
    share = float(np.cov(time, -speed)[0, 1] / time.var()) if len(own) > 1 and time.var() else np.nan
    return {"in samples a second": share, "in samples needed": 1 - share, "at the goal": len(own)}


def sentences(found: Mapping[str, Comparison]) -> list[str]:
    """Two sentences for each condition: the fastest without a loss and the fastest with one; and what decides."""
    sentences = []
    for condition, comparison in found.items():
        lines, share = rank(comparison), variance_shares(comparison)
        kept = lines[lines["AUC less sync's, high"] >= 0]
        first, sound = lines.iloc[0], (kept if len(kept) else lines).iloc[0]
        sentence = (
            f"{condition.capitalize()}: soonest without a measurable loss: {_protocols_and_time(sound)} Sync's time"
        )
        sentence += (
            "" if sound["rank"] == first["rank"] else f"; {_protocols_and_time(first)}, and measurably lower in the end"
        )
        what, other = sorted(("in samples a second", "in samples needed"), key=lambda name: -share[name])
        much, rest = ("All", "") if share[what] >= 1 else (f"{100 * share[what]:.0f} % of the", f", the rest {other}")
        sentences.append(f"{sentence}. {much} differences between protocols in this time lie {what}{rest}.")
    return sentences


def in_short(found: Mapping[str, Comparison]) -> Fragment:
    """The same as the block that stands below a page's question."""
    return Fragment(parts().short((), (), (), sentences(found)), "short")


def _protocols_and_time(line: pd.Series) -> str:
    *names, last = line["protocols"].split(", ")
    if len(names) >= MOST_NAMES:
        names, last = names[:1], f"{len(names)} others"
    text = f"{', '.join(names)} and {last}" if names else last
    return f"{text}, in {line['time']:.2f} times"


def figure(found: Mapping[str, Comparison]) -> Figure:
    """A panel a condition: time to the goal against the metric next to Sync's, a mark a line; hollow: tried in no paper."""
    with plots.style():
        rows = math.ceil(len(found) / 3)
        fig = Figure(figsize=(plots.WIDTH, 1 + 3 * rows), layout="constrained")
        panels = fig.subplots(rows, min(3, len(found)), squeeze=False)
        shown: list[tuple[Axes, list[str], list[tuple[float, float]]]] = []
        for ax, (condition, comparison) in zip(panels.flat, found.items(), strict=False):
            lines = rank(comparison).dropna(subset=["time"])
            firsts = [name.split(", ")[0] for name in lines["protocols"]]
            at = list(zip(lines["time"], 1e3 * lines["AUC less sync's"], strict=True))
            for name, mark in zip(firsts, at, strict=True):
                inner = "white" if name in COMBINATIONS else plots.colour(name)[0]
                ax.plot(*mark, "o", color=plots.colour(name)[0], mfc=inner, markersize=6)
            ax.axhline(0, color=plots.BLACK, linewidth=0.8)
            ax.set(title=condition, xscale="log")
            ax.margins(x=0.3, y=0.25)
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            ax.xaxis.set_minor_formatter("")
            shown.append((ax, firsts, at))
        for ax in panels.flat[len(shown) :]:
            ax.set_axis_off()
        for ax, _, _ in shown[-panels.shape[1] :]:
            ax.set_xlabel("time, Sync's = 1", fontsize=9)
        fig.supylabel("AUC less Sync's, 10⁻³", fontsize=9)
        compare_figure.legend(fig, [name for _, firsts, _ in shown for name in firsts])
        for ax, firsts, at in shown:
            compare_figure.name_marks(ax, firsts[:MOST_NAMES], at, [plots.colour(name)[0] for name in firsts], size=8)
    return fig
