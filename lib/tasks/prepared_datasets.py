"""Readers of folders that `python -m data_prep` wrote: partitions of memory-mapped arrays with a manifest.

Rows are read where they lie on disk, in any order, so a batch is a function of its row numbers. If a folder has only training
data, as a sample of a data set may, the last tenth is held out.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from lib.errors import BadOption, Damaged
from lib.store import sealed
from lib.streams import stream
from lib.tasks.clicks_stream import FIELD_SHIFT, Clicks, concatenate

FORMAT = 2
MISSING = -(2**31)
"""A dense input that the raw file leaves empty."""


class Partitions:
    """The rows of each day, or of each split, in the order of its parts."""

    kinds: tuple[str, ...] = ("clicks", "triples", "images", "encoded images", "questions")

    def __init__(self, folder: str | Path, *kinds: str):
        """`kinds`: data that the folder may hold; by default `kinds` of the class."""
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
        """The days or splits that have rows."""
        return sorted(self._parts)

    def rows(self, name: int | str) -> int:
        """Rows of a day or split; 0 if there are none."""
        return sum(part["rows"] for part in self._parts.get(name, ()))

    def files(self, name: int | str, file: str) -> list[Path]:
        """The files of a day or split, part by part, where its rows are not arrays."""
        return [self.folder / part["folder"] / file for part in self._parts.get(name, ())]

    def take(self, name: int | str, array: str, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Copy rows of an array, by default all: numbers from 0 in any order, or a slice."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.rows(name)))
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.rows(name):
            asked = f"rows {rows.min()} to {rows.max()} of {name!r}"
            raise BadOption(f"{self.folder}: {asked}, which has {self.rows(name)}")
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

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        self.fields = tuple(self.manifest["fields"])
        """The names of the categorical fields, in the order of the ids."""
        self.pooling = tuple(self.manifest.get("pooling", ()))
        """Ids of each field that a sample has; (): one of each."""
        self.dense_features = len(self.manifest["dense"])
        history = self.manifest.get("history", {"fields": ()})["fields"]
        self.history_fields = [*map(self.fields.index, history)]
        """The places of a behaviour's fields among `fields`."""

    def read(self, day: int, rows: np.ndarray | slice) -> Clicks:
        """Samples of a day. Numbers are floats as they were prepared; of whole ones log(1 + x), and 0 if negative or missing."""
        codes = self.take(day, "ids", rows).astype(np.int64)
        labels = self.take(day, "labels", rows).astype(np.float32)
        dense = self.take(day, "dense", rows) if self.dense_features else np.empty((len(codes), 0), np.float32)
        if dense.dtype.kind != "f":
            dense = np.log1p(np.maximum(dense, 0), dtype=np.float32)  # MISSING is negative
        shifts = np.repeat(np.arange(len(self.fields)), self.pooling or 1) << FIELD_SHIFT
        if "history" not in self.manifest:
            return Clicks(codes | shifts, dense, labels)
        history = self.take(day, "history", rows).astype(np.int64) | shifts[self.history_fields]
        length = self.take(day, "history_length", rows).astype(np.int64)
        return Clicks(codes | shifts, dense, labels, behaviours=length, history=history)


_BLOCK = 1 << 16  # rows that are shuffled together, so that a batch touches few pages of a large file


def manifest_digest(folder: str) -> str:
    """A hash of the folder's manifest, which has the digest of every file; "" without a manifest."""
    manifest = Path(folder) / "manifest.json"
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""


def training_samples(path: str) -> int:
    """Training samples in one pass over a folder of any kind."""
    found = Partitions(path)
    if found.manifest["kind"] == "clicks":
        return read_clicks(path, behaviours=False).samples
    return found.rows("train") if len(found.names) > 1 else training_rows(found.rows(found.names[0]), path)


