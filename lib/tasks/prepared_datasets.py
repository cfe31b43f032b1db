"""Readers of prepared files: partitions of memory-mapped arrays with a manifest, as `python -m data_prep` writes them.

Any row can be asked for at any time and nothing is held in memory, so a batch is a function of its row numbers alone.


Real data for workloads: a prepared folder in, a data set out.

This is the one door between files and workloads. Each function takes the folder that the user gave as `data`, as
`python -m data_prep` wrote it, and returns what the workload of that kind trains on and is judged by. Where a folder holds
training data alone, as a sample of a data set may, a tenth is held out: the last one, of a graph one that is drawn.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap

from lib.errors import BadOption, Damaged
from lib.store import sealed
from lib.streams import stream
from lib.tasks.behaviours import Remembered
from lib.tasks.clicks_stream import FIELD_SHIFT, Clicks

FORMAT = 2
MISSING = -(2**31)
"""A dense input that the raw file leaves empty."""


class ClickRows(NamedTuple):
    """Samples of a prepared click log."""

    ids: np.ndarray
    """int64 (samples, fields), or as many columns a field as it has ids: (field << FIELD_SHIFT) | code."""
    dense: np.ndarray
    """float32 (samples, dense_features): floats as they were prepared; of whole numbers log(1 + x), and 0 for what is negative or
    missing."""
    labels: np.ndarray
    """float32 (samples,)."""
    history: np.ndarray | None = None
    """int64 (samples, length, 2): the category and the brand of the user's latest behaviours, oldest first, as ids of those
    fields; places after a sample's end hold the code 0."""
    history_length: np.ndarray | None = None
    """int64 (samples,)."""


