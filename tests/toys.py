"""Workloads small enough to follow by hand, and serial loops to hold parallel runs against."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lib import protocols, workloads
from lib.cluster.base import Cluster
from lib.drivers.plan import Plan
from lib.drivers.record import PartLog
from lib.results.run import Run
from lib.tasks.flat_model import FlatModel
from lib.tasks.workload import Workload
from lib.training.schedule import DRIVERS
from notebooks.toys import Climb as Climb
from notebooks.toys import Letters as Letters

FIELD = tuple(
    protocols.ALL[name]
    for name in (
        *("easgd", "downpour", "local-sgd", "post-local-sgd", "dynamic-averaging", "slowmo", "diloco"),
        *("sparta", "d-psgd", "ad-psgd", "streaming-diloco", "eager-diloco", "async-local-sgd", "noloco", "des-loc"),
    )
)
"""The replica rules of no paper of this kit's five."""


def one_of_each_composition(names: Iterable[str]) -> list[Any]:
    """The names as parameters: a protocol that goes the same way through the drivers as one before it is tried at night."""
    seen, found = set(), []
    for name in names:
        rule = protocols.get(name)
        dense, exchange, when = rule.dense, getattr(rule.dense, "exchange", None), getattr(rule.dense, "when", None)
        way = (dense.family, rule.sparse.family, type(exchange), getattr(exchange, "ahead", None), type(when))
        way += (getattr(when, "place", None), bool(getattr(when, "overlap", 0)), getattr(dense, "model", None))
        way += (dense.data, dense.blocks, dense.drops)
        found.append(pytest.param(name, marks=pytest.mark.nightly) if way in seen else name)
        seen.add(way)
    return found


def diagonal(rows: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    """All pairs as parameters: each row once with one of the columns in turn; with the others at night."""
    return [
        pytest.param(row, column, marks=() if number % len(columns) == place else pytest.mark.nightly)
        for number, row in enumerate(rows)
        for place, column in enumerate(columns)
    ]


def days_of_clicks(batches: int, batch_size: int = 16, **options: Any) -> Workload:
    """A stream of four days, so small that a batch takes a millisecond."""
    small = {"fields": 3, "vocabulary": 40, "dim": 4, "hidden": (8,), "days": 4, "evaluation_samples": 200, **options}
    return workloads.get("ctr-synthetic", samples=batches * batch_size, batch_size=batch_size, **small)


def clicks(samples: int, batch_size: int, **options: Any) -> Workload:
    """Three fields of few ids, before a small network."""
    small = {"vocabulary": 40, "fields": 3, "hidden": (8,), "evaluation_samples": 300, **options}
    return workloads.get("ctr-synthetic", samples=samples, batch_size=batch_size, **small)


def records(workload: Workload, protocol: Any, cluster: Cluster, seed: int = 0, **options: Any) -> list[PartLog]:
    """What the parts of a run wrote down, with all final parameters."""
    workers = 1 if protocol.dense.family == "pipeline" else cluster.workers
    fixed = {"servers": cluster.servers, "on_nan": "stop", "trace": True}
    plan = Plan(workload=workload, protocol=protocol, workers=workers, seed=seed, **fixed, **options)
    drive = DRIVERS[protocol.dense.family]
    return cluster.open(seed, workers).run(lambda world: drive(world, plan)).records


def finals(parts: Iterable[PartLog]) -> dict[str, Any]:
    """Node and kind -> final parameters."""
    return {f"{part.node}/{kind}": value for part in parts for kind, value in part.final.items()}


def weights(run: Run) -> list[np.ndarray]:
    """Parameters and optimiser state at the end of a run that was kept, apart from timestamps."""
    model = run.model
    rows = [array for each in model.rows.values() for array in (each.ids, each.values, each.state)]
    return [*(model.dense[name] for name in sorted(model.dense)), *rows]


def rounds(batches: int, workers: int) -> list[list[int]]:
    """The batches of each synchronous step; the last may have fewer than `workers`."""
    return [list(range(first, min(first + workers, batches))) for first in range(0, batches, workers)]


def serial_dense(workload: Workload, seed: int, steps: Iterable[Iterable[int]]) -> np.ndarray:
    """A dense workload, trained one update after another, each from the mean gradient of some batches."""
    model = FlatModel(workload.model(seed))
    vector, optimizer = model.vector.detach().clone(), workload.dense_optimizer
    state = optimizer.initial_dense_state(vector)
    for indices in steps:
        model.load(vector)
        gradients = [model.step(workload.batch(seed, index), {}).dense for index in indices]
        optimizer.step(vector, state, torch.stack(gradients).mean(0))
    return vector.numpy()


def run_of(history: Any, provenance: dict[str, Any] | None = None, **summary: Any) -> Run:
    """A run that has a history and a summary, and nothing else."""
    return Run(pd.DataFrame(history), summary, pd.DataFrame(), pd.DataFrame(), provenance or {}, "")


def evaluated_run(auc: float, **summary: Any) -> Run:
    """A run that was evaluated once, at its end."""
    return run_of({"samples": [100], "time": [1.0], "auc": [auc]}, auc=auc, **summary)
