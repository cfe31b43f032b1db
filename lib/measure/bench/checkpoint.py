"""What keeping costs: checkpoints against a plain copy of the same bytes, re-attaching to shared memory, the wire's codecs."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lib.drivers.cut import KINDS
from lib.measure.bench.pairs import against, at_most, timed
from lib.measure.bench.pairs import best as least
from lib.store import checkpoint
from lib.store.optim import Adagrad
from lib.store.rows import Rows
from lib.store.shared_memory import segment
from lib.store.shared_memory.table import SharedTable
from lib.store.table.table import Table
from lib.store.wire.codecs import CODECS

PAIRS = 5
ROWS = 2_000_000
"""Of dim 16 with element-wise Adagrad: 303 MB in a checkpoint."""
GIGABYTE = 7_000_000
"""Such rows in a gigabyte of shared memory."""


def measure() -> Iterator[dict[str, Any]]:
    yield from checkpoints(ROWS, PAIRS, (False, True))
    yield from attaching()
    yield from values()


def checkpoints(rows: int, rounds: int, waits: Sequence[bool] = (False,)) -> Iterator[dict[str, Any]]:
    """A table on the way that a run's cuts take, there and back, beside a plain copy of the same file, pair by pair.

    `waits` is for the disk (fsync), of both or of neither.
    """
    table = Table(16, Adagrad(lr=0.1), seed=0, capacity=rows)
    table.load(some_rows(rows))
    with tempfile.TemporaryDirectory() as root:
        cut, copy = Path(root) / "cut.safetensors", Path(root) / "copy"
        size = save(table, cut, False)
        works = [(f"table to checkpoint{', waits' * wait}", wait, partial(save, table, cut, wait)) for wait in waits]
        for what, wait, work in [*works, ("checkpoint to table", False, partial(restored, cut))]:
            pairs = timed(partial(plain_copy, cut, copy, wait), work, rounds)
            theirs, mine = (size / 1e9 / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
            rates = {"peer's rate": round(theirs, 2), "our rate": round(mine, 2), "unit": "GB/s"}
            where = {"claim": "checkpoint", "what": what, "peer": "file copy", "rows": rows, "dim": 16}
            yield where | against(0.6, pairs) | rates


def demanded(rows: int, shared: int, rounds: int) -> Iterator[dict[str, Any]]:
    """What is demanded of keeping a table, in the columns of the store's benchmark: rows in a file, rows in shared memory."""
    yield from checkpoints(rows, rounds)
    for row in attaching(shared):
        what = f"seconds to {row['what']}, {row['bytes'] / 1e9:.2f} GB"
        yield {"claim": "re-attach", "what": what, "rows": shared, "dim": 16, **at_most(1.0, row["s"])}


def attaching(rows: int = GIGABYTE) -> Iterator[dict[str, Any]]:
    """As the memory's process left it: between two calls, and in the midst of an update of a seventieth of the rows."""
    name, options = f"bench-{os.getpid()}", {"seed": 0}
    try:
        table = SharedTable(16, Adagrad(lr=0.1), name=name, capacity=rows, **options)
        table.load(some_rows(rows))
        size = table.segment.nbytes
        for what in ("re-attach", "re-attach and repair"):
            if what.endswith("repair"):
                table.segment.keep(np.arange(rows // 70))  # no commit follows
            table.close(remove=False)
            start = time.perf_counter()
            table = SharedTable(16, Adagrad(lr=0.1), name=name, **options)
            table.pull(np.arange(4096))
            yield {
                "what": what,
                "bytes": size,
                "s": float(f"{time.perf_counter() - start:.3g}"),
                "repaired rows": table.repaired,
            }
        table.close()
    finally:
        segment.remove(name)


def values() -> Iterator[dict[str, Any]]:
    """Bytes of float32 a second, into the code and back, on one thread, beside a copy into fresh memory."""
    for dim in (16, 64):
        block = np.random.default_rng(0).normal(0, 1, (2**24 // dim, dim)).astype(np.float32)
        copy = block.nbytes / 1e9 / best(block.copy)
        for name, kind in CODECS.items():
            codec = kind()
            coded = codec.encode(block)
            encode, decode = best(partial(codec.encode, block)), best(partial(codec.decode, coded))
            yield {
                "what": name,
                "dim": dim,
                "bytes a number": round(coded.nbytes / block.size, 3),
                "encode GB/s": None if name == "fp32" else round(block.nbytes / 1e9 / encode, 2),
                "decode GB/s": round(block.nbytes / 1e9 / decode, 2),
                "copy GB/s": round(copy, 2),
                "largest error": float(np.abs(codec.decode(coded) - block).max()),
            }


def some_rows(count: int) -> Rows:
    values = np.random.default_rng(0).random((count, 16), np.float32)
    return Rows(np.arange(count), values, values * values, np.arange(count) % 1000)


def save(table: Table, cut: Path, durable: bool) -> int:
    cut.unlink(missing_ok=True)  # as `plain_copy` does
    return checkpoint.save(cut, {"rows-server0": {"tables": {"t": table.dump()}}}, durable=durable)


def restored(cut: Path) -> Table:
    table = Table(16, Adagrad(lr=0.1), seed=0, capacity=1)
    table.restore(checkpoint.load(cut, KINDS)["rows-server0"]["tables"]["t"])
    return table


def plain_copy(source: Path, target: Path, waits: bool) -> None:
    """As fast as it gets: to a file that is not there, in the memory that the last copy has just given back."""
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
    if waits:
        handle = os.open(target, os.O_RDWR)
        os.fsync(handle)
        os.close(handle)


def best(work: Callable[[], Any]) -> float:
    return least(work, PAIRS)
