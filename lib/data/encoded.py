"""Images that stay encoded on disk, JPEG or PNG, and are decoded when they are asked for: ImageNet does not fit in memory."""

from __future__ import annotations

import bisect
import functools
import io
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from pyarrow import parquet

CROP = 0.875
"""Share of the shorter side that the square in the middle keeps, as everyone evaluates ImageNet."""


class EncodedImages:
    """Behaves as an array of bytes (images, 3, side, side) of which only rows are taken."""

    def __init__(self, files: Sequence[Path], side: int):
        """`files`: of rows, as `python -m data_prep imagenet` writes them."""
        self._side = side
        labels = [parquet.read_table(path, columns=["label"])["label"].to_numpy() for path in files]
        self.labels = np.concatenate(labels).astype(np.int64)
        groups = []
        for path in files:
            about = parquet.read_metadata(path)
            groups += [(path, number, about.row_group(number).num_rows) for number in range(about.num_row_groups)]
        self._groups = groups
        self._ends = list(accumulate(rows for *_, rows in groups))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, self._side, self._side

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        rows = np.arange(len(self))[rows]
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in enumerate(rows.tolist()):
            group = bisect.bisect_right(self._ends, row)
            path, number, count = self._groups[group]
            found[place] = decoded(_images(path, number)[row - self._ends[group] + count], self._side)
        return found


def decoded(image: bytes, side: int) -> np.ndarray:
    """The middle of a picture as bytes (3, side, side)."""
    from PIL import Image  # comes with matplotlib; who has no encoded images needs none

    with Image.open(io.BytesIO(image)) as picture:
        width, height = picture.size
        kept = min(width, height) * CROP
        left, top = (width - kept) / 2, (height - kept) / 2
        square = picture.convert("RGB").resize(
            (side, side), Image.Resampling.BILINEAR, box=(left, top, left + kept, top + kept)
        )
    return np.asarray(square).transpose(2, 0, 1)


@functools.lru_cache(maxsize=64)
def _images(path: Path, group: int) -> list[bytes]:
    with parquet.ParquetFile(path) as file:
        return file.read_row_group(group, columns=["image"])["image"].to_pylist()
