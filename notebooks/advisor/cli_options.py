"""Command-line options of comparisons and advice: a cluster and a model in short form, and a trace of step times."""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lib import BadOption, paths
from lib.options import units
from lib.workloads import PROFILES


def flags(sub: Callable[..., Any]) -> None:
    """What a command of theirs takes beside its own."""
    sub("--workload", default="clicks-light", help="as for train (default clicks-light)")
    sub("--cluster", default="virtual", help="as for train (default virtual)")
    sub("--seeds", type=int, default=5, help="runs of each, on planted data of its own (default 5)")
    sub("--goal", type=float, default=0.9, help="the share of what the first learns that is timed (default 0.9)")
    sub("--data", metavar="FOLDER", help="real data instead of planted")
    sub("--profile", choices=PROFILES, help="the workload's size (default smoke)")
    sub("--samples", type=int, help="samples of a pass (default: the workload's)")
    sub("--figure", metavar="FILE", help="save the figure: .png, .svg or .pdf")
    sub("--workers", type=int, help="as -o workers=")
    sub("--slow", metavar="4@2x", help="so many of the workers take so many times as long; as -o speeds=")
    sub("--network", metavar="10Gbit/s", help="each machine's interface; as -o network=")
    sub("--step", metavar="5ms", help="what a worker's step takes where nothing slows it; as -o worker.flops=")
    sub(
        "--model",
        metavar="NAME",
        help="deepfm, dlrm, ffnn: as -o model=, of ctr-synthetic unless --workload says another",
    )
    sub(
        "--trace",
        metavar="FILE",
        help="your workers' step times, which `python -m data_prep trace` fits a slowdown to",
    )
    sub("--columns", metavar="worker=A,time=B,took=C", help="where these stand in the trace")


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
    if options.trace:
        given["slowdown"] = _fitted_slowdown(options.trace, options.columns)
    given |= pairs
    if options.step:
        given["worker.flops"] = _a_step(options, protocol, given)
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


def _a_step(options: argparse.Namespace, protocol: str, given: dict[str, Any]) -> float:
    """Operations a second of a worker for which the gradient of a batch takes the given time. A launch would count twice
    where a replica's optimiser steps too."""
    from notebooks.advisor.trial import Trial

    seconds = units.SECONDS.read(options.step)
    if not seconds or seconds <= 0:
        raise BadOption(f"--step is {options.step!r}; expected {units.SECONDS.name}, such as {units.SECONDS.example}")
    return Trial.of(workload(options), protocol, options.cluster, given).workload.work().flops / seconds


def _fitted_slowdown(trace: str, columns: str | None) -> str:
    """The slowdown's file. It is another program that fits one, since lib needs nothing of what prepares data."""
    out = paths.reports() / f"{Path(trace).stem}.slowdown.yaml"
    fit = [sys.executable, "-m", "data_prep", "trace", trace, str(out), *(["--columns", columns] if columns else [])]
    if subprocess.run(fit, check=False).returncode:
        raise BadOption(f"--trace {trace}: no slowdown was fitted to it")
    return str(out)
