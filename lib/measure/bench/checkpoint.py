"""What keeping costs: checkpoints against a plain copy of the same bytes, re-attaching to shared memory, the wire's codecs."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lib.measure.bench.pairs import against, at_most, seconds_of, timed
from lib.measure.bench.pairs import best as least
from lib.store import checkpoint
from lib.store.dump import Dump, dump, restore
from lib.store.optim import Adagrad
from lib.store.rows import Rows
from lib.store.shared_memory import segment
from lib.store.shared_memory.table import SharedTable
from lib.store.table.table import Table
from lib.store.wire.codecs import CODECS

PAIRS = 5
ROWS = 2_000_000
"""Of dim 16 with element-wise Adagrad: 288 MB in a checkpoint."""
GIGABYTE = 7_000_000
"""Such rows in a gigabyte of shared memory."""


def measure() -> Iterator[dict[str, Any]]:
    yield from checkpoints()
    yield from attaching()
    yield from values()


def checkpoints() -> Iterator[dict[str, Any]]:
    """Each beside a plain copy of the same file, pair by pair; `waits` is for the disk (fsync), of both or of neither."""
    table = Table(16, Adagrad(lr=0.1), seed=0, capacity=ROWS)
    table.load(some_rows(ROWS))
    part = {"server0": {"rows": {"t": table.export()}}}
    with tempfile.TemporaryDirectory() as root:
        whole, change, copy = Path(root) / "whole", Path(root) / "change", Path(root) / "copy"
        size = checkpoint.save(whole, part)
        for waits in (False, True):
            yield beside_copy(
                f"save{', waits' * waits}",
                size,
                whole,
                copy,
                waits,
                lambda waits=waits: checkpoint.save(whole, part, durable=waits),
            )
        yield beside_copy("load", size, whole, copy, False, lambda: checkpoint.load(whole))
        yield beside_copy("table to checkpoint", size, whole, copy, False, lambda: save_of(table, whole, dump))
        yield beside_copy("checkpoint to table", size, whole, copy, False, lambda: fill(whole))
        yield beside_copy(
            "table to checkpoint, sorted", size, whole, copy, False, lambda: save_of(table, whole, Table.export)
        )
        yield beside_copy("checkpoint to table, sorted", size, whole, copy, False, lambda: fill(whole))
        checkpoint.save(whole, part)
        ids = np.random.default_rng(0).choice(ROWS, ROWS // 20, replace=False)
        table.push(ids, np.ones((ids.size, 16), np.float32), 2**20)
        part = {"server0": {"rows": {"t": table.export()}}}
        less = checkpoint.save(change, part, base=whole, durable=False)
        seconds = best(lambda: checkpoint.save(change, part, base=whole, durable=False))
        yield {
            "what": "save what changed, 5 % of the rows",
            "bytes": less,
            "share of whole": round(less / size, 3),
            "s": seconds,
        }


def demanded(rows: int, shared: int, rounds: int) -> Iterator[dict[str, Any]]:
    """What is demanded of keeping a table, in the columns of the store's benchmark: rows in a file, rows in shared memory."""
    table = Table(16, Adagrad(lr=0.1), seed=0, capacity=rows)
    table.load(some_rows(rows))
    with tempfile.TemporaryDirectory() as root:
        whole, copy = Path(root) / "whole", Path(root) / "copy"
        size = save_of(table, whole, dump)
        for what, work in (
            ("table to checkpoint", lambda: save_of(table, whole, dump)),
            ("checkpoint to table", lambda: fill(whole)),
        ):
            pairs = timed(partial(plain_copy, whole / "server0.bin", copy, False), work, rounds)
            theirs, mine = (size / 1e9 / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
            rates = {"peer's rate": round(theirs, 2), "our rate": round(mine, 2), "unit": "GB/s"}
            where = {"claim": "checkpoint", "what": what, "peer": "file copy", "rows": rows, "dim": 16}
            yield where | against(0.6, pairs) | rates
    for row in attaching(shared):
        what = f"seconds to {row['what']}, {row['bytes'] / 1e9:.2f} GB"
        yield {"claim": "re-attach", "what": what, "rows": shared, "dim": 16, **at_most(1.0, row["s"])}


def beside_copy(what: str, size: int, whole: Path, copy: Path, waits: bool, work: Callable[[], Any]) -> dict[str, Any]:
    file = whole / "server0.bin"
    pairs = [(seconds_of(lambda: plain_copy(file, copy, waits)), seconds_of(work)) for _ in range(PAIRS)]
    ratios = sorted(plain / mine for plain, mine in pairs)
    return {
        "what": what,
        "bytes": size,
        "GB/s": round(size / 1e9 / statistics.median(mine for _, mine in pairs), 2),
        "copy GB/s": round(size / 1e9 / statistics.median(plain for plain, _ in pairs), 2),
        "ratio": round(statistics.median(ratios), 2),
        "least": round(ratios[0], 2),
        "greatest": round(ratios[-1], 2),
    }


def attaching(rows: int = GIGABYTE) -> Iterator[dict[str, Any]]:
    """As the memory's process left it: between two calls, and in the midst of an update of a seventieth of the rows."""
    name, options = f"bench-{os.getpid()}", {"seed": 0}
    try:
        table = SharedTable(16, Adagrad(lr=0.1), name=name, capacity=rows, **options)
        table.load(some_rows(rows))
        size = table.segment.nbytes
        for what in ("re-attach", "re-attach and repair"):
            if what.endswith("repair"):
                table._records.keep(np.arange(rows // 70))  # the journal is armed, and stays so
            table.close(remove=False)
            start = time.perf_counter()
            table = SharedTable(16, Adagrad(lr=0.1), name=name, **options)
            table.pull(np.arange(4096))
            yield {
                "what": what,
                "bytes": size,
                "s": round(time.perf_counter() - start, 3),
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


def save_of(table: Table, folder: Path, form: Callable[[Table], Any]) -> int:
    return checkpoint.save(folder, {"server0": {"rows": {"t": form(table)}}}, durable=False)


def fill(folder: Path) -> Table:
    content = checkpoint.load(folder, [Dump])["server0"]["rows"]["t"]
    table = Table(16, Adagrad(lr=0.1), seed=0, capacity=1)
    restore(table, content) if type(content) is Dump else table.load(content)
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
