"""Click logs that are one delimited row a sample: read in stretches by all threads, kept by day."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from data_prep import lines, partitions, threshold
from data_prep.dataset import Dataset
from data_prep.job import Job
from data_prep.lines import CutOff, Span
from data_prep.parse import MISSING, RARE, RESERVED, Layout, Rows, parse, reason
from data_prep.rejects import reject
from lib.errors import BadOption
from lib.progress import Progress

STRETCH = 256 << 20
"""Bytes of a raw file that make one part; a compressed file cannot be entered in its middle, and is one."""

class Part(NamedTuple):
    """A stretch of a file that one thread prepares."""

    key: str
    span: Span
    layout: Layout
    first: int
    """Line number, from 1, of its first row."""
    rows: int | None
    """Rows that are to be read; None where nobody has counted them."""
    total: int | None
    """Rows of the whole file, if somebody has counted them."""


class ClickLog(Dataset):
    """A subclass says how a file is laid out and which day a row belongs to."""

    days: ClassVar[int]
    takes: ClassVar = Dataset.takes | {"buckets", "min_count", "train_days"}

    @classmethod
    @abstractmethod
    def layout(cls, path: Path) -> Layout:
        """The columns of a file. Raises BadOption if it is none of this data set's."""

    @classmethod
    @abstractmethod
    def day_of(cls, part: Part, at: np.ndarray, rows: Rows) -> np.ndarray:
        """The day of each row, from 0; -1 for one outside the data set's days. `at` counts the file's rows from 0."""

    @classmethod
    def dense(cls, layout: Layout) -> tuple[str, ...]:
        """The NUMBER columns that are inputs."""
        return layout.numbers

    @classmethod
    def work(cls, job: Job) -> dict[str, Any]:
        train_days = job.options.train_days or cls.days - 1
        if not 1 <= train_days <= cls.days:
            raise BadOption(f"--train-days is {train_days}; expected 1 to {cls.days} for {cls.name}")
        threshold.check(job.options.min_count)
        parts = {part.key: part for part in _parts(cls, job)}
        total = sum(part.rows for part in parts.values()) if all(p.rows is not None for p in parts.values()) else None
        sketch = _fit(cls, job, parts, train_days, total) if job.options.min_count else None
        with Progress(total, cls.name, "rows") as progress:
            records = job.parts(parts, lambda key: _prepare(cls, job, parts[key], sketch, progress), progress)
        layout = next(iter(parts.values())).layout
        facts: dict[str, Any] = {
            "kind": "clicks",
            "fields": list(layout.categories),
            "dense": list(cls.dense(layout)),
            "schema": {name: [dtype, list(shape)] for name, (dtype, shape) in _schema(cls, job, layout).items()},
            "codes": {"missing": MISSING, "rare": RARE, "from": RESERVED, "buckets": job.options.buckets},
            "days": cls.days,
            "train_days": train_days,
        }
        if sketch:
            least = job.options.min_count
            facts["threshold"] = {"least": least, "days": train_days, "false_keep": sketch.false_keep(least)}
        facts["positives"] = sum(output["positives"] for record in records for output in record["outputs"])
        return job.finish(records, **facts)


