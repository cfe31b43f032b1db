"""The calls of a case for the store: what each says, and what it tells the dictionary that it is held against.

A call is a list, as `["push", 1, 1, 2]`: what is done, and to which rows; all else follows from that. "ask" and "send" go the way
of a run's messages, through the store's codecs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lib.store import kernels
from lib.store.optim import SGD, Optimizer
from lib.store.rows import Rows
from lib.store.spec import RowStore
from lib.store.table import Table
from tests.soak.cases import Case
from tests.soak.dictionary import Broken, Common, Owned, Seen, Step

LOOKS = ("pull", "peek", "stamps", "read", "ask")
PUSHES = ("push", "update", "send")
REPLACES = ("write", "overwrite", "assign")
"""Only for rows with an owner."""
WHOLE = {"name": "sgd", "lr": 1.0}
SLACK = {"fp32": 0.0, "fp16": 2**-11, "scaled-fp16": 2**-11, "int8": 1 / 254}
"""What a codec may change, as a share of a row's largest number."""
OWNERS = 8
"""More than there are threads."""
SPREAD = -7046029254386353131
"""Odd, so that ids times it are distinct and lie anywhere in 64 bits."""
SEED = 3


class Setting:
    """What all threads of a case have in common."""

    def __init__(self, case: Case):
        self.dim, self.copies = case.get("dim", 1), case.get("copies", 1)
        self.shared, self._spread = case.get("shared", False), case.get("spread", False)
        self.store = RowStore(**case.get("store", {}))
        self.optimizer = _Halting(lr=1.0) if case.get("halting") else Optimizer.read(case.get("optimizer", WHOLE))
        self._scale = 0.0 if self.shared else 0.5
        self.rounds: list[list[list[Act]]] = []
        counts = [0] * OWNERS
        for threads in case["rounds"]:
            self.rounds.append([])
            for owner, calls in enumerate(threads):
                stamps = range(OWNERS * counts[owner] + owner, 2**31, OWNERS)
                counts[owner] += len(calls)
                acts = [Act(self, owner, *call) for call in zip(calls, stamps, strict=False)]
                self.rounds[-1].append(acts)
        named = {number for threads in self.rounds for acts in threads for act in acts for number in act.ids.tolist()}
        self.forgets = (self.store.max_rows or len(named)) < len(named)
        self.loses = self.forgets or (self.store.locking == "none" and not self.store.shared_memory)

    def ids(self, names: np.ndarray, owner: int) -> np.ndarray:
        """Of each name as many as there are copies."""
        first = OWNERS * names + (0 if self.shared else owner)
        each = (first[:, None] * self.copies + np.arange(self.copies)).ravel()
        return each * SPREAD if self._spread else each

    def table(self) -> Table:
        return self.store.table("soak", self.dim, self.optimizer, seed=SEED, scale=self._scale)

    def dictionary(self, owner: int) -> Owned | Common:
        def first(name: int) -> np.ndarray:
            return kernels.first_rows(self.ids(np.array([name]), owner), SEED, self.dim, self._scale)

        return Common(unit, self.loses) if self.shared else Owned(self.optimizer, first, self.forgets)


class _Halting(SGD):
    """A step that reads, gives way, and writes: what takes a processor a few nanoseconds, for every thread to get in between."""

    def update_slots(self, rows, slots, grads, mark=(-1, 0)):
        before = rows[slots, : grads.shape[1]]
        time.sleep(1e-5)
        rows[slots, : grads.shape[1]] = before - np.float32(self.lr) * grads
        super().update_slots(rows, slots, np.zeros_like(grads), mark)


@dataclass(frozen=True, eq=False)
class Act:
    """One call of a thread."""

    setting: Setting
    owner: int
    call: list
    stamp: int
    """No other call has it."""

    @property
    def what(self) -> str:
        return self.call[0]

    @cached_property
    def names(self) -> np.ndarray:
        return np.array(self.call[1:], np.int64)

    @cached_property
    def ids(self) -> np.ndarray:
        return self.setting.ids(self.names, self.owner)

    @cached_property
    def step(self) -> Step:
        """Its gradients, small whole numbers; those of shared rows all negative, multiples of the row's unit."""
        names, setting = self.names, self.setting
        mixed = 3 * names + np.arange(names.size) + self.stamp
        numbers = -(1 + mixed % 4) * unit(names) if setting.shared else mixed % 9 - 4
        columns = np.ones(setting.dim) if setting.shared else np.arange(1, setting.dim + 1)
        grads = np.float32(numbers[:, None, None] * np.ones((setting.copies, 1)) * columns)
        if self.what != "update":
            return Step(names, grads, np.ones(names.size, np.float32), self.stamp)
        divisor, rate = (1.0, 2.0) if setting.shared else ((None, 2.0)[self.stamp % 2], 0.5)
        return Step(names, grads, np.float32(mixed % 3 > 0), self.stamp, divisor, rate)

    @property
    def admits(self) -> list[int]:
        """Ids that have a row afterwards, where there is room."""
        if self.what in ("peek", "stamps"):
            return []
        return self.setting.ids(np.array([*self.step.sums()], np.int64), self.owner).tolist()

    def carry_out(self, table: Table, known: Owned | Common) -> None:
        """Call the table, and hold what it gives against what is known of the rows."""
        _CARRIED_OUT[self.what](self, table, known)

    def seen(self, slack: float = 0.0, **arrays: np.ndarray) -> Seen:
        """What a look-up gave, name by name."""
        each = {
            key: array.reshape(self.names.size, self.setting.copies, *array.shape[1:]) for key, array in arrays.items()
        }
        return Seen(self.names, slack=slack, **each)


