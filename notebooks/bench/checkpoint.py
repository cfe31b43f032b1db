"""What keeping a table costs: checkpoints against a plain copy of the same bytes, re-attaching to shared memory."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lib import Adagrad
from lib.store import checkpoint, shared_memory
from lib.store.rows import Rows
from lib.store.shared_memory import SharedTable
from lib.store.table import Table
from notebooks.bench.pairs import against, at_most, time_in_turn


def checkpoints(rows: int, rounds: int) -> Iterator[dict]:
    """A table on the way that a run's cuts take, there and back, next to a plain copy of the same file, pair by pair."""
    table = Table(16, Adagrad(lr=0.1), seed=0, capacity=rows)
    table.load(some_rows(rows))
    with tempfile.TemporaryDirectory() as root:
        cut, copy = Path(root) / "cut.pt", Path(root) / "copy"
        size = save(table, cut)
        works = {"table to checkpoint": partial(save, table, cut), "checkpoint to table": partial(restored, cut)}
        for what, work in works.items():
            pairs = time_in_turn(partial(plain_copy, cut, copy), work, rounds)
            where = {"claim": "checkpoint", "what": what, "peer": "file copy", "rows": rows, "dim": 16}
            yield where | against(0.6, pairs, size / 1e9, "GB/s")


def attaching(rows: int) -> Iterator[dict]:
    """To rows in shared memory as their process left them: between two calls, and in the midst of an update of a seventieth of
    them."""
    name, options = f"bench-{os.getpid()}", {"seed": 0}
    try:
        table = SharedTable(16, Adagrad(lr=0.1), name=name, capacity=rows, **options)
        table.load(some_rows(rows))
        size = table.nbytes / 1e9
        for what in ("re-attach", "re-attach and repair"):
            if what.endswith("repair"):
                table.segment.save_for_undo(np.arange(rows // 70))  # no commit follows
            table.close(remove=False)
            start = time.perf_counter()
            table = SharedTable(16, Adagrad(lr=0.1), name=name, **options)
            table.pull(np.arange(4096))
            seconds = time.perf_counter() - start
            where = {"claim": "re-attach", "what": f"seconds to {what}, {size:.2f} GB", "rows": rows, "dim": 16}
            yield where | at_most(1.0, seconds)
        table.close()
    finally:
        shared_memory.remove(name)


def some_rows(count: int) -> Rows:
    values = np.random.default_rng(0).random((count, 16), np.float32)
    return Rows(np.arange(count), values, values * values, np.arange(count) % 1000)


def save(table: Table, cut: Path) -> int:
    cut.unlink(missing_ok=True)  # as `plain_copy` does
    return checkpoint.save(cut, {"rows-server0": {"tables": {"t": table.dump()}}}, durable=False)


def restored(cut: Path) -> Table:
    table = Table(16, Adagrad(lr=0.1), seed=0, capacity=1)
    table.restore(checkpoint.load(cut)["rows-server0"]["tables"]["t"])
    return table


def plain_copy(source: Path, target: Path) -> None:
    """As fast as it gets: to a file that is not there, in the memory that the last copy has just given back."""
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
