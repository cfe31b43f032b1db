"""Replay a pipeline's batches one after another: the reference that its result must equal, and the share of repaired rows."""

from collections.abc import Iterable

import numpy as np
import torch

from lib import RowStore, Run, Workload
from lib.results.outcome import digest
from lib.store.dense import DenseStore
from lib.store.rows import Rows
from lib.tasks.flat_model import FlatModel, one_thread


def replaced_share(run: Run) -> float:
    """The share of rows that validation replaced."""
    return run.summary.get("rows_validated_away", 0) / run.summary.get("rows_read", 1)


def equal(run: Run, task: Workload, device: str = "cpu") -> bool:
    """Whether a pipeline left what a serial run leaves that computes the batches in the same order."""
    return run.digest == digest_of(serial(task, run.provenance["seed"], run.summary["order"], device))


def digest_of(left: dict) -> str:
    """The digest of a run whose parts end with this state."""
    return digest({part: {part.partition("/")[2]: content} for part, content in left.items()})


@one_thread()
def serial(workload: Workload, seed: int, order: Iterable[int], device: str = "cpu") -> dict:
    """Sequential training in the given order: rows, optimiser state and timestamps, as a pipeline leaves them."""
    tables = {
        name: RowStore().table(name, spec.dim, workload.row_optimizer, seed=seed, scale=spec.scale)
        for name, spec in workload.tables().items()
    }
    model = FlatModel(workload.model(seed), device, pooling=workload.bags())
    dense = DenseStore(model.vector, workload.dense_optimizer, device=device)
    samples = 0
    for stamp, index in enumerate(order):
        batch, rate = workload.batch(seed, index), workload.lr_factor_at(samples)
        samples += batch.size
        rows = {name: table.read(batch.ids[name]) for name, table in tables.items()}
        model.load(dense.values)
        result = model.step(batch, {name: block.values for name, block in rows.items()})
        dense.apply(result.dense, rate)
        for name, block in rows.items():
            values, state = (torch.from_numpy(part.copy()).to(device) for part in (block.values, block.state))
            workload.row_optimizer.scale_lr(rate).update(values, state, torch.from_numpy(result.rows[name]).to(device))
            stamps = np.full(block.ids.size, stamp)
            tables[name].write(Rows(block.ids, values.cpu().numpy(), state.cpu().numpy(), stamps), newer=False)
    rows = {name: table.export() for name, table in tables.items()}
    return {"server0/rows": rows, "worker0/dense": {0: dense.export()}}