def unit(name):
    """What every gradient of a shared row is a multiple of."""
    return name % 3 + 1


def _look(act: Act, table: Table, known: Owned | Common) -> None:
    found = getattr(table, act.what)(act.ids)
    known.saw(act.seen(**{"stamps" if act.what == "stamps" else "values": found}))


def _read(act: Act, table: Table, known: Owned | Common) -> None:
    rows = table.read(act.ids)
    known.saw(act.seen(values=rows.values, state=rows.state, stamps=rows.stamps))


def _ask(act: Act, table: Table, known: Owned | Common) -> None:
    """As a worker asks for a batch's rows."""
    store = act.setting.store
    ids, where = kernels.unique(act.ids)
    message = store.rows.encode(table.pull(store.asked(store.ask(ids, where[:, None], slice(None)))))
    known.saw(act.seen(SLACK[store.rows.name], values=store.rows.decode(message)[where]))


def _push(act: Act, table: Table, known: Owned | Common) -> None:
    table.push(act.ids, _flat(act.step.grads), act.stamp)
    known.stepped(act.step)


def _send(act: Act, table: Table, known: Owned | Common) -> None:
    """As a worker sends a batch's gradients: each id once."""
    codec, sums = act.setting.store.gradients, act.step.sums()
    names, grads = np.array([*sums], np.int64), np.array([*sums.values()], np.float32)
    grads = grads.reshape(names.size, *act.step.grads.shape[1:])
    got = codec.decode(codec.encode(_flat(grads)))
    if (np.abs(got - _flat(grads)) > SLACK[codec.name] * np.abs(_flat(grads)).max(axis=1, keepdims=True) + 1e-6).any():
        raise Broken("a codec changes more than it may", f"{grads.tolist()} came as {got.tolist()}")
    table.push(act.setting.ids(names, act.owner), got, act.stamp, distinct=True)
    ones = np.ones(names.size, np.float32)
    known.stepped(replace(act.step, names=names, grads=got.reshape(grads.shape), weights=ones))


def _update(act: Act, table: Table, known: Owned | Common) -> None:
    """As a server applies several gradients, with weights that it may make of the rows' stamps."""
    step, copies = act.step, act.setting.copies
    weights = np.repeat(step.weights, copies)

    def by_stamp(stamps: np.ndarray) -> np.ndarray:
        for name, told in zip(act.names.tolist(), stamps.reshape(-1, copies).tolist(), strict=True):
            if isinstance(known, Owned) and not {*told} <= {stamp for _, _, stamp in known.can_be(name)}:
                raise Broken("an update is told a wrong stamp", f"row {name}: {told}, not one of {known.can_be(name)}")
        return weights

    given = by_stamp if act.stamp % 3 else weights
    options = {"weights": given, "divisor": step.divisor, "rate": step.rate}
    decayed = table.update(act.ids, _flat(step.grads), act.stamp, **options)
    if decayed != (weights < 1).sum():
        raise Broken("decayed gradients are miscounted", f"{decayed}, not {(weights < 1).sum()}")
    known.stepped(step)


def _write(act: Act, table: Table, known: Owned) -> None:
    """Whole rows, of a stamp that may be an earlier one."""
    values, newer = act.step.grads, act.what == "write"
    stamp = act.stamp if act.stamp % 2 else max(0, act.stamp - 2 * OWNERS)
    state = np.ones((*values.shape[:2], act.setting.optimizer.columns(act.setting.dim)), np.float32)
    rows = Rows(act.ids, _flat(values), _flat(state), np.full(act.ids.size, stamp))
    table.write(rows, newer=newer)
    known.written(act.names, values, state, stamp, newer)


def _assign(act: Act, table: Table, known: Owned) -> None:
    table.assign(act.ids, _flat(act.step.grads))
    known.assigned(act.names, act.step.grads)


def _flat(grouped: np.ndarray) -> np.ndarray:
    """A row for each id."""
    return grouped.reshape(grouped.shape[0] * grouped.shape[1], grouped.shape[2])


_CARRIED_OUT: dict[str, Callable[[Act, Table, Owned | Common], None]] = {
    **dict.fromkeys(("pull", "peek", "stamps"), _look),
    "read": _read,
    "ask": _ask,
    "push": _push,
    "send": _send,
    "update": _update,
    "write": _write,
    "overwrite": _write,
    "assign": _assign,
}
