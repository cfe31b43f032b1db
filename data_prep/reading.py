"""Delimited files in stretches, one for a thread: every row comes out once, or is set aside with its line and reason."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep import lines
from data_prep.job import Job
from data_prep.lines import CutOff, Span
from data_prep.parse import Layout, Rows, parse, reason
from data_prep.rejects import Limit, reject
from lib.errors import BadOption

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
    """Rows that are to be read; None where they were not counted."""
    total: int | None
    """Rows of the whole file that are to be read, if they were counted."""


def cut(job: Job, layout_of: Callable[[Path], Layout], names: Collection[str] | None = None) -> list[Part]:
    """The stretches of all files, or of those named; those of plain files have their lines counted."""
    found = []
    for number, (path, _) in enumerate(job.files):
        if names is not None and path.name not in names:
            continue
        layout = layout_of(path)
        header = layout.header is not None
        if header and lines.first_line(path).strip() != layout.header:
            found, right = (line.decode("utf-8", "replace") for line in (lines.first_line(path), layout.header))
            raise BadOption(f"{path}, line 1: {found[:60]!r}; expected the header {right[:60]!r} ...")
        spans = lines.spans(path, STRETCH)
        if lines.compressed(path):
            found.append(Part(f"{number:03}", spans[0], layout, 1 + header, job.options.sample, None))
            continue
        counting = [job.submit(_count, job, span) for span in spans]
        job.wait(counting)
        counts = [future.result() for future in counting]
        total = sum(counts) - (header and bool(counts))
        left = total = total if job.options.sample is None else min(total, job.options.sample)
        first = 1
        for place, (span, count) in enumerate(zip(spans, counts, strict=True)):
            skipped = int(header and place == 0)
            rows = min(left, count - skipped)
            if rows:
                found.append(Part(f"{number:03}-{place:05}", span, layout, first + skipped, rows, total))
            first, left = first + count, left - rows
    if not found:
        told = [str(path) for path, _ in job.files if names is None or path.name in names]
        raise BadOption(f"{', '.join(told)}: no rows")
    return found


def _count(job: Job, span: Span) -> int:
    total = 0
    for block in lines.blocks(span):
        job.check()
        total += lines.count(block)
    return total


class Reading:
    """The rows of a part, block by block: `for rows, at, block in reading`. Counts what it reads, and sets bad rows aside."""

    def __init__(self, job: Job, part: Part, limit: Limit | None = None, buckets: int = 0):
        self.job, self.part, self.limit, self.buckets = job, part, limit, buckets
        self.read = 0
        self.bad: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[tuple[Rows, np.ndarray, np.ndarray]]:
        part = self.part
        skip = part.span.start == 0 and part.layout.header is not None
        try:
            for block in lines.blocks(part.span, self.job.options.block):
                self.job.check()
                if skip:
                    block, skip = block[np.flatnonzero(block == 10)[0] + 1 :], False
                count = lines.count(block)
                if part.rows is not None and count > part.rows - self.read:
                    count = part.rows - self.read
                    block = lines.head(block, count)
                rows = parse(block, part.layout, count, self.buckets)
                for line, start, end, column, code in rows.bad.tolist():
                    text = block[start:end].tobytes()
                    self.set_aside(line, reason(text, code, part.layout), text, part.layout.names[column])
                yield (
                    rows,
                    rows.lines.astype(np.int64) + (self.read + part.first - 1 - (part.layout.header is not None)),
                    block,
                )
                self.read += count
                if self.read == part.rows:
                    return
        except CutOff as cut:
            self.set_aside(0, cut.why, cut.tail)
            self.read += 1

    def refuse(self, block: np.ndarray, rows: np.ndarray, why: str) -> None:
        """Sets rows aside that were read well but cannot be right: `rows` are their lines in the block."""
        ends = np.flatnonzero(block == 10)
        for line in rows.tolist():
            self.set_aside(line, why, block[ends[line - 1] + 1 if line else 0 : ends[line]].tobytes())

    def set_aside(self, line: int, why: str, text: bytes, column: str | None = None) -> None:
        """`line` counts from 0 at the block's beginning."""
        row = reject(self.part.span.path.name, self.part.first + self.read + line, why, text, column)
        self.bad.append(row)
        if self.limit:
            self.limit.check([row])

    @property
    def rejects(self) -> list[dict[str, Any]]:
        """In the order of their lines."""
        return sorted(self.bad, key=lambda row: row["line"])
