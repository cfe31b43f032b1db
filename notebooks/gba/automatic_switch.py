"""The automatic switch between all-reduce and GBA: a cluster in which either can lead, its days, and what to hold it against.

What decides who leads is how much the workers compute while their dense parameters pass a server's link. The figures are those
of a click model of Criteo's size on ordinary machines; the vector that really travels is smaller, and bandwidths with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib import Automatic, Choice, Link, Node, Phase, Run, Slowdown, VirtualCluster, Workload, workloads
from lib.cluster.slowdowns import Shared, get
from lib.protocols import get as protocol
from lib.tasks.workload import dense_parameters
from notebooks import study
from notebooks.gba.hindsight import best_fixed, oracle
from notebooks.gba.tasks import samples_by
from reports.palette import colour
from reports.plots import WIDTH, style
from reports.quantities import label

WORKERS, BATCH = 8, 32
COMPUTE = 0.037
"""Seconds of a batch on an undisturbed worker: 512 samples of a network with 2.4 million weights at 0.2 teraflop/s."""
DENSE, LINK = 9.6e6, 1.25e9
"""Bytes of those weights, and bytes per second of each machine's link (10 Gbit/s), the server's too."""
NODES = ("server0", *(f"worker{rank}" for rank in range(WORKERS)))
"""All but the master, where a switch puts the model down. A switch's minutes are those of the model's way too; over the links of
the training it would be counted twice, and in a shortened day by far too much."""
CASES = {"day": ("day", 2), "long restart": ("day", 5), "trace": ("trace", 2), "turns": ("turns", 2)}
"""Case -> the day, and minutes of it that a switch takes in addition to its pause: for new workers alone, or for a whole job."""
MODES = {"all-reduce": protocol("all-reduce", buckets=4), "gba": protocol("gba")}
"""In hindsight's order."""
WINDOWS = 96
"""Stretches of a day in which throughput is counted."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """One day of the cluster."""

    seconds: float
    """How long it lasts on the cluster's clock."""

    def slowdowns(self) -> dict[str, Slowdown]:
        """What others use of the machines: through a made-up day from 5 to 65 %; as in Alibaba's trace; and by turns 5 and 65 %,
        each for twenty minutes, about the time in which a controller makes up its mind."""
        curve = tuple(0.35 - 0.3 * math.cos(2 * math.pi * (hour - 4) / 24) for hour in range(24))
        trace = get("alibaba-shared-2018")
        made_up = Shared(curve=curve, concentration=trace.concentration, hold=600.0)
        turns = Shared(curve=(0.05, 0.65), concentration=trace.concentration, hold=60.0, period=2400.0)
        kinds = {"day": made_up, "trace": trace, "turns": turns}
        return {name: kind.scale_time(self.seconds / 86_400) for name, kind in kinds.items()}

    def job(self, case: str, mode: str, seed: int, samples: int, window: int) -> dict:
        """What `lib.sweep` takes."""
        task = replace(workload(samples), world=seed)
        shrink = 4 * dense_parameters(task) / DENSE
        cluster = VirtualCluster(
            workers=WORKERS,
            worker=Node(flops=task.work().flops / COMPUTE, core_memory=1e15, bandwidth=LINK * shrink),
            server=Node(cores=8, bandwidth=LINK * shrink),
            links=tuple(Link(ends=("master", node), bandwidth=1e12, latency=50e-6) for node in NODES),
            slowdown=self.slowdowns()[CASES[case][0]],
        )
        rule = self.choice(case, window) if mode == "automatic" else MODES[mode]
        return study.job(task, rule, cluster, seed, trace=True)

    def choice(self, case: str, window: int) -> Choice:
        restart = CASES[case][1] * self.seconds / (24 * 60)
        rule = Automatic(cost=restart + 2 * COMPUTE, window=window)
        phases = tuple(Phase(protocol=mode) for mode in MODES.values())
        return Choice(phases=phases, rule=rule, every=rule.cost / 4, restart=restart)

    def compare(self, case: str, runs: Mapping[str, Run]) -> tuple[pd.DataFrame, list[dict]]:
        """Throughput over the day, and what each subject reached in all: the modes, the best of them and hindsight. They are
        compared until the first of them is through with its data."""
        width = self.seconds / WINDOWS
        count = int(min(run.summary["virtual_seconds"] for run in runs.values()) / width)
        edges = np.arange(count + 1) * width
        rates = {mode: np.diff(samples_by(run, edges)) / width for mode, run in runs.items()}
        table = np.array([rates[mode] for mode in MODES])
        seconds, choice = count * width, self.choice(case, 1)
        hindsight = oracle(table, choice.restart, width).samples
        reached = {mode: rate.sum() * width for mode, rate in rates.items()}
        reached |= {"best fixed": best_fixed(table, width).samples, "hindsight": hindsight}
        most = table.max(axis=0)
        lost = most.sum() * width - reached["automatic"]
        rho, wait = most.max() / most.min(), choice.every / choice.rule.cost
        allowed = (1 + (2 + wait) * rho) * (most.sum() * width - hindsight)
        allowed += (3 + wait) * choice.rule.cost * most.max()
        rows = [{"mode": mode, "qps": samples / seconds} for mode, samples in reached.items()]
        for row in rows:
            if row["mode"] in runs:
                row["auc"] = study.quality(runs[row["mode"]], "auc")
            if row["mode"] == "automatic":
                row |= {"lost": lost / allowed, "switches": len(runs["automatic"].summary["stages"]) - 1}
        frame = pd.concat(
            pd.DataFrame({"protocol": mode, "time": edges[:-1] / self.seconds, "qps": rate})
            for mode, rate in rates.items()
        )
        return frame, rows


