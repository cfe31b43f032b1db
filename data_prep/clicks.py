"""Click logs that are one delimited row a sample: read in stretches by all threads, kept by day."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep import partitions, threshold
from data_prep.dataset import Dataset
from data_prep.job import Job
from data_prep.parse import MISSING, RARE, RESERVED, Layout, Rows
from data_prep.reading import Part, Reading, cut
from lib.progress import Progress


class ClickLog(Dataset):
    """A subclass says how a file is laid out and which day a row belongs to."""

    days: ClassVar[int]
    takes: ClassVar = Dataset.takes | {"buckets", "min_count", "count_bits", "train_days"}

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
        train_days = job.options.training(cls.days, held_out=bool(job.roles))
        parts = {part.key: part for part in cut(job, cls.layout)}
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
            "days": cls.days + bool(job.roles),
            "train_days": train_days,
        }
        if sketch:
            facts["threshold"] = sketch.describe(job.options.min_count, train_days)
        facts["positives"] = sum(output["positives"] for record in records for output in record["outputs"])
        return job.finish(records, **facts)


def _schema(kind: type[ClickLog], job: Job, layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    schema = {"labels": ("|u1", ()), "ids": ("<u4" if job.options.buckets else "<i8", (len(layout.categories),))}
    return schema | ({"dense": ("<i4", (len(dense),))} if (dense := kind.dense(layout)) else {})


def _days(kind: type[ClickLog], job: Job, part: Part, at: np.ndarray, rows: Rows) -> np.ndarray:
    """The day of each row; a file that was given to be held out is the day after the last."""
    return np.full(len(at), kind.days) if part.span.path in job.roles else kind.day_of(part, at, rows)


def _fit(
    kind: type[ClickLog], job: Job, parts: dict[str, Part], train_days: int, total: int | None
) -> threshold.Sketch:
    """Counts the values of the training days."""
    path = job.out / partitions.WORK / "sketch.npy"
    if path.exists():
        return threshold.Sketch.load(path)
    sketch = threshold.Sketch(job.options.count_bits)

    def count(part: Part) -> None:
        for rows, at, _ in Reading(job, part, buckets=job.options.buckets):
            day = _days(kind, job, part, at, rows)
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
    reading = Reading(job, part, job.limit, job.options.buckets)
    try:
        for rows, at, block in reading:
            day = _days(kind, job, part, at, rows)
            if sketch:
                sketch.drop_rare(rows.codes, job.options.min_count)
            for each in np.unique(day):
                chosen = slice(None) if (day == each).all() else day == each
                if each < 0:
                    reading.refuse(block, rows.lines[chosen], "outside the data set's days")
                    continue
                labels = rows.labels[chosen]
                arrays = {"labels": labels, "ids": rows.codes[chosen]}
                if dense:
                    arrays["dense"] = rows.numbers[chosen][:, dense]
                writer.append(int(each), arrays, int(labels.sum()))
            progress.advance(len(at))
        return writer.commit(file=part.span.path.name, read=reading.read, rejects=reading.rejects)
    finally:
        writer.close()
