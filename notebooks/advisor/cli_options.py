"""Command-line options of comparisons and advice: a cluster and a model in short form, and a trace of step times."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lib import BadOption, paths
from lib.options import units
from lib.workloads import PROFILES


def flags(sub: Callable[..., Any]) -> None:
    """Add the options that both commands have."""
    sub("--workload", default="clicks-light", help="as for train (default clicks-light)")
    sub("--cluster", default="virtual", help="as for train (default virtual)")
    sub("--seeds", type=int, default=5, help="runs of each protocol, with synthetic data of its own (default 5)")
    sub("--goal", type=float, default=0.9, help="time until this share of what the first protocol learns (default 0.9)")
    sub("--data", metavar="FOLDER", help="real data instead of synthetic data")
    sub("--profile", choices=PROFILES, help="the workload's size (default smoke)")
    sub("--samples", type=int, help="samples of a run (default: 100 batches of every worker, and 64,000 at least)")
    sub("--figure", metavar="FILE", help="save the figure: .png, .svg or .pdf")
    sub("--workers", type=int, help="number of workers; as -o workers=")
    sub("--slow", metavar="4@2x", help="4 of the workers take twice as long; as -o speeds=")
    sub("--network", metavar="10Gbit/s", help="each machine's interface; as -o network=")
    sub("--step", metavar="5ms", help="time of a worker's step where nothing slows it (default: the trace's median)")
    sub(
        "--model",
        metavar="NAME",
        help="deepfm, dlrm, ffnn: as -o model=, of ctr-synthetic unless --workload says another",
    )
    sub(
        "--trace",
        metavar="FILE",
        help="your workers' step times: `python -m data_prep trace` describes the file",
    )
    sub(
        "--columns",
        metavar="worker=A,time=B,took=C",
        help="the trace's columns of these; took=C:ms if C is in milliseconds",
    )


def workload(options: argparse.Namespace) -> str:
    return "ctr-synthetic" if options.model and options.workload == "clicks-light" else options.workload


def comparison_options(options: argparse.Namespace, protocol: str, pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the options of a comparison: the short flags first, then the `pairs` given by name."""
    if options.figure and not options.figure.endswith((".png", ".svg", ".pdf")):
        raise BadOption(f"--figure is {options.figure!r}; expected a file that ends with .png, .svg or .pdf")
    short = ("data", "profile", "samples", "workers", "network", "model")
    given = {name: value for name in short if (value := getattr(options, name)) is not None}
    if options.network and units.RATE.read(options.network) is None:
        raise BadOption(f"--network is {options.network!r}; expected {units.RATE.name}, such as {units.RATE.example}")
    if options.slow:
        given["speeds"] = _speeds(options.slow, options.workers)
    step = _seconds(options.step) if options.step else None
    if options.trace:
        given["slowdown"], median = _fitted_slowdown(options.trace, options.columns)
        step = step or median
    given |= pairs
    if step and "worker.flops" not in pairs:
        given["worker.flops"] = _flops(step, workload(options), protocol, options.cluster, given)
    return {"seeds": options.seeds, "goal": options.goal, **given}


def _speeds(slow: str, workers: int | None) -> list[float]:
    match = re.fullmatch(r"(\d+)@([\d.]+)x?", slow)
    if not match or not int(match[1]) or not float(match[2]):
        raise BadOption(f"--slow is {slow!r}; expected as 4@2x: 4 of the --workers take twice as long")
    if workers is None:
        raise BadOption(f"--slow is {slow!r}, of how many? Give --workers too")
    if (some := int(match[1])) > workers:
        raise BadOption(f"--slow is {slow!r}, but there are {workers} --workers")
    return [1.0] * (workers - some) + [1 / float(match[2])] * some


def _seconds(step: str) -> float:
    seconds = units.SECONDS.read(step)
    if not seconds or seconds <= 0:
        raise BadOption(f"--step is {step!r}; expected {units.SECONDS.name}, such as {units.SECONDS.example}")
    return seconds


def _flops(seconds: float, workload: str, protocol: str, cluster: str, given: Mapping[str, Any]) -> float:
    """Operations a second of a worker for which the gradient of a batch takes so long. A launch would count twice where a
    replica's optimiser steps too."""
    from notebooks.advisor.trial import Trial

    return Trial.of(workload, protocol, cluster, given).workload.work().flops / seconds


def _fitted_slowdown(trace: str, columns: str | None) -> tuple[str, float | None]:
    """The file of a slowdown that is fitted to the trace, and the median seconds of a step if the trace has seconds."""
    from data_prep.traces.command import fitted, pairs

    found, text = fitted(Path(trace), columns=pairs(columns) if columns else None)
    out = paths.reports() / f"{Path(trace).stem}.slowdown.yaml"
    paths.write_text_atomic(out, text)
    if not found.took:
        print(f"{trace} has no step times in seconds, so only their spread is used; --step says how long a step takes")
    return str(out), found.took
