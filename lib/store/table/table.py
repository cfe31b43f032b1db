"""Sparse parameters: 64-bit ids -> rows with their optimiser state and the timestamp of their last update.

Guaranteed:
- a new id's first row depends on the table's seed and the id alone, whoever asks for it and when;
- `push` makes one optimiser step per distinct id, with the sum of the gradients that the call holds for it, in their order;
- results depend on the calls and their order alone, not on `threads`, on growth, or on what else the machine does;
- a gradient changes the row of its own id or none; what went nowhere is counted in `lost`;
- `export` depends on the content alone, not on the order in which ids were met.

By default a table never forgets an id: it grows by doubling. With a limit, the rows that training looked up longest ago (`pull`,
`read`) make room for others. Calls come from any number of threads, and look-ups and updates of rows that exist run at once:
kernels release the GIL. What updates may rely on is said by `locking`:

- "striped": every row's update is atomic, by locks that many rows share: none is lost;
- "none": two updates of one row at once may lose one of them, element by element (Hogwild).

In both a look-up takes no lock: it may see a row in the midst of its update, and some rows before another call's update and some
after. Whatever moves rows (a new id, growth, eviction, `write`, `load`) is alone in the table: ids never mix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from lib.errors import BadOption, Damaged
from lib.store.inputs import floats_of, ids_of, number, one_of, whole
from lib.store.optim import Optimizer
from lib.store.rows import Dump, Rows
from lib.store.table import gradients, index, kernels, lookup
from lib.store.table.gate import Gate
from lib.store.table.index import LARGEST_STAMP, NEVER, UNSET
from lib.store.table.records import Layout, Records
from lib.store.table.requests import SMALL, Locking, Requests, aligned


class Table:
    """Rows of `dim` float32 numbers, found by any int64 id."""

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer,
        *,
        seed: int,
        scale: float = 0.01,
        capacity: int = 1024,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        locking: Locking = "striped",
    ):
        """First rows are uniform in (-scale, scale); `capacity` is the number of rows to have room for at the start.

        `max_rows` or `max_bytes` limits the table (the lesser counts).
        """
        self.dim = whole(dim, "dim", 1)
        self.optimizer = optimizer
        self.seed = whole(seed, "seed")
        self.scale = number(scale, "scale")
        self._layout = Layout(self.dim, optimizer.columns(self.dim), max_rows is not None or max_bytes is not None)
        self.max_rows = _limit(self._layout, max_rows, max_bytes)
        self._records = Records(
            self._layout,
            optimizer,
            seed=self.seed,
            scale=self.scale,
            capacity=whole(capacity, "capacity", 1),
            limit=self.max_rows,
        )
        self._gate = Gate()
        self._requests = Requests(self._records, optimizer, self._gate, one_of(locking, get_args(Locking), "locking"))

    def __len__(self) -> int:
        return len(self._records)

    @property
    def nbytes(self) -> int:
        """Bytes that the table's arrays take, room for growth included."""
        return self._records.nbytes

    @property
    def bytes_per_row(self) -> float:
        """What each row of a full table takes."""
        return self._layout.bytes_per_row

    @property
    def lost(self) -> int:
        """How many gradients and written rows went nowhere, since there was no room."""
        return self._requests.lost

    @property
    def evicted(self) -> int:
        """How many rows were evicted so far."""
        return self._records.evicted

    def pull(self, ids: Any) -> np.ndarray:
        """Copies of the rows, float32[n, dim]; unknown ids are admitted. One that finds no room has its first row."""
        ids = ids_of(ids)
        values = aligned(ids.size, self.dim) if ids.size > SMALL else np.empty((ids.size, self.dim), np.float32)
        if self._requests.exhausted:
            with self._gate:
                self._requests.renumber()
        with self._gate.shared():
            now = self._requests.now()
            found = self._requests.look_up(ids, values, now)
        if found:
            with self._gate:
                self._requests.complete(found, values, now)
        return values

    def peek(self, ids: Any) -> np.ndarray:
        """What `pull` would give, without admitting anything."""
        ids = ids_of(ids)
        values, slots = np.empty((ids.size, self.dim), np.float32), np.empty(ids.size, np.int64)
        with self._gate.shared():
            records = self._records
            missing = lookup.fetch(ids, records.index, records.words, records.column, 0, slots, values)
        if missing:
            values[slots < 0] = self._records.first_rows(ids[slots < 0])
        return values

    def push(self, ids: Any, grads: Any, stamp: int) -> None:
        """One optimiser step per distinct id, whose stamp becomes `stamp`; unknown ids are admitted first."""
        ids = ids_of(ids)
        grads = floats_of(grads, (ids.size, self.dim), "grads")
        stamp = _stamp(stamp)
        with self._gate.shared():
            found = self._requests.update(ids, grads, stamp)
        if found:
            with self._gate:
                found = self._requests.admit(found, self._requests.now())
                self._requests.lost += found.missing
                self._requests.step_with(found, grads, stamp)

    def update(
        self,
        ids: np.ndarray,
        grads: np.ndarray,
        stamp: int,
        *,
        weights: np.ndarray | Callable[[np.ndarray], np.ndarray],
        divisor: float | None = None,
        rate: float = 1.0,
    ) -> int:
        """`push` with the weighted sums of each id's gradients over `divisor`, or over how many it has; how many were decayed.

        `weights` are those of the entries, or a function that gives them for the entries' stamps. An id whose weights are all
        0 is left alone. `rate` multiplies the learning rate of this step. The index is asked once.
        """
        with self._gate.shared():
            found = self._requests.find(ids)
            positions = found.ordinals()
            if callable(weights):
                weights = weights(self._records.stamps(found.slots)[positions])
            sums, met = kernels.add_up(positions, grads, weights, found.distinct.size)
            sums /= np.float32(divisor) if divisor else met[:, None].astype(np.float32)
            distinct, slots = found.distinct, found.slots
            if not weights.all():
                alive = np.bincount(positions, weights > 0, found.distinct.size) > 0
                distinct, slots, sums = distinct[alive], slots[alive], sums[alive]
            if complete := bool((slots >= 0).all()):
                self._requests.step(slots, sums, stamp, rate=rate)
        if not complete:
            with self._gate:
                slots, kept = self._requests.place(distinct, NEVER)
                self._requests.step(slots, sums[kept], stamp, rate=rate)
        self._requests.release(found)
        return int((weights < 1).sum())

    def stamps(self, ids: Any) -> np.ndarray:
        """Timestamps of the last updates, int64[n]; -1 for an id that is unknown or was never updated."""
        ids = ids_of(ids)
        with self._gate.shared():
            return self._records.stamps(self._records.find(ids)[0])

    def read(self, ids: Any) -> Rows:
        """Copies of everything that the rows hold; unknown ids are admitted as by `pull`."""
        ids = ids_of(ids).copy()
        with self._gate:
            self._requests.renumber()
            now = self._requests.now()
            found = self._requests.find(ids, self._requests.touch(now))
            if found.missing:
                found = self._requests.admit(found, now)
            slots = found.slots[found.ordinals()]
            rows = self._copy(ids, slots)
        strange = slots < 0
        if strange.any():
            rows.values[strange] = self._records.first_rows(ids[strange])
            rows.state[strange] = self.optimizer.first_state(int(strange.sum()), self.dim)
        return rows

    def write(self, rows: Rows, *, newer: bool = True) -> int:
        """Store rows as they are, in input order, and return how many were stored.

        With `newer`, a row that the table holds is replaced only by one with a strictly larger stamp.
        """
        rows = self._checked(rows)
        with self._gate:
            slots, kept = self._requests.place(rows.ids, UNSET)
            block, stamps = np.hstack([rows.values, rows.state])[kept], rows.stamps[kept]
            words, column = self._records.words, self._records.column
            if newer:
                chosen = gradients.advance(words, slots, column, stamps)
                slots, block = slots[chosen], block[chosen]
            else:
                words[slots, column] = stamps.astype(np.int32).view(np.uint32)
            kernels.scatter(self._records.rows, slots, block)
            return slots.size

    def assign(self, ids: Any, values: Any) -> None:
        """Replace the rows' values and keep their state and stamps; unknown ids are admitted first."""
        ids = ids_of(ids)
        values = floats_of(values, (ids.size, self.dim), "values")
        with self._gate:
            slots, kept = self._requests.place(ids, NEVER)
            kernels.scatter(self._records.rows, slots, values[kept])

    def export(self) -> Rows:
        """The whole content, sorted by id."""
        with self._gate:
            slots, ids = self._records.used()
            return self._copy(ids, slots)

    def load(self, rows: Rows) -> None:
        """Replace the whole content."""
        rows = self._checked(rows)
        if kernels.unique(rows.ids)[0].size < rows.ids.size:
            raise BadOption("rows.ids must be distinct to be loaded as a table's content")
        if self.max_rows is not None and rows.ids.size > self.max_rows:
            raise BadOption(f"{rows.ids.size} rows do not fit in a table of at most {self.max_rows}")
        with self._gate:
            records = self._records
            records.clear(max(records.capacity, rows.ids.size))
            slots = records.admit(rows.ids, 0, values=rows.values)
            kernels.scatter(records.rows, slots, np.hstack([rows.values, rows.state]))
            records.words[slots, records.column] = rows.stamps.astype(np.int32).view(np.uint32)
            self._requests.calls = 0

    def dump(self) -> Dump:
        """All that decides the table's future, without a copy: save it before the table is used again."""
        records, traffic = self._records, self._requests
        numbers = traffic.calls, traffic.lost, records.evicted
        return Dump(records.words[: records.count], records.index, numbers)

    def restore(self, dump: Dump) -> None:
        """Go on as the table did whose dump it is, with the same rows, optimiser and limits; its arrays become this table's."""
        records, (count, width) = self._records, dump.words.shape
        if width != self._layout.width or (self.max_rows is not None and count > self.max_rows):
            raise BadOption(
                f"{count} records of {width} words do not fit a table of {self._layout.width} words and "
                f"{'no limit' if self.max_rows is None else f'{self.max_rows} rows'}"
            )
        words, entries = (np.require(each, requirements="W") for each in (dump.words, dump.index))
        if not index.plausible(entries, count):
            raise Damaged(f"an index of {entries.size} entries does not lead to {count} records")
        with self._gate:
            if count:
                records.become(words, entries)
            else:
                records.clear(1)
            self._requests.calls, self._requests.lost, records.evicted = dump.numbers

    def _copy(self, ids: np.ndarray, slots: np.ndarray) -> Rows:
        records, width = self._records, self._layout.stamp
        values = kernels.gather(records.rows, slots, 0, self.dim)
        return Rows(ids, values, kernels.gather(records.rows, slots, self.dim, width), records.stamps(slots))

    def _checked(self, rows: Rows) -> Rows:
        ids = ids_of(rows.ids, "rows.ids")
        values = floats_of(rows.values, (ids.size, self.dim), "rows.values")
        state = floats_of(rows.state, (ids.size, self._layout.columns), "rows.state")
        stamps = ids_of(rows.stamps, "rows.stamps")
        if stamps.size != ids.size or (stamps.size and not NEVER <= stamps.min() <= stamps.max() <= LARGEST_STAMP):
            raise BadOption(
                f"rows.stamps must be {ids.size} timestamps of at least {NEVER} and at most {LARGEST_STAMP}"
            )
        return Rows(ids, values, state, stamps)


def _limit(layout: Layout, max_rows: int | None, max_bytes: int | None) -> int | None:
    rows = [] if max_rows is None else [whole(max_rows, "max_rows", 1)]
    if max_bytes is not None:
        rows.append(int(whole(max_bytes, "max_bytes", 1) / layout.bytes_per_row))
        if not rows[-1]:
            raise BadOption(f"max_bytes must hold a row, which takes {layout.bytes_per_row:g} bytes, not {max_bytes}")
    return min(rows, default=None)


def _stamp(stamp: Any) -> int:
    if whole(stamp, "stamp", 0) > LARGEST_STAMP:
        raise BadOption(f"stamp must be at most {LARGEST_STAMP}, not {stamp}")
    return int(stamp)
