"""Images of classes: synthetic ones whose best accuracy is known, and real ones with the usual augmentation.

Large data sets, such as ImageNet, stay encoded on disk as JPEG or PNG and are decoded when a batch needs them.
"""

import bisect
import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pyarrow import parquet
from torch.nn import functional as F

from lib.streams import stream
from lib.tasks.prepared_datasets import Partitions, split_parts

_COARSE = 4  # side in pixels of the noise from which a class's pattern is enlarged
_PAD = 4  # pixels by which a real image may move


class Images(NamedTuple):
    pixels: np.ndarray
    """float32 (samples, channels, side, side), about mean 0 and variance 1."""
    labels: np.ndarray
    """int64 (samples,) classes."""


@dataclass(frozen=True, kw_only=True)
class ImageStream:
    """Synthetic images: each class is a smooth pattern, which an image moves by up to `shift` pixels around a torus, plus noise.

    So the probability of each class, given the image, is known.
    """

    classes: int
    """Number of classes, equally likely."""
    side: int
    """Pixels of a side."""
    channels: int
    """Colours."""
    shift: int
    """Most pixels by which a pattern is moved, in each direction."""
    noise: float
    """Standard deviation of a pixel's noise; that of a pattern is 1."""
    world: int
    """Seed of the patterns, independent of the seed of samples."""

    def draw(self, size: int, *, seed: int, first: object) -> Images:
        generator = stream(seed, "images", first)
        labels = generator.integers(self.classes, size=size)
        moves = generator.integers((2 * self.shift + 1) ** 2, size=size)
        pixels = generator.standard_normal((size, self.channels, self.side, self.side), dtype=np.float32)
        pixels *= np.float32(self.noise)
        pixels += _patterns(self)[labels, moves]
        pixels /= np.float32((1 + self.noise**2) ** 0.5)
        return Images(pixels, labels)

    def best(self, pixels: np.ndarray) -> np.ndarray:
        """The likeliest class of each image; a class's likelihood is the sum over the moves."""
        patterns = _patterns(self)
        flat = patterns.reshape(-1, pixels[0].size)
        products = pixels.reshape(len(pixels), -1) @ flat.T * np.float32((1 + self.noise**2) ** 0.5)
        logs = (products - 0.5 * np.square(flat).sum(1)) / np.float32(self.noise**2)
        return np.logaddexp.reduce(logs.reshape(len(pixels), *patterns.shape[:2]), axis=2).argmax(1)


@functools.lru_cache(maxsize=4)
def _patterns(images: ImageStream) -> np.ndarray:
    """float32 (classes, moves, channels, side, side)."""
    shape = (images.classes, images.channels, _COARSE, _COARSE)
    coarse = torch.from_numpy(stream(images.world, "patterns").standard_normal(shape, dtype=np.float32))
    smooth = F.interpolate(coarse, size=(images.side, images.side), mode="bicubic", align_corners=False).numpy()
    smooth -= smooth.mean((1, 2, 3), keepdims=True)
    smooth /= smooth.std((1, 2, 3), keepdims=True)
    steps = range(-images.shift, images.shift + 1)
    return np.stack([np.roll(smooth, (down, right), (2, 3)) for down in steps for right in steps], 1)


class RealImages(NamedTuple):
    """A data set as it is stored."""

    train: np.ndarray
    """uint8 (images, channels, side, side)."""
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    classes: int


def standardise(images: np.ndarray, colour_moments: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Scale bytes to float32 by the mean and deviation of each colour in the training images."""
    mean, spread = (part[:, None, None] for part in colour_moments)
    return (images.astype(np.float32) - mean) / spread


def colour_moments(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each colour."""
    return images.mean((0, 2, 3), dtype=np.float32), images.std((0, 2, 3), dtype=np.float32)


def augment(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Mirror half of the images, and move each by up to four pixels each way; pixels from outside are 0."""
    size, side = len(images), images.shape[-1]
    mirrored = generator.random(size) < 0.5
    images = np.where(mirrored[:, None, None, None], images[..., ::-1], images)
    padded = np.pad(images, ((0, 0), (0, 0), (_PAD, _PAD), (_PAD, _PAD)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(2, 3))
    down, right = generator.integers(2 * _PAD + 1, size=(2, size))
    return np.ascontiguousarray(windows[np.arange(size), :, down, right])


CROP = 0.875
"""Share of the shorter side in the central square, as is usual for evaluations on ImageNet."""


class EncodedImages:
    """An array of bytes (images, 3, side, side) of which rows can be read; they are decoded on reading."""

    def __init__(self, files: Sequence[Path], side: int):
        """`files`: the rows that `python -m data_prep imagenet` wrote."""
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
            found[place] = decode(_images(path, number)[row - self._ends[group] + count], self._side)
        return found


def decode(image: bytes, side: int) -> np.ndarray:
    """The central square of a picture as bytes (3, side, side)."""
    from PIL import Image  # only encoded images need it

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


@functools.lru_cache(maxsize=2)
def read_images(path: str, side: int) -> RealImages:
    """Read images: arrays in memory, or encoded ones, which are decoded to `side` pixels on reading."""
    found = Partitions(path, "images", "encoded images")
    if found.manifest["kind"] == "encoded images":
        train, test = (EncodedImages(found.files(name, "rows.parquet"), side) for name in ("train", "val"))
        return RealImages(train, train.labels, test, test.labels, len(found.manifest["classes"]))
    label, classes = list(found.manifest["classes"].items())[-1]
    parts = {name: (found.take(name, "images"), found.take(name, label).astype(np.int64)) for name in found.names}
    train, test = split_parts(path, parts, "train", "test")
    return RealImages(*train, *test, classes)
