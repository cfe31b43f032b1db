"""How fast raw rows are parsed, against pyarrow's CSV reader on the same bytes, and what prepared rows cost to read.

Ours and the peer take turns, since a machine's speed drifts; a ratio is the median of the rounds', above 1 where ours is faster.
pyarrow reads the categories as strings or as dictionaries, whichever is faster in a round, and a compiled kernel makes codes of
them in its own buffers; its block size is its default.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numba import njit
from pyarrow import csv, parquet

from data_prep import criteo, lines
from data_prep.criteo_kaggle import CriteoKaggle
from data_prep.job import Options
from data_prep.parse import MISSING, code_of, parse
from lib.tasks.prepared_datasets import PreparedClicks

BUCKETS = 1_000_000
_BATCH = 4096


def measure(rows: int = 50_000, copies: int = 8, rounds: int = 7) -> pd.DataFrame:
    """All ratios, on a twin of Criteo's file whose rows are read several times over."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        CriteoKaggle.twin(raw, rows, 0)
        data = (raw / "train.txt").read_bytes() * copies
        found = [_parsing(data, rounds, buckets, threads) for buckets in (0, BUCKETS) for threads in (1, 2)]
        CriteoKaggle.prepare(raw, Path(folder) / "out", Options())
        found.append(_reading(Path(folder), rounds))
    return pd.DataFrame(found)


def _parsing(data: bytes, rounds: int, buckets: int, threads: int) -> dict[str, Any]:
    ours = _ours(data, buckets, threads)
    peers = {kind: _pyarrow(data, buckets, threads, kind) for kind in ("strings", "dictionaries")}
    expected = ours()
    for peer in peers.values():
        np.testing.assert_array_equal(peer(), np.concatenate(expected))
    timed = [(_seconds(ours), *(_seconds(peer) for peer in peers.values())) for _ in range(rounds)]
    return {
        "what": f"Criteo rows to numbers and {'buckets' if buckets else 'codes'}",
        "threads": threads,
        "MB/s": len(data) / statistics.median(each[0] for each in timed) / 1e6,
        "peer": "pyarrow.csv + hashing",
        "peer's MB/s": len(data) / statistics.median(min(each[1:]) for each in timed) / 1e6,
        "ratio": statistics.median(min(each[1:]) / each[0] for each in timed),
        "target": 1.0,
    }


def _ours(data: bytes, buckets: int, threads: int) -> Callable[[], list[np.ndarray]]:
    whole = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(whole == 10) + 1
    wanted = np.arange(lines.BLOCK, len(data), lines.BLOCK)
    cuts = np.unique(np.concatenate(([0], ends[np.searchsorted(ends, wanted)], [len(data)])))

    def block(place: int) -> np.ndarray:
        part = whole[cuts[place] : cuts[place + 1]]
        return parse(part, criteo.LAYOUT, lines.count(part), buckets).codes

    def run() -> list[np.ndarray]:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(block, range(len(cuts) - 1)))

    return run


def _pyarrow(data: bytes, buckets: int, threads: int, kind: str) -> Callable[[], np.ndarray]:
    category = pa.string() if kind == "strings" else pa.dictionary(pa.int32(), pa.string())
    types = {"Label": pa.uint8(), **dict.fromkeys(criteo.INTEGERS, pa.int32())}
    types |= dict.fromkeys(criteo.CATEGORIES, category)
    read = csv.ReadOptions(column_names=list(criteo.LAYOUT.names), use_threads=threads > 1)
    pa.set_cpu_count(threads)

    def column(place: int, table: pa.Table, codes: np.ndarray) -> None:
        start = 0
        for chunk in table.column(criteo.CATEGORIES[place]).chunks:
            stop = start + len(chunk)
            if kind == "strings":
                _hashed(*_buffers(chunk), place, buckets, codes[start:stop, place])
            else:
                words = np.empty(len(chunk.dictionary), codes.dtype)
                _hashed(*_buffers(chunk.dictionary), place, buckets, words)
                codes[start:stop, place] = words[chunk.indices.to_numpy()]
            start = stop

    def run() -> np.ndarray:
        table = csv.read_csv(
            pa.BufferReader(data),
            read_options=read,
            parse_options=csv.ParseOptions(delimiter="\t"),
            convert_options=csv.ConvertOptions(column_types=types),
        )
        codes = np.empty((len(table), len(criteo.CATEGORIES)), np.uint32 if buckets else np.int64)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda place: column(place, table, codes), range(len(criteo.CATEGORIES))))
        return codes

    return run


def _buffers(strings: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    _, offsets, text = strings.buffers()
    offsets = np.frombuffer(offsets, np.int32)[strings.offset : strings.offset + len(strings) + 1]
    return offsets, np.frombuffer(text or b"", np.uint8)


@njit(nogil=True, cache=True)
def _hashed(offsets, text, field, buckets, codes):
    """The codes of hex words that stand one after the other."""
    for row in range(len(offsets) - 1):
        value = np.uint64(0)
        for at in range(offsets[row], offsets[row + 1]):
            character = text[at]
            value = (value << np.uint64(4)) | np.uint64(character - 48 if character < 58 else (character | 32) - 87)
        codes[row] = code_of(value, field, buckets) if offsets[row + 1] > offsets[row] else MISSING


def _reading(folder: Path, rounds: int) -> dict[str, Any]:
    """A pass over the ids in batches, in order: from the arrays, and from parquet, which has no quicker way than this."""
    clicks = PreparedClicks(folder / "out")
    path = folder / "all.parquet"
    codes = np.concatenate([clicks.take(day, "ids", slice(None)) for day in clicks.names])
    columns = {f"C{place}": column for place, column in enumerate(codes.T)}
    parquet.write_table(pa.table(columns), path, compression="zstd")

    def arrays() -> int:
        batches = ((day, start) for day in clicks.names for start in range(0, clicks.rows(day), _BATCH))
        return sum(len(clicks.take(day, "ids", slice(start, start + _BATCH))) for day, start in batches)

    def table() -> int:
        batches = parquet.ParquetFile(path).iter_batches(_BATCH)
        return sum(len(np.stack([column.to_numpy() for column in batch.columns], 1)) for batch in batches)

    if arrays() != table():
        raise AssertionError("the two have other rows")
    timed = [(_seconds(arrays), _seconds(table)) for _ in range(rounds)]
    return {
        "what": f"prepared ids in batches of {_BATCH}",
        "threads": 1,
        "MB/s": codes.nbytes / statistics.median(mine for mine, _ in timed) / 1e6,
        "peer": "the same rows in parquet",
        "peer's MB/s": codes.nbytes / statistics.median(theirs for _, theirs in timed) / 1e6,
        "ratio": statistics.median(theirs / mine for mine, theirs in timed),
    }


def _seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
