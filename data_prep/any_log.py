"""The preparation of anybody's clicks: look at the columns, fit on the training days, write.

The files are read three times, in blocks, so that memory does not grow with them but by eight bytes a row where there is a time.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep import columns, partitions, threshold, values
from data_prep.columns import Form
from data_prep.job import Job
from data_prep.parse import MISSING, RARE, RESERVED
from data_prep.rejects import reject
from data_prep.roles import Roles, Seen
from lib.errors import BadOption
from lib.progress import Progress
from lib.streams import uniform


class Rows(NamedTuple):
    """The whole rows of a block."""

    day: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray
    """float64 (rows, numbers), nan where there is none."""
    codes: np.ndarray
    """int64 (rows, columns of ids)."""
    lengths: np.ndarray
    """How many ids each bag has (rows, bags)."""
    read: int
    bad: list[dict[str, Any]]
    """What was set aside on the way."""


class AnyLog:
    """The files of one preparation."""

    def __init__(self, job: Job, options: Any, paths: Sequence[Path]):
        self.job, self.options = job, options
        self.forms = [columns.form(path, options.columns, options.delimiter) for path in paths]
        self.roles = Roles(options, self.forms)

    def work(self) -> dict[str, Any]:
        job, options, roles = self.job, self.options, self.roles
        held_out = bool(job.roles)
        self.train_days = options.training(options.days, held_out)
        with Progress(None, "clicks: looking", "rows") as self.progress:
            self._look()
        with Progress(None, "clicks: fitting", "rows") as self.progress:
            self._fit()
        with Progress(None, "clicks", "rows") as self.progress:
            parts = {f"{place:03}": form for place, form in enumerate(self.forms)}
            records = job.parts(parts, lambda key: self._write(key, parts[key]))
        facts: dict[str, Any] = {
            "kind": "clicks",
            "fields": roles.fields,
            "dense": [*roles.numbers, *(f"no {name}" for name in self.masked)],
            "schema": {name: [dtype, list(shape)] for name, (dtype, shape) in self._schema().items()},
            "codes": {"missing": MISSING, "rare": RARE, "from": RESERVED, "buckets": options.buckets},
            "days": options.days + held_out,
            "train_days": self.train_days,
            "columns": roles.told,
        }
        if max(self.pooling) > 1:
            facts["pooling"] = self.pooling
        if self.sketch:
            facts["threshold"] = self.sketch.describe(options.min_count, self.train_days)
        facts["positives"] = sum(output["positives"] for record in records for output in record["outputs"])
        return job.finish(records, **facts)

    def _look(self) -> None:
        options, roles = self.options, self.roles
        names = [name for name in self.forms[0].names if roles.named.get(name) != "skip"]
        seen = Seen({name: np.zeros(3, np.int64) for name in names}, set(names), np.empty(0))
        times, rows = [], 0
        for form in self.forms:
            first = True
            for block in columns.blocks(form, names, options.sample):
                self.job.check()
                self.progress.advance(len(block.lines))
                counts, own = roles.look(block, form, first)
                for name, found in counts.items():
                    seen.figures[name][:] += found
                seen.own.intersection_update(own if first else seen.own)
                if options.time and form.path not in self.job.roles:
                    times.append(values.times(block.columns[options.time])[0])
                first, rows = False, rows + len(block.lines)
        if not rows:
            raise BadOption(f"{self.forms[0].path}: no rows after the header")
        roles.settle(seen)
        self.pooling = [options.longest if name in roles.separators else 1 for name in roles.fields]
        if options.time:
            self.edges = roles.edges(np.concatenate(times))

    def _rows(self, form: Form) -> Iterator[Rows]:
        """The rows of a file, block by block; none is lost, and what is wrong with one is said once."""
        options, roles = self.options, self.roles
        used = [options.label, *[options.time] * bool(options.time), *roles.numbers, *roles.fields]
        at = 0
        for block in columns.blocks(form, used, options.sample):
            self.job.check()
            rows, read = len(block.lines), len(block.lines) + len(block.bad)
            bad = [reject(form.path.name, line, "wrong column count", text) for line, text in block.bad]
            labels, wrong = values.labels(block.columns[options.label], options.positive)
            faults = [(options.label, wrong, "label is neither 0 nor 1" if options.positive is None else "no label")]
            day, wrong = self._day(form, block, at)
            faults.append((options.time, wrong, "neither a number nor a date"))
            numbers = np.empty((rows, len(roles.numbers)))
            for place, name in enumerate(roles.numbers):
                numbers[:, place], wrong = values.numbers(block.columns[name])
                faults.append((name, wrong, "not a number"))
            good = np.ones(rows, bool)
            for name, wrong, why in faults:
                for row in np.flatnonzero(wrong & good).tolist():
                    text = block.columns[name][row].as_py() or b""
                    bad.append(reject(form.path.name, int(block.lines[row]), why, text, name))
                good &= ~wrong
            codes, lengths = self._codes(block)
            yield Rows(day[good], labels[good], numbers[good], codes[good], lengths[good], read, bad)
            at += rows
            self.progress.advance(read)

    def _day(self, form: Form, block: columns.Block, at: int) -> tuple[np.ndarray, np.ndarray]:
        """The day of each row, and where it has none."""
        days, rows = self.options.days, len(block.lines)
        if form.path in self.job.roles:
            return np.full(rows, days), np.zeros(rows, bool)
        if not self.options.time:
            drawn = uniform(0, "day", self.forms.index(form), first=at, shape=(rows, 1))[:, 0]
            return (drawn * days).astype(np.int64), np.zeros(rows, bool)
        times, wrong = values.times(block.columns[self.options.time])
        return np.searchsorted(self.edges, times, side="right").clip(max=days - 1), wrong

    def _codes(self, block: columns.Block) -> tuple[np.ndarray, np.ndarray]:
        """The codes of all fields side by side, and the bags' lengths."""
        found, lengths, buckets = [], [], self.options.buckets
        for place, name in enumerate(self.roles.fields):
            column = block.columns[name]
            if between := self.roles.separators.get(name):
                codes, held = values.bags(column, between, self.pooling[place], place, buckets)
                lengths.append(held)
            else:
                codes = values.codes(column, place, buckets)[:, None]
            found.append(codes)
        return np.concatenate(found, 1), np.array(lengths, np.int64).reshape(len(lengths), len(block.lines)).T

    def _fit(self) -> None:
        """What the training days say: how numbers spread, how long bags are, which values are frequent."""
        options, roles = self.options, self.roles
        bags = [place for place, name in enumerate(roles.fields) if name in roles.separators]
        self.sketch = threshold.Sketch(options.count_bits) if options.min_count else None
        moments, longest = np.zeros((3, len(roles.numbers))), np.ones(len(bags), np.int64)
        clicks = {True: [0, 0], False: [0, 0]}
        for form in self.forms:
            for rows in self._rows(form):
                learnt = rows.day < self.train_days
                there = _squashed(rows.numbers[learnt])
                moments += [(~np.isnan(there)).sum(0), np.nansum(there, 0), np.nansum(there**2, 0)]
                longest = np.maximum(longest, rows.lengths[learnt].max(0, initial=1))
                for side in clicks:
                    for label in (0, 1):
                        clicks[side][label] += int(np.count_nonzero((learnt == side) & (rows.labels == label)))
                if self.sketch:
                    self.sketch.add(rows.codes[learnt], self._fields)
        self._judge(clicks)
        (count, total, squares), trained = moments, sum(clicks[True])
        self.mean = total / np.maximum(count, 1)
        spread = np.sqrt(np.maximum(squares / np.maximum(count, 1) - self.mean**2, 0))
        self.spread = np.where(spread > 0, spread, 1)
        self.masked = []
        for name, many in zip(roles.numbers, count, strict=True):
            if many < trained:
                self.masked.append(name)
                roles.told[name] += f"; {1 - many / trained:.2%} are empty, which an input of its own says"
        for place, most in zip(bags, longest.tolist(), strict=True):
            self.pooling[place] = kept = min(most, options.longest)
            more = f"; there are {most}: --longest" * (most > kept)
            roles.told[roles.fields[place]] = f"a bag of up to {kept} ids{more}"

    @property
    def _fields(self) -> np.ndarray:
        """The field of each column of codes."""
        return np.repeat(np.arange(len(self.pooling)), self.pooling)

    def _schema(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        schema = {"labels": ("|u1", ()), "ids": ("<u4" if self.options.buckets else "<i8", (sum(self.pooling),))}
        inputs = len(self.roles.numbers) + len(self.masked)
        return schema | ({"dense": ("<f4", (inputs,))} if inputs else {})

    def _write(self, key: str, form: Form) -> dict[str, Any]:
        schema = self._schema()
        writer = partitions.Writer(self.job.out, key, schema)
        masked = [self.roles.numbers.index(name) for name in self.masked]
        read, bad = 0, []
        try:
            for rows in self._rows(form):
                self.job.limit.check(rows.bad)
                bad += rows.bad
                read += rows.read
                if self.sketch:
                    self.sketch.drop_rare(rows.codes, self.options.min_count, self._fields)
                empty = np.isnan(rows.numbers)
                scaled = np.where(empty, 0, (_squashed(rows.numbers) - self.mean) / self.spread)
                arrays = {"labels": rows.labels, "ids": rows.codes}
                arrays["dense"] = np.concatenate((scaled, empty[:, masked]), 1)
                for day in np.unique(rows.day).tolist():
                    here = rows.day == day
                    writer.append(day, {name: arrays[name][here] for name in schema}, int(rows.labels[here].sum()))
            bad.sort(key=lambda row: row["line"])
            return writer.commit(file=form.path.name, read=read, rejects=bad)
        finally:
            writer.close()

    def _judge(self, clicks: dict[bool, list[int]]) -> None:
        """An error where one class alone is trained on (True), or judged by; `clicks`: how many are none, and how many one."""
        for learnt, (none, some) in clicks.items():
            if bool(none) != bool(some):
                raise BadOption(
                    f"{self.forms[0].path}, column {self.options.label!r}: {'none' if none else 'every one'} of the "
                    f"{none + some:,} rows that are {'trained on' if learnt else 'judged by'} is a click; a model needs both. "
                    "--label names the column, --positive the number from which on it is a click"
                )


def _squashed(numbers: np.ndarray) -> np.ndarray:
    """log(1 + x), and the same of what is negative: prices and counts have long tails."""
    return np.sign(numbers) * np.log1p(np.abs(numbers))