def _schema(kind: type[ClickLog], job: Job, layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    schema = {"labels": ("|u1", ()), "ids": ("<u4" if job.options.buckets else "<i8", (len(layout.categories),))}
    return schema | ({"dense": ("<i4", (len(dense),))} if (dense := kind.dense(layout)) else {})


def _parts(kind: type[ClickLog], job: Job) -> list[Part]:
    """All stretches of all files, those of plain files with their lines counted."""
    found = []
    for number, (path, _) in enumerate(job.files):
        layout = kind.layout(path)
        header = layout.header is not None
        if header and lines.first_line(path) != layout.header:
            raise BadOption(f"{path}, line 1: {lines.first_line(path)[:80]!r}; expected the header {layout.header!r}")
        spans = lines.spans(path, STRETCH)
        if lines.compressed(path):
            found.append(Part(f"{number:03}", spans[0], layout, 1 + header, job.options.sample, None))
            continue
        counting = [job.submit(_count, job, span) for span in spans]
        job.wait(counting)
        counts = [future.result() for future in counting]
        total = sum(counts) - (header and bool(counts))
        left = total if job.options.sample is None else min(total, job.options.sample)
        first = 1
        for place, (span, count) in enumerate(zip(spans, counts, strict=True)):
            skipped = int(header and place == 0)
            rows = min(left, count - skipped)
            if rows:
                found.append(Part(f"{number:03}-{place:05}", span, layout, first + skipped, rows, total))
            first, left = first + count, left - rows
    if not found:
        raise BadOption(f"{', '.join(str(path) for path, _ in job.files)}: no rows")
    return found


def _count(job: Job, span: Span) -> int:
    total = 0
    for block in lines.blocks(span):
        job.check()
        total += lines.count(block)
    return total


class Reading:
    """The rows of a part, block by block: `for rows, at, block in reading`. Counts what it reads, and sets bad rows aside."""

    def __init__(self, job: Job, part: Part):
        self.job, self.part = job, part
        self.read = 0
        self.bad: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[tuple[Rows, np.ndarray, np.ndarray]]:
        part = self.part
        skip = part.span.start == 0 and part.layout.header is not None
        try:
            for block in lines.blocks(part.span):
                self.job.check()
                if skip:
                    block, skip = block[np.flatnonzero(block == 10)[0] + 1 :], False
                count = lines.count(block)
                if part.rows is not None and count > part.rows - self.read:
                    count = part.rows - self.read
                    block = lines.head(block, count)
                rows = parse(block, part.layout, count, self.job.options.buckets)
                for line, start, end, column, code in rows.bad.tolist():
                    text = block[start:end].tobytes()
                    self.set_aside(line, reason(text, code, part.layout), text, part.layout.names[column])
                yield rows, rows.lines.astype(np.int64) + (self.read + part.first - 1 - _headers(part)), block
                self.read += count
                if self.read == part.rows:
                    return
        except CutOff as cut:
            self.set_aside(0, cut.why, cut.tail)
            self.read += 1

    def set_aside(self, line: int, why: str, text: bytes, column: str | None = None) -> None:
        """`line` counts from 0 at the block's beginning."""
        row = reject(self.part.span.path.name, self.part.first + self.read + line, why, text, column)
        self.bad.append(row)


def _headers(part: Part) -> int:
    return int(part.layout.header is not None)


def _fit(kind: type[ClickLog], job: Job, parts: dict[str, Part], train_days: int, total: int | None) -> threshold.Sketch:
    """Counts the values of the training days."""
    path = job.out / partitions.WORK / "sketch.npy"
    if path.exists():
        return threshold.Sketch.load(path)
    sketch = threshold.Sketch()

    def count(part: Part) -> None:
        for rows, at, _ in Reading(job, part):
            day = kind.day_of(part, at, rows)
            sketch.add(rows.codes[(day >= 0) & (day < train_days)])
            progress.advance(len(at))

    with Progress(total, f"{kind.name}: counting values", "rows") as progress:
        job.wait([job.submit(count, part) for part in parts.values()])
    sketch.save(path)
    return sketch


def _prepare(
    kind: type[ClickLog], job: Job, part: Part, sketch: threshold.Sketch | None, progress: Progress
) -> dict[str, Any]:
    writer = partitions.Writer(job.out, part.key, _schema(kind, job, part.layout))
    dense = [part.layout.numbers.index(name) for name in kind.dense(part.layout)]
    reading, checked = Reading(job, part), 0
    try:
        for rows, at, block in reading:
            day = kind.day_of(part, at, rows)
            if sketch:
                sketch.drop_rare(rows.codes, job.options.min_count)
            for each in np.unique(day):
                chosen = slice(None) if (day == each).all() else day == each
                if each < 0:
                    ends = np.flatnonzero(block == 10)
                    for line in rows.lines[chosen].tolist():
                        text = block[ends[line - 1] + 1 if line else 0 : ends[line]].tobytes()
                        reading.set_aside(line, "outside the data set's days", text)
                    continue
                labels = rows.labels[chosen]
                arrays = {"labels": labels, "ids": rows.codes[chosen]}
                if dense:
                    arrays["dense"] = rows.numbers[chosen][:, dense]
                writer.append(int(each), arrays, int(labels.sum()))
            job.limit.check(reading.bad[checked:])
            checked = len(reading.bad)
            progress.advance(len(at))
        job.limit.check(reading.bad[checked:])
        reading.bad.sort(key=lambda row: row["line"])
        return writer.commit(file=part.span.path.name, read=reading.read, rejects=reading.bad)
    finally:
        writer.close()
