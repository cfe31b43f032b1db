"""One step of a registered workload's model, on any device."""

import numpy as np

from lib import workloads
from lib.tasks.flat_model import FlatModel, StepResult
from lib.tasks.workload import Workload


def of(name: str) -> Workload:
    """The workload at its smallest."""
    least = {"batch_size": 8, "entities": 200, "triples": 2_000}
    known = workloads.options(name)
    return workloads.get(name, "smoke", **{option: least[option] for option in least if option in known})


def step(task: Workload, device: str) -> StepResult:
    batch, rng = task.batch(0, 0), np.random.default_rng(0)
    rows = {
        table: 0.1 * rng.standard_normal((len(batch.ids[table]), spec.dim), np.float32)
        for table, spec in task.tables().items()
    }
    return FlatModel(task.model(0), device, task.bags()).step(batch, rows)
