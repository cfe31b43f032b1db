"""Sparse parameters: 64-bit ids -> rows with their optimiser state and the timestamp of their last update.

Guaranteed:
- a new id's first row depends on the table's seed and the id alone, whoever asks for it and when;
- `push` makes one optimiser step per distinct id, with the sum of the gradients that the call holds for it, in their order;
- results depend on the calls and their order alone, not on growth, or on what else the machine does;
- a gradient changes the row of its own id or none; what went nowhere is counted in `lost`;
- `export` depends on the content alone, not on the order in which ids were met.

By default a table never forgets an id: it grows by doubling. With a limit, the rows that training looked up longest ago (`pull`,
`read`) make room for others. Calls come from any number of threads, and all that find their rows there run at once: kernels
release the GIL. What they may rely on is said by `locking`:

- "striped": each row's update, reading by `read` and replacing is atomic, by locks that many rows share: none is lost or torn;
- "none": two updates of one row at once may lose one of them, element by element (Hogwild); `read`, `write` and `assign` are
  alone.

In both a look-up takes no lock: it may see a row in the midst of its update, and some rows before another call's update and some
after. Whatever moves rows (a new id, growth, eviction, `load`) is alone in the table: ids never mix.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from lib.errors import BadOption, Damaged
from lib.store.inputs import floats_of, ids_of, number, one_of, whole
from lib.store.optim import Optimizer
from lib.store.rows import Dump, Rows
from lib.store.table import index, kernels
from lib.store.table.gate import Gate
from lib.store.table.index import LARGEST_STAMP, NEVER, UNSET
from lib.store.table.records import Layout, Records

Locking = Literal["striped", "none"]
STRIPES = 8
"""Locks of rows."""
SMALL = 2_048
"""Rows up to which a call takes all stripes for one go, and not one after another."""
GO = 8_192
"""Rows for which a call that is alone takes all stripes at a time."""
Part = Callable[[np.ndarray, np.ndarray], None]
"""What is done with some slots, and the call's entries that they are of."""


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
        striped = one_of(locking, get_args(Locking), "locking") == "striped"
        self._stripes = [threading.Lock() for _ in range(STRIPES if striped else 0)]
        self._accesses = itertools.count()
        self._gate = Gate()
        self._records = self._made(Records, whole(capacity, "capacity", 1))

    def _made(self, kind: Callable[..., Records], capacity: int) -> Records:
        first = partial(_first, optimizer=self.optimizer, seed=self.seed, dim=self.dim, scale=self.scale)
        return kind(self._layout, first, capacity=capacity, limit=self.max_rows)

    def __len__(self) -> int:
        return self._records.count

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
        return self._records.lost

    @property
    def evicted(self) -> int:
        """How many rows were evicted so far."""
        return self._records.evicted

    def pull(self, ids: Any) -> np.ndarray:
        """Copies of the rows, float32[n, dim]; unknown ids are admitted. One that finds no room has its first row."""
        ids = self._asked(ids)
        values = np.empty((ids.size, self.dim), np.float32)
        with self._gate.shared():
            now = self._records.now()
            slots, missing = self._records.find(ids, values, now)
        if missing:
            absent = slots < 0
            with self._gate:
                self._records.admit(ids[absent], now)
                values[absent] = self._peek(ids[absent])
        return values

    def peek(self, ids: Any) -> np.ndarray:
        """What `pull` would give, without admitting anything."""
        ids = self._asked(ids)
        with self._gate.shared():
            return self._peek(ids)

    def push(self, ids: Any, grads: Any, stamp: int, *, distinct: bool = False, rate: float = 1.0) -> None:
        """One optimiser step per distinct id, whose stamp becomes `stamp`; unknown ids are admitted first.

        `distinct`: the caller knows that no id stands twice, and it need not be found out. `rate` multiplies the learning rate of
        this step.
        """
        ids = self._asked(ids)
        grads = floats_of(grads, (ids.size, self.dim), "grads")
        stamp = _stamp(stamp)
        if not distinct:
            once, positions = kernels.unique(ids)
            if once.size < ids.size:
                ids, (grads, _) = once, kernels.add_up(positions, grads, np.ones(ids.size, np.float32), once.size)
        with self._gate.updating():
            slots, missing = self._records.find(ids)
            if not missing:
                self._step(slots, grads, stamp, rate)
        if missing:
            with self._gate:
                slots, kept = self._place(ids, NEVER)
                self._step(slots, grads[kept], stamp, rate)

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
        0 is left alone. The index is asked once.
        """
        distinct, positions = kernels.unique(self._asked(ids))
        with self._gate.updating():
            slots, _ = self._records.find(distinct)
            if callable(weights):
                weights = weights(self._records.stamps(slots)[positions])
            sums, met = kernels.add_up(positions, grads, weights, distinct.size)
            sums /= np.float32(divisor) if divisor else met[:, None].astype(np.float32)
            if not weights.all():
                alive = np.bincount(positions, weights > 0, distinct.size) > 0
                distinct, slots, sums = distinct[alive], slots[alive], sums[alive]
            missing = (slots < 0).any()
            if not missing:
                self._step(slots, sums, stamp, rate)
        if missing:
            with self._gate:
                slots, kept = self._place(distinct, NEVER)
                self._step(slots, sums[kept], stamp, rate)
        return int((weights < 1).sum())

    def stamps(self, ids: Any) -> np.ndarray:
        """Timestamps of the last updates, int64[n]; -1 for an id that is unknown or was never updated."""
        ids = ids_of(ids)
        with self._gate.shared():
            return self._records.stamps(self._records.find(ids)[0])

    def read(self, ids: Any, *, order: np.ndarray | None = None) -> Rows:
        """Copies of everything that the rows hold, each row's of one moment; unknown ids are admitted as by `pull`.

        `order` takes each row's place in the order of accesses, int64[n]: of two reads or writes of a row the first has the
        smaller number. It is drawn where nobody else is with the row, so that calls need no order of their own.
        """
        ids = self._asked(ids).copy()
        with self._gate.shared() if self._stripes else self._gate:
            now = self._records.now()
            slots, missing = self._records.find(ids, now=now)
            if not missing:
                return self._copy(ids, slots, order)
        with self._gate:
            return self._copy(ids, self._records.admit(ids, now), order)

    def write(self, rows: Rows, *, newer: bool = True, order: np.ndarray | None = None) -> None:
        """Store rows as they are, in input order, each row as a whole; `order` as in `read`.

        With `newer`, a row is replaced only by one with a strictly larger stamp.
        """
        ids, block, stamps = self._checked(rows)
        self._records.fault_in(ids)

        def replace(slots: np.ndarray, entries: np.ndarray) -> None:
            kernels.replace_rows(self._records.rows, self._records.column, slots, entries, block, stamps, newer)

        self._store(ids, replace, UNSET, order)

    def assign(self, ids: Any, values: Any) -> None:
        """Replace the rows' values and keep their state and stamps; unknown ids are admitted first."""
        ids = self._asked(ids)
        values = floats_of(values, (ids.size, self.dim), "values")
        self._store(ids, lambda slots, entries: kernels.scatter(self._records.rows, slots, values[entries]), NEVER)

    def ids(self) -> np.ndarray:
        """Whose rows are there, sorted."""
        with self._gate.shared():
            return np.sort(self._records.ids())

    def export(self) -> Rows:
        """The whole content, sorted by id."""
        with self._gate:
            slots, ids = self._records.used()
            return self._copy(ids, slots)

    def load(self, rows: Rows) -> None:
        """Replace the whole content."""
        ids, block, stamps = self._checked(rows)
        if kernels.unique(ids)[0].size < ids.size:
            raise BadOption("rows.ids must be distinct to be loaded as a table's content")
        if self.max_rows is not None and ids.size > self.max_rows:
            raise BadOption(f"{ids.size} rows do not fit in a table of at most {self.max_rows}")
        with self._gate:
            records = self._records
            records.clear()
            slots = records.admit(ids, 0)
            kernels.replace_rows(records.rows, records.column, slots, np.arange(ids.size), block, stamps, False)
            records.calls = 0

    def dump(self) -> Dump:
        """All that decides the table's future, without a copy: save it before the table is used again."""
        records = self._records
        numbers = records.calls, records.lost, records.evicted, next(self._accesses)
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
                records.clear()
            records.calls, records.lost, records.evicted, accesses = dump.numbers
            self._accesses = itertools.count(accesses)

    def _peek(self, ids: np.ndarray) -> np.ndarray:
        values = np.empty((ids.size, self.dim), np.float32)
        slots, missing = self._records.find(ids, values)
        if missing:
            values[slots < 0] = kernels.first_rows(ids[slots < 0], self.seed, self.dim, self.scale)
        return values

    def _asked(self, ids: Any) -> np.ndarray:
        """The ids of a call that is about to begin: what it would take long to do in the gate is done before."""
        if self._records.exhausted:
            with self._gate:
                self._records.renumber()
        ids = ids_of(ids)
        self._records.fault_in(ids)
        return ids

    def _place(self, ids: np.ndarray, stamp: int) -> tuple[np.ndarray, np.ndarray]:
        """Alone: the slots of ids that are written whether they had a row or not, and which entries found room."""
        slots = self._records.admit(ids, self._records.now(), stamp)
        kept = slots >= 0
        self._records.lost += int((~kept).sum())
        return slots[kept], kept

    def _step(self, slots: np.ndarray, grads: np.ndarray, stamp: int, rate: float = 1.0) -> None:
        """One step on distinct slots."""
        self._records.changing(slots)
        optimizer, rows, mark = self.optimizer.at(rate), self._records.rows, (self._records.column, stamp)
        self._apart(slots, lambda slots, entries: optimizer.update_slots(rows, slots, grads, mark, entries))

    def _store(self, ids: np.ndarray, put: Part, stamp: int, order: np.ndarray | None = None) -> None:
        """`put` on the slots of these ids, which are admitted with that stamp where they are unknown."""
        with self._gate.updating() if self._stripes else self._gate:
            slots, missing = self._records.find(ids)
            if not missing:
                self._records.changing(slots)
                self._apart(slots, put, order)
        if missing:
            with self._gate:
                slots, kept = self._place(ids, stamp)
                self._records.changing(slots)
                self._apart(slots, put, order, np.flatnonzero(kept))

    def _apart(
        self, slots: np.ndarray, do: Part, order: np.ndarray | None = None, entries: np.ndarray | None = None
    ) -> None:
        """`do(slots, entries)` for part after part of the slots: meanwhile nobody else is with one of the part's rows. `entries`
        says which entries of the call they are; none does: they stand in order.

        A caller that nobody else is with takes all stripes, for `GO` rows at a time. Else they are taken one at a time, those
        first that are free; only where none is, is one waited for.
        """
        entries, done = np.arange(slots.size) if entries is None else entries, 0

        def go(slots: np.ndarray, entries: np.ndarray) -> None:
            if order is not None:
                order[entries] = next(self._accesses)
            do(slots, entries)

        if not self._stripes:
            go(slots, entries)
            return
        while done < slots.size:
            held = []
            try:
                for lock in self._stripes:
                    if not lock.acquire(blocking=slots.size - done <= SMALL):
                        break
                    held.append(lock)
                if len(held) < STRIPES:
                    break
                go(slots[done : done + GO], entries[done : done + GO])
                done += GO
            finally:
                for lock in held:
                    lock.release()
        slots, places, ends = kernels.by_stripe(slots[done:], STRIPES)
        left = dict(enumerate(self._stripes)) if slots.size else {}
        while left:
            stripe = next((stripe for stripe, lock in left.items() if lock.acquire(blocking=False)), None)
            if stripe is None:
                stripe = next(iter(left))
                left[stripe].acquire()
            try:
                part = slice(ends[stripe], ends[stripe + 1])
                go(slots[part], entries[done:][places[part]])
            finally:
                left.pop(stripe).release()

    def _copy(self, ids: np.ndarray, slots: np.ndarray, order: np.ndarray | None = None) -> Rows:
        """What these rows hold; their first content where there is none."""
        records, strange = self._records, slots < 0
        block, stamps = np.empty((ids.size, records.column), np.float32), np.full(ids.size, NEVER)
        block[strange] = records.first(ids[strange])
        copied = partial(kernels.copy_rows, records.rows, records.column)
        self._apart(slots, lambda slots, entries: copied(slots, entries, block, stamps), order)
        return Rows.of(ids, block, self.dim, stamps)

    def _checked(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, [values | state] and stamps."""
        ids = ids_of(rows.ids, "rows.ids")
        values = floats_of(rows.values, (ids.size, self.dim), "rows.values", plain=False)
        state = floats_of(rows.state, (ids.size, self._layout.columns), "rows.state", plain=False)
        stamps = ids_of(rows.stamps, "rows.stamps")
        if stamps.size != ids.size or (stamps.size and not NEVER <= stamps.min() <= stamps.max() <= LARGEST_STAMP):
            raise BadOption(
                f"rows.stamps must be {ids.size} timestamps of at least {NEVER} and at most {LARGEST_STAMP}"
            )
        return ids, Rows(ids, values, state, stamps).block, stamps


def _first(ids: np.ndarray, *, optimizer: Optimizer, seed: int, dim: int, scale: float) -> np.ndarray:
    """[values | state] of rows that were never updated."""
    rows = np.empty((ids.size, dim + optimizer.columns(dim)), np.float32)
    rows[:, :dim], rows[:, dim:] = kernels.first_rows(ids, seed, dim, scale), optimizer.first_state(ids.size, dim)
    return rows


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
