"""Joins each sample with its user's behaviours before it, in memory that does not grow with either file.

1. `spill`: the parts of both files, all threads at once, each part to a file of its own in which the rows of a bucket of
   users stand together, in runs.
2. `merge`, first half: bucket by bucket, behaviours are sorted by user and time, and every sample takes the latest ones
   that are strictly earlier. The samples go back to disk in the order of time.
3. Second half: day by day, the buckets' samples of each stretch of time are put together in the order of time and raw row.

Every finished part, bucket and day is kept when a run is stopped.
"""

import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from data_prep import partitions
from data_prep.job import Job
from data_prep.reading import Part, Reading
from data_prep.threshold import Sketch
from lib.paths import write_atomic, write_text_atomic
from lib.progress import Progress
from lib.store.kernels import mix_bits

BEHAVIOURS = np.dtype([("user", "<i4"), ("time", "<i4"), ("what", "<u4", 2), ("kind", "u1")])

RUN = 1 << 19
"""Rows that all threads together sort by bucket at once."""
BUCKET = 4 << 20
"""Bytes of a bucket's rows, about; more where that would make too many buckets."""
_MEMORY = 96 << 20  # bytes that all threads together hold in the join, about
_BIN = 200  # seconds of samples that are merged at once
_MOST = 4096  # buckets


class Kind(Enum):
    SAMPLES = "samples"
    BEHAVIOURS = "behaviours"


def sample_type(fields: int) -> np.dtype:
    return np.dtype(
        [("user", "<i4"), ("time", "<i4"), ("row", "<i8"), ("label", "u1"), ("price", "<i8"), ("ids", "<u4", fields)]
    )


def samples(rows: int, fields: int) -> np.ndarray:
    """Room for samples; `time` counts seconds from the first day's midnight."""
    return np.empty(rows, sample_type(fields))