def workload(samples: int) -> Workload:
    """A small DeepFM whose rows are as small a part of what travels as a large one's."""
    shape = {"fields": 5, "vocabulary": 500, "dim": 4, "hidden": (128, 64), "evaluation_samples": 10_000}
    return workloads.get("ctr-synthetic", batch_size=BATCH, samples=samples, **shape)


def stretches(run: Run, day: float) -> pd.DataFrame:
    """Which protocol from when to when, in days."""
    stages = run.summary["stages"]
    ends = [*(stage["start"] for stage in stages[1:]), run.summary["virtual_seconds"]]
    starts = [stage["start"] / day for stage in stages]
    return pd.DataFrame(
        {"protocol": [stage["protocol"] for stage in stages], "start": starts, "end": np.array(ends) / day}
    )


def figure(data: pd.DataFrame, chosen: pd.DataFrame) -> Figure:
    """A panel for each case: every protocol's throughput over time, and below it a band with the protocol chosen from `start` to
    `end`."""
    names = list(dict.fromkeys(data["case"]))
    with style():
        fig = Figure(figsize=(WIDTH, 2.2 * len(names) + 0.7), layout="constrained")
        axes = fig.subplots(2 * len(names), 1, sharex=True, squeeze=False, height_ratios=[9, 1] * len(names))[:, 0]
        handles: dict = {}
        for name, ax, band in zip(names, axes[::2], axes[1::2], strict=True):
            for protocol, group in data[data["case"] == name].groupby("protocol", sort=False):
                tone, dashes = colour(str(protocol))
                (handles[str(protocol)],) = ax.plot(group["time"], group["qps"], color=tone, linestyle=dashes)
            for stretch in chosen[chosen["case"] == name].itertuples():
                spans = [(stretch.start, stretch.end - stretch.start)]
                band.broken_barh(spans, (0, 1), color=colour(stretch.protocol)[0], linewidth=0)
            ax.set(ylabel=label("qps"), ylim=(0, None))
            ax.set_title(name, loc="left", fontsize=10, pad=3)
            ax.tick_params(bottom=False)
            band.set(yticks=[0.5], yticklabels=["chosen"], ylim=(0, 1))
            band.tick_params(left=False)
            band.grid(False)
        axes[-1].set(xlabel=label("time"), xlim=(0, data["time"].max()))
        fig.legend(handles.values(), handles, loc="outside upper right", ncols=len(handles), handlelength=3)
    return fig
