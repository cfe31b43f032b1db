"""What Persia's compression saves, and what it costs: of indices nothing, of values a rounding (Sec. 4.2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib import workloads
from lib.models.flat import FlatModel
from lib.results.run import Run
from lib.store.spec import RowStore
from lib.store.wire import ids as wire
from lib.store.wire.codecs import Codec, Fp16, Fp32, Int8, ScaledFp16
from lib.streams import stream
from lib.workloads.contract import drawn
from notebooks.persia.tasks import job

CODECS: Mapping[str, Codec] = {"fp32": Fp32(), "fp16": Fp16(), "scaled fp16": ScaledFp16(), "int8": Int8()}
GRID = {
    f"kappa {kappa:g}, {name}": ScaledFp16(kappa=kappa, block=block)
    for kappa in (1.0, 1024.0, 32768.0)
    for name, block in (("a row", None), ("32 rows", 256))
}
"""What the paper leaves open: kappa, "relatively large", and which numbers are a block."""


def _criteo(size: int, exponent: float, seed: int):
    return workloads.get(
        "criteo-ffnn", batch_size=size, samples=size, exponent=exponent, vocabulary=50_000, world=seed, hidden=(64, 32)
    )


def indices(size: int, exponent: float, seed: int) -> dict[str, float]:
    """One batch's ids in both forms: bytes as int64 lists over those with uint16 samples, and whether nothing is lost."""
    task = _criteo(size, exponent, seed)
    batch = drawn(task, seed, 0, size, 0)
    [(ids, where)] = [(batch.ids[table], batch.where[table]) for table in batch.ids]
    raw, short = (wire.encode(form, ids, where, slice(None)) for form in ("entries", "samples"))
    lists = np.repeat(short.ids, short.counts)
    order = np.lexsort((raw, np.repeat(np.arange(size), where.size // size)))
    same = np.lexsort((lists, short.samples))
    equal = np.array_equal(raw[order], lists[same])
    found = {"ratio": raw.nbytes / short.nbytes, "lossless": float(equal)}
    return found | {"entries": raw.size / ids.size, "predicted": 8 / (2 + 10 * ids.size / raw.size)}


def errors(size: int, seed: int) -> pd.DataFrame:
    """What each codec does to the rows' gradients of a fresh model's batch: relative error, and numbers that become 0."""
    task = _criteo(size, 1.2, seed)
    batch = drawn(task, seed, 0, size, 0)
    rows = {
        table: stream(seed, "rows")
        .uniform(-spec.scale, spec.scale, (batch.ids[table].size, spec.dim))
        .astype(np.float32)
        for table, spec in task.tables().items()
    }
    [gradient] = FlatModel(task.model(seed)).step(batch, rows).rows.values()
    found = []
    for name, codec in (CODECS | GRID).items():
        back = codec.decode(codec.encode(gradient))
        error = np.linalg.norm(back - gradient) / np.linalg.norm(gradient)
        lost = np.count_nonzero((back == 0) & (gradient != 0)) / np.count_nonzero(gradient)
        found.append({"codec": name, "batch": size, "relative error": error, "share lost": lost})
    return pd.DataFrame(found)


def compressed(codec: Codec, seed: int, *, samples: int) -> dict[str, Any]:
    """A run of the hybrid whose rows and gradients travel so."""
    return job("criteo", "hybrid", seed, samples=samples) | {"store": RowStore(rows=codec, gradients=codec)}


PROMISED = {"fp32": 4.0, "fp16": 2.0, "scaled fp16": 2 + 4 / 8, "int8": 1 + 4 / 8}
"""Bytes of a number of a row of eight; a row's norm is one of float32."""


def row(codec: str, run: Run, plain: Run) -> dict[str, float]:
    """A run as claims read it: AUC, bytes of rows and their gradients over those of fp32, and over what the codec promises: 8
    numbers to a worker, and 8 with the id of 8 bytes back."""
    moved, whole = (each.summary["bytes_by_kind"] for each in (run, plain))
    share = (moved["pull rows"] + moved["push rows"]) / (whole["pull rows"] + whole["push rows"])
    promised = (16 * PROMISED[codec] + 8) / (16 * PROMISED["fp32"] + 8)
    return {"auc": run.summary["auc"], "bytes over fp32": share, "over the promise": share / promised}