class Partitions:
    """The rows of each day, or of each split, in the order of its parts."""

    kinds: tuple[str, ...] = ("clicks", "triples", "images", "encoded images", "questions")

    def __init__(self, folder: str | Path, *kinds: str):
        """`kinds`: what the folder may hold, where that is not the class's own choice."""
        self.folder, self.kinds = Path(folder), kinds or self.kinds
        path = self.folder / "manifest.json"
        if self.folder.is_file():
            made = f"`python -m data_prep clicks {folder} FOLDER --label COLUMN` makes one of clicks"
            raise BadOption(f"{folder} is a file; expected a folder that `python -m data_prep` wrote: {made}")
        if not path.is_file():
            raise BadOption(f"there is no {path}; expected a folder that `python -m data_prep` wrote to its end")
        self.manifest = sealed.load(path)
        if self.manifest["plan"]["format"] != FORMAT or self.manifest["kind"] not in self.kinds:
            held = f"{self.manifest['kind']} in format {self.manifest['plan']['format']}"
            raise BadOption(f"{self.folder} holds {held}; expected {' or '.join(self.kinds)} in format {FORMAT}")
        self._parts: dict[int | str, list[dict[str, Any]]] = {}
        for part in self.manifest["partitions"]:
            self._parts.setdefault(part["day"] if "day" in part else part["split"], []).append(part)
        self._arrays: dict[tuple[str, str], np.ndarray] = {}

    @property
    def names(self) -> list[int | str]:
        """The days, or the splits, that hold anything."""
        return sorted(self._parts)

    def rows(self, name: int | str) -> int:
        """How many there are; 0 for a day without any."""
        return sum(part["rows"] for part in self._parts.get(name, ()))

    def files(self, name: int | str, file: str) -> list[Path]:
        """What holds its rows where they are no arrays, part by part."""
        return [self.folder / part["folder"] / file for part in self._parts.get(name, ())]

    def take(self, name: int | str, array: str, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """These rows of an array, or all, copied: numbers from 0, in any order, or a slice."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.rows(name)))
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.rows(name):
            raise BadOption(
                f"{self.folder}: rows {rows.min()} to {rows.max()} of {name!r}, which has {self.rows(name)}"
            )
        dtype, shape = self.manifest["schema"][array]
        found = np.empty((len(rows), *shape), dtype)
        start = 0
        for part in self._parts.get(name, ()):
            here = (rows >= start) & (rows < start + part["rows"])
            if here.any():
                found[here] = self._array(part, array)[rows[here] - start]
            start += part["rows"]
        return found

    def _array(self, part: dict[str, Any], array: str) -> np.ndarray:
        key = part["folder"], array
        if key not in self._arrays:
            path = self.folder / part["folder"] / f"{array}.npy"
            dtype, shape = self.manifest["schema"][array]
            try:
                mapped = open_memmap(path, mode="r") if part["rows"] else np.empty((0, *shape), dtype)
            except Exception as error:  # numpy reads a header as Python, which fails in many ways
                raise Damaged(f"{path}: {error}") from error
            if mapped.shape != (part["rows"], *shape) or mapped.dtype != np.dtype(dtype):
                expected = f"{dtype} {(part['rows'], *shape)}"
                raise Damaged(f"{path}: it holds {mapped.dtype} {mapped.shape}; its manifest says {expected}")
            self._arrays[key] = mapped
        return self._arrays[key]


class PreparedClicks(Partitions):
    """A prepared click log: days of samples for the models of lib.tasks.click_models."""

    kinds = ("clicks",)

    @property
    def fields(self) -> tuple[str, ...]:
        """The categorical fields; their places are in the ids."""
        return tuple(self.manifest["fields"])

    @property
    def pooling(self) -> tuple[int, ...]:
        """Ids of each field that a sample has, where some have several; (): one of each."""
        return tuple(self.manifest.get("pooling", ()))

    @property
    def dense_features(self) -> int:
        return len(self.manifest["dense"])

    def read(self, day: int, rows: np.ndarray | slice) -> ClickRows:
        """These samples of a day."""
        codes = self.take(day, "ids", rows).astype(np.int64)
        labels = self.take(day, "labels", rows).astype(np.float32)
        if self.dense_features:
            dense = self.take(day, "dense", rows)
            if dense.dtype.kind != "f":
                dense = np.log1p(np.maximum(dense, 0), dtype=np.float32)  # MISSING is negative
        else:
            dense = np.empty((len(codes), 0), np.float32)
        shifts = np.repeat(np.arange(len(self.fields)), self.pooling or 1) << FIELD_SHIFT
        if "history" not in self.manifest:
            return ClickRows(codes | shifts, dense, labels)
        history = self.take(day, "history", rows).astype(np.int64) | shifts[self.history_fields]
        return ClickRows(
            codes | shifts, dense, labels, history, self.take(day, "history_length", rows).astype(np.int64)
        )

    @cached_property
    def history_fields(self) -> list[int]:
        """The places of the fields that a behaviour has, where behaviours are known."""
        return [self.fields.index(name) for name in self.manifest["history"]["fields"]]


_BLOCK = 1 << 16  # rows that are shuffled together: a batch touches few pages of a large file


def digest(path: str) -> str:
    """What a run on that folder depends on: the manifest, which holds the digest of every file."""
    manifest = Path(path) / "manifest.json"
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""


def training_samples(path: str) -> int:
    """Training samples in one pass over the folder, whatever it holds."""
    found = Partitions(path)
    if found.manifest["kind"] == "clicks":
        return read_clicks(path, behaviours=False).samples
    return found.rows("train") if len(found.names) > 1 else training_rows(found.rows(found.names[0]), path)


def training_rows(rows: int, path: str | Path) -> int:
    """Rows to train on where a tenth is held out."""
    if rows < 2:
        raise BadOption(f"{path} has {rows} rows; expected at least one to train on and one to be judged by")
    return rows - max(1, rows // 10)


@functools.lru_cache(maxsize=4)
def read_clicks(path: str, *, behaviours: bool) -> ClickPass:
    """A click log, with each user's past behaviours if they are wanted."""
    return ClickPass(PreparedClicks(path), behaviours)


class ClickPass:
    """Training days one after another, each in an order of its own, again and again; and samples of the days after them."""

    def __init__(self, log: PreparedClicks, behaviours: bool):
        self._log, self._behaviours = log, behaviours
        if behaviours and "history" not in log.manifest:
            raise BadOption(
                f"{log.folder} holds no past behaviours; expected those of a data set that has them, as Taobao's"
            )
        self.fields, self.pooling, self.dense_features = len(log.fields), log.pooling, log.dense_features
        self.length = log.manifest["history"]["length"] if behaviours else 0
        sizes = {day: size for day in log.names if (size := log.rows(day))}
        learnt = {day: size for day, size in sizes.items() if day < log.manifest["train_days"]}
        judged = {day: (0, size) for day, size in sizes.items() if day not in learnt}
        if not learnt or not judged:  # a file of a few days, all before or all after the end of training
            learnt, last = dict(sizes), max(sizes, default=0)
            learnt[last] = training_rows(sizes.get(last, 0), log.folder)
            judged = {last: (learnt[last], sizes[last])}
        self._judged = judged
        self._days = list(learnt)
        self._starts = _starts([learnt[day] for day in self._days])

    @property
    def samples(self) -> int:
        """Training samples."""
        return int(self._starts[-1])

    def day(self, place: int) -> int:
        """The day of a place in the endless stream; days count on over the epochs."""
        epoch, within = divmod(place, self.samples)
        return epoch * len(self._days) + _stretch(self._starts, within)[0]

    def train(self, place: int, size: int, seed: int) -> Clicks | Remembered:
        """So many samples from that place of the stream on."""
        pieces = []
        while size:
            epoch, within = divmod(place, self.samples)
            at, first, last = _stretch(self._starts, within)
            take = min(size, last - within)
            rows = _shuffled(last - first, seed, epoch, self._days[at], within - first, within - first + take)
            pieces.append(self._read(self._days[at], rows, stream(seed, "passed", place)))
            place, size = place + take, size - take
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def day_begins(self, day: int) -> int:
        """The first place of a day."""
        epoch, within = divmod(day, len(self._days))
        return epoch * self.samples + int(self._starts[within])

    def held_out(self, most: int, day: int | None = None) -> Clicks | Remembered:
        """Samples of the days that are not trained on, or of one day of the first epoch that is trained on later; evenly
        spread, at most so many."""
        judged = self._judged
        if day is not None and day < len(self._days):
            judged = {self._days[day]: (0, self.day_begins(day + 1) - self.day_begins(day))}
        count = sum(last - first for first, last in judged.values())
        chosen = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
        pieces, before = [], 0
        for day, (first, last) in judged.items():
            here = chosen[(chosen >= before) & (chosen < before + last - first)] - before + first
            if len(here):
                pieces.append(self._read(day, here, stream(0, "passed", "held out", day)))
            before += last - first
        return _joined(pieces)

    def _read(self, day: int, rows: np.ndarray, generator: np.random.Generator) -> Clicks | Remembered:
        found = self._log.read(day, rows)
        nothing = np.empty(0)
        if not self._behaviours:
            return Clicks(found.ids, found.dense, found.labels, nothing)
        target = found.ids[:, self._log.history_fields]
        # What others were shown stands for what this user passed over.
        passed = target[generator.integers(len(target), size=(len(target), self.length))]
        parts = (found.ids, target, found.history.reshape(len(target), -1), passed.reshape(len(target), -1))
        return Remembered(np.concatenate(parts, 1), found.dense, found.labels, nothing, found.history_length)


def _joined(pieces: list[Clicks | Remembered]) -> Clicks | Remembered:
    return type(pieces[0])(*map(np.concatenate, zip(*pieces, strict=True)))


def _shuffled(rows: int, seed: int, epoch: int, day: int, start: int, stop: int) -> np.ndarray:
    """Places start .. stop of a day's order: blocks of rows in any order, and the rows of a block in any order."""
    order, starts = _blocks(rows, seed, epoch, day)
    found = []
    while start < stop:
        at, first, end = _stretch(starts, start)
        inside = _inside(end - first, seed, epoch, day, int(order[at]))
        found.append(int(order[at]) * _BLOCK + inside[start - first : stop - first])
        start = end
    return np.concatenate(found)


def _starts(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where stretches of these sizes begin, one after another, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes)))


def _stretch(starts: np.ndarray, place: int) -> tuple[int, int, int]:
    """The stretch in which a place lies, its first place, and the place after its last."""
    at = int(np.searchsorted(starts, place, side="right")) - 1
    return at, int(starts[at]), int(starts[at + 1])


@functools.lru_cache(maxsize=8)
def _blocks(rows: int, seed: int, epoch: int, day: int) -> tuple[np.ndarray, np.ndarray]:
    order = stream(seed, "blocks", epoch, day).permutation(-(-rows // _BLOCK))
    return order, _starts(np.minimum(_BLOCK, rows - order * _BLOCK))


@functools.lru_cache(maxsize=32)
def _inside(rows: int, seed: int, epoch: int, day: int, block: int) -> np.ndarray:
    return stream(seed, "rows", epoch, day, block).permutation(rows)


def split_parts(path: str, parts: dict[str, tuple], train: str, test: str) -> tuple[tuple, tuple]:
    """The columns to train on and those to be judged by."""
    if test in parts and train in parts:
        return parts[train], parts[test]
    whole = next(iter(parts.values()), ((),))
    kept = training_rows(len(whole[0]), path)
    return tuple(column[:kept] for column in whole), tuple(column[kept:] for column in whole)