def training_rows(rows: int, path: str | Path) -> int:
    """Rows to train on if a tenth is held out."""
    if rows < 2:
        raise BadOption(f"{path} has {rows} rows; expected at least one to train on and one to evaluate")
    return rows - max(1, rows // 10)


@functools.lru_cache(maxsize=4)
def read_clicks(path: str, *, behaviours: bool) -> PreparedClickStream:
    """The stream of a click log; with `behaviours`, samples have their user's past behaviours."""
    return PreparedClickStream(path, behaviours)


class PreparedClickStream(PreparedClicks):
    """An endless stream over the training days, each in random order, epoch after epoch; and samples of the later days."""

    def __init__(self, folder: str | Path, behaviours: bool):
        super().__init__(folder)
        self._behaviours = behaviours
        if behaviours and "history" not in self.manifest:
            raise BadOption(f"{folder} holds no past behaviours; expected a data set that has them, as Taobao's")
        self.length = self.manifest["history"]["length"] if behaviours else 0
        sizes = {day: size for day in self.names if (size := self.rows(day))}
        train_days = {day: size for day, size in sizes.items() if day < self.manifest["train_days"]}
        test_days = {day: (0, size) for day, size in sizes.items() if day not in train_days}
        if not train_days or not test_days:  # a file of a few days, all before or all after the end of training
            train_days, last = dict(sizes), max(sizes, default=0)
            train_days[last] = training_rows(sizes.get(last, 0), folder)
            test_days = {last: (train_days[last], sizes[last])}
        self._test_days = test_days
        self._days = list(train_days)
        self._stretch_bounds = _stretch_bounds([train_days[day] for day in self._days])

    @property
    def samples(self) -> int:
        """Training samples."""
        return int(self._stretch_bounds[-1])

    def day(self, place: int) -> int:
        """The day of a place in the endless stream; days continue over the epochs."""
        epoch, within = divmod(place, self.samples)
        return epoch * len(self._days) + _find_stretch(self._stretch_bounds, within)[0]

    def train(self, place: int, size: int, seed: int) -> Clicks:
        """Samples from a place of the stream on."""
        pieces = []
        while size:
            epoch, within = divmod(place, self.samples)
            at, first, last = _find_stretch(self._stretch_bounds, within)
            take = min(size, last - within)
            rows = _shuffled_rows(last - first, seed, epoch, self._days[at], within - first, within - first + take)
            pieces.append(self._read(self._days[at], rows, stream(seed, "passed", place)))
            place, size = place + take, size - take
        return concatenate(pieces)

    def day_begins(self, day: int) -> int:
        """The first place of a day."""
        epoch, within = divmod(day, len(self._days))
        return epoch * self.samples + int(self._stretch_bounds[within])

    def held_out(self, most: int, day: int | None = None) -> Clicks:
        """At most so many samples for an evaluation, evenly spread over the test days, or over one day of the first epoch."""
        test_days = self._test_days
        if day is not None and day < len(self._days):
            test_days = {self._days[day]: (0, self.day_begins(day + 1) - self.day_begins(day))}
        count = sum(last - first for first, last in test_days.values())
        chosen = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
        pieces, before = [], 0
        for day, (first, last) in test_days.items():
            here = chosen[(chosen >= before) & (chosen < before + last - first)] - before + first
            if len(here):
                pieces.append(self._read(day, here, stream(0, "passed", "held out", day)))
            before += last - first
        return concatenate(pieces)

    def _read(self, day: int, rows: np.ndarray, generator: np.random.Generator) -> Clicks:
        found = self.read(day, rows)
        if not self._behaviours:
            return found._replace(behaviours=None, history=None)
        target = found.ids[:, self.history_fields]
        # Items that other users were shown stand for items that this user did not choose.
        passed = target[generator.integers(len(target), size=(len(target), self.length))]
        parts = (found.ids, target, found.history.reshape(len(target), -1), passed.reshape(len(target), -1))
        return found._replace(ids=np.concatenate(parts, 1), history=None)


def _shuffled_rows(rows: int, seed: int, epoch: int, day: int, start: int, stop: int) -> np.ndarray:
    """Rows at places start .. stop of a day: blocks of rows in random order, and random order within a block."""
    order, starts = _block_order_and_bounds(rows, seed, epoch, day)
    found = []
    while start < stop:
        at, first, end = _find_stretch(starts, start)
        inside = _within_block(end - first, seed, epoch, day, int(order[at]))
        found.append(int(order[at]) * _BLOCK + inside[start - first : stop - first])
        start = end
    return np.concatenate(found)


def _stretch_bounds(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where consecutive stretches of these sizes begin, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes)))


def _find_stretch(starts: np.ndarray, place: int) -> tuple[int, int, int]:
    """The stretch in which a place lies, its first place, and the place after its last."""
    at = int(np.searchsorted(starts, place, side="right")) - 1
    return at, int(starts[at]), int(starts[at + 1])


@functools.lru_cache(maxsize=8)
def _block_order_and_bounds(rows: int, seed: int, epoch: int, day: int) -> tuple[np.ndarray, np.ndarray]:
    order = stream(seed, "blocks", epoch, day).permutation(-(-rows // _BLOCK))
    return order, _stretch_bounds(np.minimum(_BLOCK, rows - order * _BLOCK))


@functools.lru_cache(maxsize=32)
def _within_block(rows: int, seed: int, epoch: int, day: int, block: int) -> np.ndarray:
    return stream(seed, "rows", epoch, day, block).permutation(rows)


def train_and_test_columns(path: str, parts: dict[str, tuple], train: str, test: str) -> tuple[tuple, tuple]:
    """The columns to train on and the columns to evaluate."""
    if test in parts and train in parts:
        return parts[train], parts[test]
    whole = next(iter(parts.values()), ((),))
    kept = training_rows(len(whole[0]), path)
    return tuple(column[:kept] for column in whole), tuple(column[kept:] for column in whole)
