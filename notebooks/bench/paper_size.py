"""Three steps of each paper's model at the paper's size on this machine: python -m notebooks.bench.paper_size FILE.csv [PAPER]

What `full` trains, with the paper's batch of a worker, rates and parameters, on synthetic data, under its protocol and under
what it is compared with, each in a process of its own. It shows that a step of that size runs here, what it takes and what
memory it needs. OAC has half of the paper's batch, since the whole of it was killed at 24 GB. Workers are four, or one of a
pipeline, however many the paper has; nothing is learned in three steps.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

import lib
from lib import Workload
from lib.results import provenance
from lib.tasks.workload import dense_parameters
from notebooks import setting
from notebooks.bench import device
from notebooks.dssync import quality
from notebooks.gba import tasks as gba
from notebooks.persia import tasks as persia
from notebooks.shadowsync import tasks as shadowsync

STEPS, WORKERS = 3, 4
MODELS: dict[str, tuple[Callable[[], Workload], tuple[str, ...]]] = {
    "gba": (lambda: replace(gba.TASKS["criteo"].workload("full"), batch_size=12_800), ("sync", "gba")),
    "shadowsync": (lambda: shadowsync.light(0, world=0), ("fr-easgd", "s-easgd")),
    "oac": (lambda: device.setup_2(250_000, STEPS), ("sequential", "oac")),
    "persia": (lambda: persia.learning_task("criteo", 0, world=0), ("all-reduce", "hybrid")),
    "dssync": (lambda: quality.task_workload("images"), ("all-reduce", "ds-sync")),
}
"""A paper's model and two protocols: the baseline and the paper's own."""


def steps(paper: str, protocol: str) -> dict[str, Any]:
    """A row of the table."""
    setting.use("full")
    model, _ = MODELS[paper]
    workers = 1 if paper == "oac" else WORKERS
    made = model()
    shorter = {"samples": STEPS * workers * made.batch_size}
    shorter |= {name: 1_000 for name in ("evaluation_samples", "evaluation_triples") if hasattr(made, name)}
    task = replace(made, **shorter)
    start = time.perf_counter()
    run = lib.train(task, protocol, lib.VirtualCluster(workers=workers), evaluations=STEPS, save=False)
    took = time.perf_counter() - start
    losses = run.history["train_loss"].dropna()
    return {
        "paper": paper,
        "workload": task.name,
        "protocol": protocol,
        "workers": workers,
        "batch": task.batch_size,
        "dense parameters": dense_parameters(task),
        "seconds a worker's step": took / (STEPS * workers),
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "first loss": losses.iloc[0],
        "last loss": losses.iloc[-1],
        "commit": provenance.commit(),
    }


def rows(papers: list[str]) -> Iterator[dict[str, Any]]:
    for paper in papers:
        for protocol in MODELS[paper][1]:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
                yield alone.submit(steps, paper, protocol).result()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m notebooks.bench.paper_size", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=f"of {', '.join(MODELS)}; all by default")
    settings = parser.parse_args(arguments)
    found = []
    for row in rows(settings.papers or [*MODELS]):
        found.append(row)
        pd.DataFrame(found).to_csv(settings.file, index=False, float_format="%.5g")
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
