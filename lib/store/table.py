"""Sparse parameters: 64-bit ids -> rows with their optimiser state and the timestamp of their last update.

Guaranteed:
- a new id's first row depends on the table's seed and the id alone;
- `push` makes one optimiser step per distinct id, with the sum of its gradients in their order;
- results depend on the calls and their order alone, not on growth or on the machine's load;
- a gradient changes the row of its own id or none, and `lost` counts what found no row;
- `export` depends on the content alone, not on the order in which ids were met.

By default a table never forgets an id: it grows by doubling. With a limit, the rows that training looked up longest ago (`pull`,
`read`) make room. Calls come from any number of threads. Calls that only look up rows run at once, and kernels release the GIL.
`locking` says what updates may rely on:

- "table": a call that changes rows is alone in its table, so no update is lost or torn;
- "none": pushes share the table with look-ups and with each other. Two updates of one row at once may lose one of them, element
  by element, and a look-up may see a row in the midst of its update (Hogwild).

Calls that move rows (a new id, growth, eviction, `load`) are alone in both, so ids never mix.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Literal

import numpy as np

from lib.errors import BadOption
from lib.store import kernels
from lib.store.optim import Optimizer
from lib.store.rows import Dump, Rows, floats_of, ids_of, whole

Locking = Literal["table", "none"]
NEVER, UNSET = -1, -2
"""Timestamps of a row that was never updated, and of one whose first content is being written."""
LARGEST_STAMP = 2**31 - 1
MOST_ROWS = 2**31 - 2
LAST_CALL = 2**32 - 2**16
"""Touches are uint32; calls that share the table may go a little further before calls are counted anew."""
SPARE = 1.85
"""Entries of the index per row: the more are free, the shorter is the search."""
NO_BLOCK = np.empty((0, 0), np.float32)
Put = Callable[[np.ndarray, np.ndarray | slice], None]
"""What is done with slots; the second argument selects their entries of the call."""


class Table:
    """Rows of `dim` float32 numbers, found by any int64 id."""

    _rows_in_records: ClassVar = True
    """Whether a record begins with its row, [values | state]."""

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer,
        *,
        seed: int,
        scale: float = 0.01,
        capacity: int = 1024,
        max_rows: int | None = None,
        locking: Locking = "table",
    ):
        """First rows are uniform in (-scale, scale); `capacity` is the number of rows to have room for at the start."""
        self.dim, self.optimizer = whole(dim, "dim", 1), optimizer
        self.seed, self.scale = whole(seed, "seed"), float(scale)
        self.max_rows = None if max_rows is None else whole(max_rows, "max_rows", 1)
        self.locking = locking
        self.lost = self.evicted = 0
        """How many gradients and written rows found no room, and how many rows were evicted."""
        self._first_state = optimizer.initial_row_state(1, self.dim)
        self._numbers = self.dim + self._first_state.shape[1]
        self._column = self._numbers if self._rows_in_records else 0
        self._width = self._column + 3 + (max_rows is not None)
        self._limit = MOST_ROWS if max_rows is None else self.max_rows
        self._count = self._calls = self._cut = 0
        self._queue = np.empty(0, np.int64)
        """Slots in the order in which their rows go, of those that were touched up to `_cut` when it was made."""
        self._accesses, self._gate = itertools.count(), Gate()
        self._resize(min(whole(capacity, "capacity", 1), self._limit))

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes that the table's arrays take, room for growth included."""
        return self._words.nbytes + self._index.nbytes + self._queue.nbytes

    @property
    def bytes_per_row(self) -> float:
        """Bytes that each row of a full table takes; half a byte is the queue's."""
        return 4 * self._width + 4 * SPARE + 0.5 * (self.max_rows is not None)

    def pull(self, ids: Any) -> np.ndarray:
        """Copies of the rows, float32[n, dim]; unknown ids are admitted. One that finds no room has its first row."""
        ids = self._prepare_call(ids)
        with self._gate.shared():
            call_number = self._next_call()
            values, _, unknown = self._read_or_initial_rows(ids, self.dim, call_number)
        if unknown.size:
            with self._exclusive_change():
                self._admit(unknown, call_number=call_number)
        return values

    def peek(self, ids: Any) -> np.ndarray:
        """What `pull` would give, without admitting anything."""
        ids = self._prepare_call(ids)
        with self._gate.shared():
            return self._read_or_initial_rows(ids, self.dim)[0]

    def push(self, ids: Any, grads: Any, stamp: int, *, distinct: bool = False, rate: float = 1.0) -> None:
        """Make one optimiser step per distinct id, whose timestamp becomes `stamp`; unknown ids are admitted first.

        `distinct` promises that no id stands twice. `rate` multiplies the learning rate of this step.
        """
        ids = self._prepare_call(ids)
        grads = floats_of(grads, (ids.size, self.dim), "grads")
        if whole(stamp, "stamp", 0) > LARGEST_STAMP:
            raise BadOption(f"stamp must be at most {LARGEST_STAMP}, not {stamp}")
        if not distinct:
            once, positions = kernels.unique(ids)
            if once.size < ids.size:
                ids, (grads, _) = once, self._sum_count(positions, grads, np.ones(ids.size, np.float32), once.size)
        optimizer = self.optimizer.scale_lr(rate)
        self._change_rows(
            ids, lambda slots, part: self._step(optimizer, slots, grads[part], stamp), shared=self.locking == "none"
        )

    def push_weighted(
        self,
        ids: np.ndarray,
        grads: np.ndarray,
        stamp: int,
        *,
        weights: np.ndarray,
        divisor: float | None = None,
        rate: float = 1.0,
    ) -> None:
        """`push` the weighted sums of each id's gradients over `divisor`, or over how many it has.

        `weights` are those of the entries. An id whose weights are all 0 is left alone.
        """
        distinct, positions = kernels.unique(ids_of(ids))
        sums, met = self._sum_count(positions, grads, weights, distinct.size)
        sums /= np.float32(divisor) if divisor else met[:, None].astype(np.float32)
        if not weights.all():
            alive = np.flatnonzero(np.bincount(positions, weights > 0, distinct.size))
            distinct, sums = distinct[alive], sums[alive]
        self.push(distinct, sums, stamp, distinct=True, rate=rate)

    def stamps(self, ids: Any) -> np.ndarray:
        """Timestamps of the last updates, int64[n]; -1 for an id that is unknown or was never updated."""
        ids = self._prepare_call(ids)
        with self._gate.shared():
            return self._stamps(self._find_slots(ids)[0])

    def read(self, ids: Any, *, order_out: np.ndarray | None = None) -> Rows:
        """Copies of everything that the rows hold; unknown ids are admitted as by `pull`.

        `order_out` takes the call's place in the order of accesses, int64[n]: of two reads or writes of a row the first has the
        smaller number.
        """
        ids = self._prepare_call(ids).copy()
        with self._no_row_changes():
            call_number = self._next_call()
            block, slots, unknown = self._read_or_initial_rows(ids, self._numbers, call_number)
            rows = Rows.of(ids, block, self.dim, self._stamps(slots))
            if order_out is not None:
                order_out[:] = next(self._accesses)
        if unknown.size:
            with self._exclusive_change():
                self._admit(unknown, call_number=call_number)
        return rows

    def write(self, rows: Rows, *, newer: bool = True, order_out: np.ndarray | None = None) -> None:
        """Store rows as they are, in input order; `order_out` as in `read`. With `newer`, a row needs a larger timestamp."""
        ids, block, stamps = self._checked(rows)

        def replace(slots: np.ndarray, entries: np.ndarray | slice) -> None:
            if order_out is not None:
                order_out[entries] = next(self._accesses)
            self._replace(slots, block[entries], stamps[entries], newer)

        self._change_rows(self._prepare_call(ids), replace, UNSET)

    def assign(self, ids: Any, values: Any) -> None:
        """Replace the rows' values and keep their state and timestamps; unknown ids are admitted first."""
        ids = self._prepare_call(ids)
        values = floats_of(values, (ids.size, self.dim), "values")

        def replace(slots: np.ndarray, entries: np.ndarray | slice) -> None:
            self._rows[slots, : self.dim] = values[entries]

        self._change_rows(ids, replace)

    def ids(self) -> np.ndarray:
        """The ids of all rows, sorted."""
        with self._gate.shared():
            return np.sort(self._ids())

    def export(self) -> Rows:
        """The whole content, sorted by id."""
        with self._no_row_changes():
            ids = np.sort(self._ids())
            block, slots, _ = self._read_or_initial_rows(ids, self._numbers)
            return Rows.of(ids, np.asarray(block), self.dim, self._stamps(slots))

    def load(self, rows: Rows) -> None:
        """Replace the whole content."""
        ids, block, stamps = self._checked(rows)
        if kernels.unique(ids)[0].size < ids.size:
            raise BadOption("rows.ids must be distinct to be loaded as a table's content")
        if ids.size > self._limit:
            raise BadOption(f"{ids.size} rows do not fit in a table of at most {self._limit}")
        with self._exclusive_change():
            self._clear()
            slots = self._admit(ids, call_number=0)
            self._replace(slots, block, stamps, False)
            self._calls = 0

    def dump(self) -> Dump:
        """All that decides the table's future, without a copy: save it before the table is used again."""
        return Dump(self._words[: self._count], (self._calls, self.lost, self.evicted, next(self._accesses)))

    def restore(self, dump: Dump) -> None:
        """Go on as the table did whose dump it is, with the same rows, optimiser and limits."""
        count, width = dump.words.shape
        if width != self._width or count > self._limit:
            table = f"a table of at most {self._limit} records of {self._width} words"
            raise BadOption(f"{count} records of {width} words do not fit {table}")
        with self._exclusive_change():
            self._clear()
            self._resize(max(count, len(self._words)))
            self._words[:count], self._count = dump.words, count
            kernels.insert(self._index, self._words, self._column, np.arange(count))
            self._calls, self.lost, self.evicted, accesses = dump.numbers
            self._accesses = itertools.count(accesses)

    def _exclusive_change(self) -> AbstractContextManager[None]:
        """Exclude all other calls, for a call that changes or moves rows."""
        return self._gate.alone()

    def _no_row_changes(self) -> AbstractContextManager[None]:
        """Exclude calls that change rows."""
        return self._exclusive_change() if self.locking == "none" else self._gate.shared()

    def _prepare_call(self, ids: Any) -> np.ndarray:
        """The ids of a call, after whatever takes long and can be done before the call excludes others."""
        if self._calls >= LAST_CALL:
            with self._exclusive_change():
                self._renumber_touches()
        plain = type(ids) is np.ndarray and ids.dtype == np.int64 and ids.ndim == 1 and ids.flags.carray
        return ids if plain else ids_of(ids)

    def _next_call(self) -> int:
        self._calls += 1
        return self._calls

    def _renumber_touches(self) -> None:
        """Count calls anew: touches become as small as they can be in the same order."""
        self._calls = 0
        if self.max_rows is not None:
            self._before_change(np.arange(self._count))
            touches = self._words[: self._count, -1]
            distinct, ranks = np.unique(touches, return_inverse=True)
            touches[:] = ranks + 1
            self._calls, self._queue = distinct.size, self._queue[:0]

    def _find_slots(self, ids: np.ndarray, out: np.ndarray = NO_BLOCK, call_number: int = 0) -> tuple[np.ndarray, int]:
        """The slot of every id, -1 where it has no row, and how many have none; rows that are found are copied to `out`.

        With `call_number`, the rows count as looked up by that call.
        """
        slots, touch = np.empty(ids.size, np.int64), 0 if self.max_rows is None else call_number
        return slots, kernels.find_slots(ids, self._index, self._words, self._column, touch, slots, out)

    def _read_or_initial_rows(
        self, ids: np.ndarray, width: int, call_number: int = 0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first `width` columns of [values | state], the slots, and the ids without a row, which get the first one."""
        block = np.empty((ids.size, width), np.float32)
        slots, missing = self._find_slots(ids, block, call_number)
        unknown = ids[slots < 0] if missing else ids[:0]
        if missing:
            block[slots < 0] = self._initial_rows(unknown)[:, :width]
        return block, slots, unknown

    def _stamps(self, slots: np.ndarray) -> np.ndarray:
        stamps = self._words.view(np.int32)[slots, self._column].astype(np.int64)
        return np.where(slots < 0, NEVER, stamps)

    def _ids(self, slots: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The ids of some slots, or of all."""
        return self._words[: self._count][slots, self._column + 1 : self._column + 3].copy().view(np.int64).ravel()

    def _initial_rows(self, ids: np.ndarray) -> np.ndarray:
        """[values | state] of rows that were never updated."""
        values = kernels.first_rows(ids, np.uint64(self.seed % 2**64), self.dim, self.scale)
        return np.hstack([values, np.broadcast_to(self._first_state, (ids.size, self._numbers - self.dim))])

    def _checked(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, [values | state] and timestamps."""
        ids, stamps = ids_of(rows.ids, "rows.ids"), ids_of(rows.stamps, "rows.stamps")
        values = floats_of(rows.values, (ids.size, self.dim), "rows.values", contiguous=False)
        state = floats_of(rows.state, (ids.size, self._numbers - self.dim), "rows.state", contiguous=False)
        if stamps.size != ids.size or (stamps.size and not NEVER <= stamps.min() <= stamps.max() <= LARGEST_STAMP):
            raise BadOption(f"rows.stamps must be {ids.size} timestamps of at least -1 and at most {LARGEST_STAMP}")
        return ids, Rows(ids, values, state, stamps).block, stamps

    def _change_rows(self, ids: np.ndarray, put: Put, stamp: int = NEVER, *, shared: bool = False) -> None:
        """Do `put` on the slots of these ids, which are admitted with that timestamp where they are unknown.

        With `shared`, a call that finds all its rows excludes only calls that move rows.
        """
        if shared:
            with self._gate.shared():
                slots, missing = self._find_slots(ids)
                if not missing:
                    put(slots, slice(None))
                    return
        with self._exclusive_change():
            slots = self._admit(ids, stamp)
            kept = slots >= 0
            self.lost += int((~kept).sum())
            slots, entries = (slots, slice(None)) if kept.all() else (slots[kept], np.flatnonzero(kept))
            self._before_change(slots)
            put(slots, entries)

    def _admit(self, ids: np.ndarray, stamp: int = NEVER, call_number: int | None = None) -> np.ndarray:
        """The slots of ids, which get a row where they have none; -1 for one that finds no room.

        Rows that this call looked up stay, and so do those of these ids. A call without a number gets one if it admits.
        """
        slots, missing = self._find_slots(ids)
        if missing:
            call_number, unknown = self._next_call() if call_number is None else call_number, slots < 0
            new, positions = kernels.unique(ids[unknown])
            room = self._allocate_slots(new.size, call_number, slots[~unknown])
            ends = np.empty((room.size, self._width - self._column), np.uint32)
            ends.view(np.int32)[:, 0] = stamp
            ends[:, 1:3] = new[: room.size].view(np.uint32).reshape(-1, 2)
            ends[:, 3:] = call_number
            self._words[room, self._column :] = ends
            self._rows[room, : self._numbers] = self._initial_rows(new[: room.size])
            kernels.insert(self._index, self._words, self._column, room)
            slots[unknown] = np.append(room, np.full(new.size - room.size, -1))[positions]
        return slots

    def _step(self, optimizer: Optimizer, slots: np.ndarray, grads: Any, stamp: int) -> None:
        optimizer.update_slots(self._rows, slots, grads, (self._column, stamp))

    def _replace(self, slots: np.ndarray, block: Any, stamps: np.ndarray, newer: bool) -> None:
        kernels.replace_rows(self._words, self._column, slots, block, stamps, newer)

    _sum_count = staticmethod(kernels.sum_count)

    def _allocate_slots(self, many: int, call_number: int, spared: np.ndarray) -> np.ndarray:
        """Up to `many` slots that hold no row: new ones, and those of evicted rows."""
        count, fresh = self._count, min(many, self._limit - self._count)
        if count + fresh > len(self._words):
            self._resize(max(count + fresh, min(2 * len(self._words), self._limit)))
        self._count += fresh
        if fresh == many:
            return np.arange(count, count + many)
        victims = self._victims(count, many - fresh, call_number, spared)
        self._before_change(victims)
        kernels.remove(self._index, self._words, self._column, victims)
        self.evicted += victims.size
        return np.append(np.arange(count, count + fresh), victims)

    def _victims(self, occupied: int, wanted: int, call_number: int, spared: np.ndarray) -> np.ndarray:
        """Up to `wanted` of the `occupied` slots, in exact least-recently-used order; of rows of one call the least id is first.

        Rows that this call looked up stay, and so do the spared. One pass picks about the sixteenth that was looked up longest
        ago, which serves until it is used up: a row that is looked up meanwhile has a larger number than all that were picked.
        """
        touches = self._words[:occupied, -1]
        for _ in range(2):
            queue = self._queue[touches[self._queue] <= self._cut]
            free = (touches[queue] != call_number) & ~np.isin(queue, spared)
            if free.sum() >= wanted:
                break
            rest = touches[touches != call_number]
            picked = min(max(wanted + spared.size, rest.size // 16), rest.size)
            self._cut = int(np.partition(rest, picked - 1)[picked - 1]) if picked else 0
            slots = np.flatnonzero((touches <= self._cut) & (touches != call_number))
            self._queue = slots[np.lexsort((self._ids(slots), touches[slots]))][:picked]
        gone = free & (np.cumsum(free) <= wanted)
        self._queue = queue[~gone]
        return queue[gone]

    def _before_change(self, slots: np.ndarray) -> None:
        """Called before these records change; nothing to do in memory that goes with the process."""

    def _clear(self) -> None:
        """Forget all rows."""
        self._before_change(np.arange(self._count))
        self._count, self._queue = 0, self._queue[:0]
        self._index[:] = 0

    def _resize(self, capacity: int) -> None:
        """Move the rows to new arrays, each to the same slot."""
        if capacity > MOST_ROWS:
            raise BadOption(f"a table has room for at most {MOST_ROWS} rows, not {capacity}")
        self._words = self._larger_records(capacity)
        self._rows = self._words.view(np.float32)
        index = np.zeros(int(capacity * SPARE) + 2, np.uint32)
        kernels.insert(index, self._words, self._column, np.arange(self._count))
        self._index = index

    def _larger_records(self, capacity: int) -> np.ndarray:
        """Room for so many records, with those that there are."""
        words = np.empty((capacity, self._width), np.uint32)
        if self._count:
            words[: self._count] = self._words[: self._count]
        return words


class Gate:
    """Lets many calls in at a time, or one alone. A call that waits to be alone goes first."""

    def __init__(self):
        self._door, self._leaving, self._inside = threading.Lock(), threading.Condition(), 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._door, self._leaving:
            self._inside += 1
        try:
            yield
        finally:
            with self._leaving:
                self._inside -= 1
                self._leaving.notify()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._door:
            with self._leaving:
                while self._inside:
                    self._leaving.wait()
            yield
