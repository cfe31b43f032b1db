"""What one CUDA device makes of this machine: python -m notebooks.bench.device FOLDER, which takes ten minutes and writes there

    machine.json       commit, versions, the card
    figures.csv        from a kernel to four workers together, each figure with what was expected, and plain torch as the peer
    calibration.yaml   the machine as `lockstep calibrate` finds it, the device with it
    pipelines.csv      OAC's setup 2 with a tenth of the paper's batches and with whole ones: its three modes in turn
    threads.csv        samples a second of protocols on four workers of one process, on the device and on cores
    fidelity.csv       the same on a virtual cluster that one worker's run is the model of, and how far that was off

Each part may fail alone: `failed.txt` then says how. Parts begin no more after `--minutes`. None of it is judged: it says how
fast the same code is where there is a device. `--device cpu --small` shows in a minute that all of it runs.
"""

import argparse
import functools
import itertools
import json
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import cpu_count

import lib
from lib import Job, RowStore, Workload, streams
from lib.options.checked import Count
from lib.results import provenance
from lib.store.table import Table
from lib.tasks.graph import Graph, LinkPrediction
from notebooks.bench import device_steps
from notebooks.calibration import fidelity
from notebooks.calibration.calibrate import calibrate
from notebooks.oac import on_disk

THREADS = ("sync", "all-reduce", "gba", "async", "hybrid", "s-easgd")
WORKERS = 4


@dataclass(frozen=True, kw_only=True)
class RandomGraph(LinkPrediction):
    """A random graph: the bench measures what batches hold and cost, not what is learned. A synthetic truth over so many
    entities would take hours to draw."""

    @property
    def graph(self) -> Graph:
        return _random(self.entities, self.relations, self.triples)

    def evaluate(self, model: Any, rows: Any, seed: int, day: int | None = None) -> dict[str, float]:
        return {}


@functools.lru_cache(maxsize=1)
def _random(entities: int, relations: int, triples: int) -> Graph:
    draw = streams.stream(0, "random graph").integers
    train = np.stack([draw(most, size=triples) for most in (entities, relations, entities)], axis=1)
    return Graph(train=train, held_out=train[:100], nodes=entities, kinds=relations)


