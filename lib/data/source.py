"""Real data for workloads: a prepared folder in, a data set out.

This is the one door between files and workloads. Each function takes the folder that the user gave as `data`, as
`python -m data_prep` wrote it, and returns what the workload of that kind trains on and is judged by. Where a folder holds
training data alone, as a sample of a data set may, a tenth is held out: the last one, of a graph one that is drawn.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.data.behaviours import Remembered
from lib.data.clicks import Clicks
from lib.data.encoded import EncodedImages
from lib.data.images import RealImages
from lib.data.prepared import Partitions, PreparedClicks
from lib.data.questions import Question
from lib.data.triples import Graph
from lib.errors import BadOption
from lib.streams import stream

_BLOCK = 1 << 16  # rows that are shuffled together: a batch touches few pages of a large file


def digest(path: str) -> str:
    """What a run on that folder depends on: the manifest, which holds the digest of every file."""
    manifest = Path(path) / "manifest.json"
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""


def samples(path: str) -> int:
    """Training samples in one pass over the folder, whatever it holds."""
    found = Partitions(path)
    if found.manifest["kind"] == "clicks":
        return clicks(path, behaviours=False).samples
    return found.rows("train") if len(found.names) > 1 else _kept(found.rows(found.names[0]), path)


def _kept(rows: int, path: str | Path) -> int:
    """Rows to train on where a tenth is held out."""
    if rows < 2:
        raise BadOption(f"{path} has {rows} rows; expected at least one to train on and one to be judged by")
    return rows - max(1, rows // 10)


@functools.lru_cache(maxsize=4)
def graph(path: str, held_out: str) -> Graph:
    """A knowledge graph."""
    found = Partitions(path, "triples")
    parts = {split: found.take(split, "triples").astype(np.int64) for split in ("train", "valid", "test")}
    if found.names == ["train"]:
        order, kept = stream(0, "held out").permutation(len(parts["train"])), _kept(len(parts["train"]), path)
        parts["train"], parts[held_out] = (parts["train"][np.sort(rows)] for rows in (order[:kept], order[kept:]))
    if not len(parts[held_out]):
        raise BadOption(
            f"data={path!r} holds no {held_out} triples to rank; held_out is one of {', '.join(map(str, found.names))}"
        )
    return Graph(
        train=parts["train"],
        held_out=parts[held_out],
        apart=parts["valid" if held_out == "test" else "test"],
        nodes=found.manifest["entities"],
        kinds=found.manifest["relations"],
    )


@functools.lru_cache(maxsize=4)
def clicks(path: str, *, behaviours: bool) -> ClickPass:
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
            learnt[last] = _kept(sizes.get(last, 0), log.folder)
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


@functools.lru_cache(maxsize=2)
def images(path: str, side: int) -> RealImages:
    """Images: arrays in memory, or encoded ones that are decoded, `side` pixels wide, when they are asked for."""
    found = Partitions(path, "images", "encoded images")
    if found.manifest["kind"] == "encoded images":
        train, test = (EncodedImages(found.files(name, "rows.parquet"), side) for name in ("train", "val"))
        return RealImages(train, train.labels, test, test.labels, len(found.manifest["classes"]))
    label, classes = list(found.manifest["classes"].items())[-1]
    parts = {name: (found.take(name, "images"), found.take(name, label).astype(np.int64)) for name in found.names}
    train, test = _split(path, parts, "train", "test")
    return RealImages(*train, *test, classes)


class RealQuestions(NamedTuple):
    train: list[Question]
    test: list[Question]


@functools.lru_cache(maxsize=2)
def questions(path: str) -> RealQuestions:
    """Questions and their passages, all of them in memory."""
    from pyarrow import parquet

    found = Partitions(path, "questions")
    parts = {}
    for split in found.names:
        rows = []
        for file in found.files(split, "rows.parquet"):
            table = parquet.read_table(file)
            columns = (table[name].to_pylist() for name in ("question", "context", "answers", "starts"))
            rows += [Question(q, c, tuple(a), s[0]) for q, c, a, s in zip(*columns, strict=True)]
        parts[split] = (rows,)
    (train,), (test,) = _split(path, parts, "train", "dev")
    return RealQuestions(train, test)


def _split(path: str, parts: dict[str, tuple], train: str, test: str) -> tuple[tuple, tuple]:
    """The columns to train on and those to be judged by."""
    if test in parts and train in parts:
        return parts[train], parts[test]
    whole = next(iter(parts.values()), ((),))
    kept = _kept(len(whole[0]), path)
    return tuple(column[:kept] for column in whole), tuple(column[kept:] for column in whole)
