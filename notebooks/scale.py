"""Timing runs with up to a hundred thousand workers: speed, age of gradients, and the cost of failures."""

import resource
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import lib
from lib import Failure, Lognormal, Node, Run, VirtualCluster
from notebooks import compare_figure
from notebooks.clusters import GBIT
from reports import plots

PROTOCOLS = ("sync", "all-reduce", "hop-bw", "gba", "async", "s-easgd", "fr-easgd", "ds-sync", "hybrid")
WORKLOAD = lib.workloads.get("clicks-light", batch_size=64)
STEP, SIGMA, SERVERS, PER_SERVER = 0.01, 0.3, 4, 8
"""Seconds of a step, spread of its logarithm, server nodes, and workers for which a real server stands."""
REAL_HOURS = 50_700
"""Hours of one GPU between two failures: 54 days of 16,384 with 419 interruptions."""
DOWN = 10
"""Steps for which a worker that failed is away."""


def cluster(workers: int) -> VirtualCluster:
    """Servers grow with the workers, so that few nodes stand for many."""
    machine = Node(flops=WORKLOAD.work().flops / STEP)
    grown = max(1, workers // (PER_SERVER * SERVERS))
    server = Node(cores=8 * grown, bandwidth=25 * GBIT * grown)
    return VirtualCluster(
        workers=workers, servers=SERVERS, worker=machine, server=server, slowdown=Lognormal(sigma=SIGMA)
    )


def measure(
    protocols: Sequence[str], sizes: Sequence[int], steps: int, failures: bool = False
) -> tuple[pd.DataFrame, list[Run]]:
    """A row for each protocol and number of workers, and the runs. With failures: one in a run, on average."""
    rows, runs = [], []
    for workers in sizes:
        for protocol in protocols:
            here = cluster(workers)
            if failures:
                every = workers * steps * STEP
                here = replace(
                    here,
                    failures=(Failure(node="worker*", kind="dies", every=every, lasts=DOWN * STEP),),
                    patience=STEP,
                )
            options = {
                "samples": steps * workers * WORKLOAD.batch_size,
                "gradients": False,
                "evaluations": 1,
                "trace": False,
            }
            began = time.process_time()
            run = lib.train(WORKLOAD, protocol, here, seed=0, save=False, **options)
            seconds = time.process_time() - began
            rows.append(
                _row(protocol, workers, run) | {"seconds of a core": seconds, "gradients/s": steps * workers / seconds}
            )
            runs.append(run)
    return pd.DataFrame(rows), runs


def _row(protocol: str, workers: int, run: Run) -> dict:
    mean = STEP * np.exp(SIGMA**2 / 2)
    return {
        "protocol": protocol,
        "workers": workers,
        "gradients": run.summary["issued"],
        "samples/s": run.steady_qps,
        "ideal": workers * WORKLOAD.batch_size / mean,
        "age": run.summary["staleness_mean"],
        "lost": run.summary["lost"] + run.summary["dropped"],
        "seconds": run.summary["virtual_seconds"],
    }


def cost(without: pd.DataFrame, failed: pd.DataFrame) -> pd.DataFrame:
    """What failures cost each protocol on the largest cluster, and what that is at the real rate."""
    table = failed.merge(without, on=["protocol", "workers"], suffixes=("", " without"))
    longer = table["seconds"] - table["seconds without"]
    hours = REAL_HOURS / table["workers"]
    return pd.DataFrame({
        "protocol": table["protocol"],
        "workers": table["workers"],
        "gradients lost": table["lost"],
        "steps that one failure costs": longer / STEP,
        "% of the time at the real rate": 100 * longer / (3600 * hours),
    })  # fmt: skip


def memory() -> float:
    """The most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def figure(data: pd.DataFrame, column: str, label: str, log: bool = False) -> Figure:
    """A line a protocol against the number of workers."""
    with plots.style():
        fig = Figure(figsize=(plots.WIDTH, 4), layout="constrained")
        ax = fig.subplots()
        for name, mine in data.groupby("protocol", sort=False):
            colour, dashes = plots.colour(name)
            ax.plot(mine["workers"], mine[column], color=colour, linestyle=dashes, marker="o", label=name)
        ax.set(xscale="log", xlabel="workers", ylabel=label)
        if log:
            ax.set_yscale("symlog", linthresh=0.1)
        else:
            ax.set_ylim(0)
        lines = compare_figure.in_order(data["protocol"].unique())
        handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        fig.legend([handles[name] for name in lines], lines, loc="outside right upper", frameon=False)
    return fig


def sentence(data: pd.DataFrame, column: str, unit: str = "") -> str:
    """The figures at both ends of the sizes, for readers who do not see the figure."""
    found = data.pivot(index="protocol", columns="workers", values=column)
    few, many = found.columns[0], found.columns[-1]
    return " ".join(
        f"{name}: {row[few]:.3g}{unit} with {few}, {row[many]:.3g}{unit} with {many}." for name, row in found.iterrows()
    )