@dataclass(frozen=True, kw_only=True)
class Filled(RowStore):
    """A store in memory that has met all rows: a call that meets new ones is alone in its table, and in the paper's second epoch
    there are none."""

    entities: Count

    def table(self, *named: Any, **options: Any) -> Table:
        table = super().table(*named, **options)
        for ids in np.array_split(np.arange(self.entities), 1 + self.entities // 1_000_000):
            table.read(ids)
        return table

    def allow_only(self, options: Iterable[str], reason: str) -> None:
        """Nothing else of it is set."""


def setup_2(batch_size: int, batches: int, entities: int = 4_000_000) -> RandomGraph:
    """The paper has 500 thousand triples a batch, which touch a million rows of 50 values and as much state, of 86 million."""
    size = {"batch_size": batch_size, "samples": batch_size * batches, "entities": entities, "triples": 2 * entities}
    return RandomGraph(negatives=1000, dim=50, relations=500, evaluation_triples=100, evaluation_candidates=100, **size)


def pipelines(task: RandomGraph, device: str, turns: int) -> Iterator[dict[str, Any]]:
    """Each turn the modes one right after another, over a new store; a quarter of the cores read, and as many write."""
    some = max(2, cpu_count() // 4)
    busy = {"readers": some, "writers": some, "queue": some, "in_flight": 3 * some}
    modes = {"sequential": {}, "pipelined": busy, "oac": busy}
    store = Filled(entities=task.entities)
    for turn, (mode, options) in itertools.product(range(-1, turns), modes.items()):
        if turn < 0 and mode != "oac":  # what is called for the first time takes longer
            continue
        job = Job.of(task, mode, lib.LocalCluster(device=device), seed=0, store=store, save=False, **options)
        start, busy_before = time.perf_counter(), time.process_time()
        run = job.run(lambda samples: None)
        spent = {"seconds": time.perf_counter() - start, "of cores": time.process_time() - busy_before}
        if turn >= 0:
            share = run.summary.get("rows_validated_away", 0) / run.summary.get("rows_read", 1)
            row = {"triples a batch": task.batch_size, "turn": turn, "protocol": mode, **on_disk.paces(run), **spent}
            yield row | {"validated away": share, "digest": run.digest[:12]}


def threads(task: Workload, devices: Iterable[str]) -> Iterator[dict[str, Any]]:
    for device, protocol in itertools.product(devices, THREADS):
        run = lib.train(task, protocol, lib.LocalCluster(device=device, workers=WORKERS), save=False)
        steps = run.trace[run.trace["kind"] == "compute"]
        took = 1e3 * (steps["end"] - steps["start"]).median()
        yield {
            "device": device,
            "protocol": protocol,
            "samples/s": fidelity.throughput(run, task),
            "ms of a step": took,
        }


def foretold(device: str, steps: int) -> Iterator[dict[str, Any]]:
    """As the page 94_fidelity does it: workers are slowed alike, so that the machine has room for all of them."""
    size = {"batch_size": 8192, "samples": 8192 * steps, "hidden": (128, 64)}
    task, slow = lib.workloads.get("ctr-synthetic", **size), 0.1
    alone = lib.train(task, "async", lib.LocalCluster(device=device, workers=1, speeds=(slow,)), save=False)
    nodes = fidelity.model_of(alone, task, slow)
    for workers in (2, 3, 4):
        cluster = lib.LocalCluster(device=device, workers=workers, slowdown=0.4, speeds=(slow,) * workers)
        yield from fidelity.compare(cluster, task, ("sync", "async", "gba"), nodes)


def calibration(settings: argparse.Namespace) -> None:
    calibrate(settings.folder / "calibration.yaml", quick=settings.small)


def of_pipelines(settings: argparse.Namespace) -> Iterator[dict[str, Any]]:
    triples, entities, turns = (500, 20_000, 1) if settings.small else (50_000, 4_000_000, settings.turns)
    yield from pipelines(setup_2(triples, 8 if settings.small else 40, entities), settings.device, turns)


def of_threads(settings: argparse.Namespace) -> Iterator[dict[str, Any]]:
    task = device_steps.Bench(settings.device, settings.small).task(
        32 if settings.small else 2_048, 8 if settings.small else 100
    )
    yield from threads(task, dict.fromkeys((settings.device, "cpu")))


def of_fidelity(settings: argparse.Namespace) -> Iterator[dict[str, Any]]:
    yield from foretold(settings.device, 16 if settings.small else 100)


def figures(settings: argparse.Namespace, part: Callable) -> Iterator[dict[str, Any]]:
    for row in part(device_steps.Bench(settings.device, settings.small)):
        yield {"part": part.__name__, **row}


PARTS: dict[str, tuple[str, Callable]] = {
    **{part.__name__: ("figures.csv", functools.partial(figures, part=part)) for part in device_steps.PARTS},
    "pipelines": ("pipelines.csv", of_pipelines),
    "threads": ("threads.csv", of_threads),
    "fidelity": ("fidelity.csv", of_fidelity),
    "calibration": ("", calibration),
}
"""In the order of what would be missed most."""


def main(arguments: list[str]) -> int:
    """Run the parts; how many failed."""
    parser = argparse.ArgumentParser(prog="python -m notebooks.bench.device", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="shows that it runs")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no part begins")
    settings = parser.parse_args(arguments)
    lib.LocalCluster(device=settings.device)  # which refuses a device that is not there
    settings.folder.mkdir(parents=True, exist_ok=True)
    (settings.folder / "machine.json").write_text(json.dumps(provenance.machine(), indent=1) + "\n")
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    failed, began = 0, time.perf_counter()
    for name in settings.only or PARTS:
        file, part = PARTS[name]
        if time.perf_counter() - began > 60 * settings.minutes:
            _note_failure(settings.folder, name, "not begun: the time was over")
            continue
        try:
            for row in part(settings) or ():
                rows[file].append(row)
                pd.DataFrame(rows[file]).to_csv(settings.folder / file, index=False, float_format="%.5g")
                print(json.dumps(row, default=float), flush=True)
        except Exception:
            failed += 1
            _note_failure(settings.folder, name, traceback.format_exc(limit=-4))
    return failed


def _note_failure(folder: Path, part: str, why: str) -> None:
    with open(folder / "failed.txt", "a") as file:
        file.write(f"{part}: {why}\n")
    print(f"{part}: {why}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