class Joined:
    """The join of one preparation."""

    def __init__(self, job: Job, fields: int, days: int, day: int, sketch: Sketch | None, shared: np.ndarray):
        self.job, self.days, self.day, self.sketch, self.shared = job, days, day, sketch, shared
        length = job.options.history
        self.types = {Kind.SAMPLES: sample_type(fields), Kind.BEHAVIOURS: BEHAVIOURS}
        self.schema = {
            "labels": ("|u1", ()),
            "ids": ("<u4", (fields,)),
            "dense": ("<i8", (1,)),
            "times": ("<i4", ()),
            "history": ("<u4", (length, 2)),
            "history_kinds": ("|u1", (length,)),
            "history_length": ("<u2", ()),
        }
        self._whole = np.dtype(
            [
                ("time", "<i4"),
                ("row", "<i8"),
                *((name, dtype, shape) for name, (dtype, shape) in self.schema.items() if name != "times"),
            ]
        )
        self._work = job.out / partitions.WORK
        self._parts: dict[Kind, list[str]] = {}
        # The number of buckets must not depend on the threads: a run that goes on may have others. Sorting takes about four
        # times the bytes of what is sorted.
        sizes = {path.name: path.stat().st_size for path, _ in job.files}
        expected = sizes["behavior_log.csv"] * 0.6 + sizes["raw_sample.csv"] / 40 * self._whole.itemsize
        self._run = max(1, RUN // job.options.threads)
        self.buckets = min(_MOST, max(1, math.ceil(expected / BUCKET)))
        together = _MEMORY // 4 // math.ceil(expected / self.buckets)
        self._room = threading.BoundedSemaphore(max(1, min(job.options.threads, together)))

    def spill(
        self,
        kind: Kind,
        parts: dict[str, Part],
        rows: Callable[[Reading], Iterable[tuple[np.ndarray, dict[str, int]]]],
        progress: Progress,
    ) -> list[dict[str, Any]]:
        """The records of all parts of a file, whose rows then lie in runs sorted by bucket."""
        self._parts[kind] = list(parts)
        return self.job.parts(parts, lambda key: self._spill(kind, parts[key], rows, progress), progress)

    def _spill(self, kind: Kind, part: Part, rows: Callable, progress: Progress) -> dict[str, Any]:
        reading, index = Reading(self.job, part, self.job.limit), []
        lacking: dict[str, int] = {}

        def write(path: Path) -> None:
            with path.open("wb") as file:
                for run in _runs(rows(reading), self.types[kind], self._run, lacking, progress):
                    bucket = _bucket(run["user"], self.buckets)
                    file.write(run[np.argsort(bucket, kind="stable")].data)
                    index.append(np.concatenate(([0], np.cumsum(np.bincount(bucket, minlength=self.buckets)))))

        write_atomic(self._spilled(part.key), write)
        runs = np.array(index, np.int64).reshape(-1, self.buckets + 1)
        write_atomic(self._spilled(part.key, ".npy"), lambda path: np.save(path, runs))
        written = int(runs[:, -1].sum())
        record = {"part": part.key, "file": part.span.path.name, "read": reading.read, "written": written}
        record |= {"rejects": reading.rejects, "outputs": [], "lacking": lacking}
        write_text_atomic(partitions.done(self.job.out, part.key), json.dumps(record))
        return record

    def merge(self) -> list[dict[str, Any]]:
        """Joins every bucket, then writes every day; the days' outputs."""
        joining = [self.job.submit(self._join_alone, bucket) for bucket in range(self.buckets)]
        self.job.wait(joining)
        counts = np.stack([future.result() for future in joining])
        days = {f"day-{day}": day for day in range(self.days)}
        records = self.job.parts(days, lambda key: self._write(key, days[key], counts))
        return [output for record in records for output in record["outputs"]]

    def _join_alone(self, bucket: int) -> np.ndarray:
        """`_join`, no more of which run at once than the memory allows."""
        with self._room:
            self.job.check()
            return self._join(bucket)

    def _join(self, bucket: int) -> np.ndarray:
        """A bucket's samples with their histories, in the order of time; how many lie in each stretch of time."""
        target, bins = self._joined(bucket), self.days * self.day // _BIN
        if not target.exists():
            found = self._gather(Kind.SAMPLES, bucket)
            found = found[np.lexsort((found["row"], found["time"]))]
            past = self._gather(Kind.BEHAVIOURS, bucket)
            keys = _key(past["user"], past["time"])
            order = np.argsort(keys, kind="stable")  # of two at one time the one that was logged first comes first
            keys, past = keys[order], past[order]
            ends = np.searchsorted(keys, _key(found["user"], found["time"]))
            begins = np.searchsorted(keys, _key(found["user"], np.full(len(found), np.iinfo(np.int32).min)))
            whole = np.zeros(len(found), self._whole)
            whole["time"], whole["row"], whole["labels"] = found["time"], found["row"], found["label"]
            whole["ids"], whole["dense"] = found["ids"], found["price"][:, None]
            whole["history_length"] = np.minimum(ends - begins, self.job.options.history)
            what, kinds = whole["history"].copy(), whole["history_kinds"].copy()
            _latest(begins, ends, np.ascontiguousarray(past["what"]), np.ascontiguousarray(past["kind"]), what, kinds)
            if self.sketch:
                least, ids = self.job.options.min_count, whole["ids"].copy()
                self.sketch.drop_rare(ids, least)
                whole["ids"] = ids
                self.sketch.drop_rare(what.reshape(-1, 2), least, self.shared)
            whole["history"], whole["history_kinds"] = what, kinds
            write_atomic(target, lambda path: whole.tofile(path))
        times = np.fromfile(target, self._whole)["time"]
        return np.bincount(times // _BIN, minlength=bins).astype(np.int32)

    def _gather(self, kind: Kind, bucket: int) -> np.ndarray:
        """All rows of a bucket, in the order of the raw file."""
        found = [np.empty(0, self.types[kind])]
        for key in self._parts[kind]:
            self.job.check()
            runs = np.load(self._spilled(key, ".npy"), mmap_mode="r")[:, [bucket, bucket + 1, -1]]
            starts = np.concatenate(([0], np.cumsum(runs[:, 2])))
            with self._spilled(key).open("rb", buffering=0) as file:
                for (begin, end, _), start in zip(runs.tolist(), starts.tolist(), strict=False):
                    if begin < end:
                        file.seek((start + begin) * self.types[kind].itemsize)
                        found.append(np.fromfile(file, self.types[kind], end - begin))
        return np.concatenate(found)

    def _write(self, key: str, day: int, counts: np.ndarray) -> dict[str, Any]:
        """A day's partition. `counts` are the samples of each bucket in each stretch of time."""
        writer = partitions.Writer(self.job.out, key, self.schema)
        each = self.day // _BIN
        starts = counts[:, : day * each].sum(1, dtype=np.int64)
        try:
            for place in range(day * each, (day + 1) * each):
                self.job.check()
                found = [
                    np.fromfile(self._joined(bucket), self._whole, size, offset=start * self._whole.itemsize)
                    for bucket, (start, size) in enumerate(zip(starts.tolist(), counts[:, place].tolist(), strict=True))
                    if size
                ]
                starts += counts[:, place]
                if not found:
                    continue
                rows = np.concatenate(found)
                rows = rows[np.lexsort((rows["row"], rows["time"]))]
                arrays = {name: rows[name] for name in self.schema if name != "times"} | {"times": rows["time"]}
                writer.append(day, arrays, int(rows["labels"].sum()))
            return writer.commit(file="", read=0, rejects=[])
        finally:
            writer.close()

    def _spilled(self, key: str, ending: str = "") -> Path:
        return self._work / f"spilled-{key}{ending}"

    def _joined(self, bucket: int) -> Path:
        return self._work / f"joined-{bucket:05}"


def _runs(
    blocks: Iterable[tuple[np.ndarray, dict[str, int]]],
    dtype: np.dtype,
    size: int,
    lacking: dict[str, int],
    progress: Progress,
) -> Iterator[np.ndarray]:
    """Blocks put together until they make a run."""
    waiting, held = [np.empty(0, dtype)], 0
    for block, lack in blocks:
        for name, size in lack.items():
            lacking[name] = lacking.get(name, 0) + size
        waiting.append(block)
        held += len(block)
        progress.advance(len(block))
        if held >= size:
            yield np.concatenate(waiting)
            waiting, held = [], 0
    if held:
        yield np.concatenate(waiting)


def _bucket(users: np.ndarray, buckets: int) -> np.ndarray:
    return _spread(users.astype(np.uint64), np.uint64(buckets))


def _key(user: np.ndarray, time: np.ndarray) -> np.ndarray:
    """A number that orders by user, then time, which may be negative."""
    return (user.astype(np.uint64) << np.uint64(32)) | (time.astype(np.int64) + 2**31).astype(np.uint64)


@njit(nogil=True, cache=True)
def _spread(users, buckets):
    found = np.empty(len(users), np.int64)
    for at in range(len(users)):
        found[at] = mix_bits(users[at]) % buckets
    return found


@njit(nogil=True, cache=True)
def _latest(begins, ends, what, kind, history, kinds):
    """Copies the last behaviours of each sample, oldest first."""
    length = history.shape[1]
    for row in range(len(begins)):
        begin = max(begins[row], ends[row] - length)
        for place in range(ends[row] - begin):
            history[row, place, 0] = what[begin + place, 0]
            history[row, place, 1] = what[begin + place, 1]
            kinds[row, place] = kind[begin + place]
