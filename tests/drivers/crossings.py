"""What a worker's step costs on a device that is not there: copies each way, their bytes, and what the host waits for.

    python -m tests.drivers.crossings [PROTOCOL ...]

prints a table, of which each figure is the difference of two runs' lengths, so that beginnings and ends do not count.
"""

import sys
import threading
from collections import Counter

import pandas as pd
import pytest

from lib import LocalCluster, protocols, workloads
from lib.store.device import Arrival
from tests import elsewhere
from tests.toys import records

PROTOCOLS = ("sync", "gba", "all-reduce", "ds-sync", "hybrid", "s-easgd", "oac")
WORKERS, MORE = 2, 6
GRAPH = {"entities": 200, "triples": 400, "dim": 8, "batch_size": 64, "negatives": 10}
CLICKS = {"dim": 8, "hidden": (32,), "batch_size": 32, "evaluation_samples": 64, "vocabulary": 4}
"""Ids so few that the short run meets them all: a new row is made on the host, and crosses once."""


def per_step(name: str) -> dict[str, float]:
    """The figures of one step of a worker, under a protocol of that name."""
    pipeline = protocols.ALL[name].family == "pipeline"
    short, long = (_run(name, steps, 1 if pipeline else WORKERS) for steps in (2, 2 + MORE))
    steps = MORE * (1 if pipeline else WORKERS)
    return {what: (long[what] - short[what]) / steps for what in COLUMNS}


COLUMNS = ("up", "bytes up", "down", "bytes down", "dense", "row bytes", "waits", "waits on the event loop")


def _run(name: str, steps: int, workers: int) -> Counter:
    rule, seen, lock = protocols.get(name), Counter(), threading.Lock()
    pipeline = rule.family == "pipeline"
    size = {"samples": steps * workers * (GRAPH if pipeline else CLICKS)["batch_size"]}
    task = (
        workloads.get("kg-synthetic", **GRAPH, **size) if pipeline else workloads.get("criteo-dlrm", **CLICKS, **size)
    )
    dims = {spec.dim + extra for spec in task.tables().values() for extra in (0, task.row_optimizer.columns(spec.dim))}
    dense = sum(parameter.numel() for parameter in task.model(0).parameters())
    carried_out, on_host = elsewhere.carried_out, Arrival.on_host

    def note(what: str, number: float = 1) -> None:
        with lock:
            seen[what] += number

    def wait() -> None:
        note("waits")
        if threading.current_thread().name == "lockstep":
            note("waits on the event loop")

    def counted(operation, args, kwargs):
        name = operation.overloadpacket.__name__
        if name in elsewhere.COPIES:
            source, target, blocking = elsewhere._copy(name, args, kwargs)
            moved = args[0] if name == "_to_copy" else args[1]
            if source != target:
                way = "down" if target == "cpu" else "up"
                note(way)
                note(f"bytes {way}", moved.numel() * moved.element_size())
                note("dense", moved.dim() == 1 and moved.is_floating_point() and 4 * moved.numel() > dense)
                if moved.dim() == 2 and moved.is_floating_point() and moved.shape[1] in dims:
                    note("row bytes", moved.numel() * moved.element_size())
                if blocking and moved.dim():  # a number is a kernel's argument
                    wait()
        elif name in elsewhere.WAITS:
            wait()
        return carried_out(operation, args, kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elsewhere, "carried_out", counted)
        patch.setattr(Arrival, "on_host", lambda arrival: wait() or on_host(arrival))
        cluster = {} if pipeline else {"workers": workers}
        records(task, rule, LocalCluster(device=str(elsewhere.DEVICE), threads=2, **cluster))
    return seen


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as there:
        elsewhere.as_on_a_device(there)
        rows = {name: per_step(name) for name in sys.argv[1:] or PROTOCOLS}
    print(pd.DataFrame(rows).T.round(2).to_string())
