"""Readers of prepared files: partitions of memory-mapped arrays with a manifest, as `python -m data_prep` writes them.

Any row can be asked for at any time and nothing is held in memory, so a batch is a function of its row numbers alone.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap

from lib.data.clicks import FIELD_SHIFT
from lib.errors import BadOption, Damaged
from lib.store import sealed

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
    """A prepared click log: days of samples for the models of lib.models.ctr."""

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
