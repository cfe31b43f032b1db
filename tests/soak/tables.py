"""Random calls on a table, from several threads at once, held against plain dictionaries.

No order in which the threads may come changes what must hold, for two kinds of cases:
- rows of which each has one owner: whatever the others do, it finds what its own dictionary says;
- rows that all use, under SGD, with whole gradients that point one way: sums are exact in any order. Nobody sees less than what
  it has pushed or seen before, or more than all have pushed, and in the end nothing is missing. Without locks, and where a
  limit takes rows away, updates may be lost; but no row gets anything of another's.

A case that shows a fault in one try may hide it in the next.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lib import streams
from lib.errors import BadOption
from lib.store import checkpoint
from lib.store.rows import Dump, Rows
from lib.store.table import Table
from tests.soak.cases import Case
from tests.soak.checks import Finding, Refused
from tests.soak.dictionary import Broken, Common, Owned
from tests.soak.table_calls import LOOKS, PUSHES, REPLACES, SLACK, WHOLE, Act, Setting, unit

OPTIMIZERS = (
    {"name": "sgd", "lr": 0.5},
    {"name": "sgd", "lr": 1.0, "weight_bound": 2.0},
    {"name": "momentum", "lr": 0.1},
    {"name": "momentum", "lr": 0.1, "nesterov": True},
    {"name": "adagrad", "lr": 0.5},
    {"name": "adagrad", "lr": 0.5, "rowwise": True},
    {"name": "adagrad", "lr": 0.5, "after": True, "initial": 1.0},
    {"name": "adam", "lr": 0.1},
)
TRIES = 20
"""How often a case is tried before it is taken to break nothing any more."""
HANG = 20.0
"""Seconds after which a thread is taken to wait for ever."""


def draw(seed: int, number: int, cluster: str = "local") -> Case:
    """The case of that number; threads are this machine's, whatever the cluster."""
    stream = streams.stream(seed, "soak", "store", number)

    def one(things: Sequence[Any]) -> Any:
        return things[stream.integers(len(things))]

    def chance(share: float) -> bool:
        return bool(stream.random() < share)

    shared, threads, vocabulary = chance(0.4), range(stream.integers(1, 5)), one((2, 6, 20))
    store = {"shared_memory": True} if chance(0.15) else {"locking": one(("table", "table", "none"))}
    store["ids"] = one(("distinct", "entries", "samples"))
    store["rows"] = "fp32" if shared else one(tuple(SLACK))
    store["gradients"] = one(tuple(SLACK)[: 3 if shared else 4])  # int8 changes whole numbers
    case: Case = {"store": store, "dim": one((1, 2, 5)), "optimizer": dict(WHOLE if shared else one(OPTIMIZERS))}
    case |= {
        name: True
        for name, drawn in (("shared", shared), ("spread", chance(0.5)), ("halting", shared and chance(0.5)))
        if drawn
    }
    if chance(0.5):
        store["max_rows"] = one((1, 5, 30))
    elif chance(0.3):
        case["copies"] = 700  # a few of them are more than an update takes in one go
    if chance(0.6):
        case["between"] = one(("export", "dump"))
    calls = (*LOOKS, *PUSHES, *(() if shared else REPLACES))

    def drawn() -> list[Any]:
        return [one(calls), *stream.integers(0, vocabulary, stream.integers(0, 9)).tolist()]

    rounds = range(stream.integers(1, 4))
    case["rounds"] = [[[drawn() for _ in range(stream.integers(1, 9))] for _ in threads] for _ in rounds]
    return case


def named(case: Case) -> str:
    """What kind of case it is."""
    store, rows = case["store"], "shared" if case.get("shared") else "owned"
    kind = "in shared memory" if store.get("shared_memory") else f"locking {store['locking']}"
    return f"{rows} rows, {kind}{', limited' if 'max_rows' in store else ''}"


def call(case: Case, finding: Finding | None = None) -> str:
    """The case as a call that can be pasted."""
    return f"[tests.soak.tables.check({case!r}) for _ in range({TRIES})]"


def check(case: Case) -> Finding | None:
    """What the case breaks, if anything; `Refused` where it is none."""
    try:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder, _often_in_turn():
            _check(Setting(case), case.get("between"), Path(folder) / "table")
    except Broken as error:
        return Finding(kind=error.args[0], detail=error.args[1])
    except BadOption as error:
        raise Refused(str(error)) from error
    except Exception as error:
        return Finding(kind=f"{type(error).__name__} in a table", detail=traceback.format_exc()[-3000:])
    return None


def _check(setting: Setting, between: str | None, path: Path) -> None:
    """Round after round: all threads at once, then what they leave, which may go on in another table."""
    table, met = setting.table(), _Met(setting)
    for threads in setting.rounds:
        met.expect(threads)
        _at_once([partial(_carry_out, acts, table, known) for acts, known in zip(threads, met.known, strict=False)])
        met.settle(table)
        if between:
            checkpoint.save(path, getattr(table, between)(), durable=False)
            table, kept = setting.table(), checkpoint.load(path, (Rows, Dump))
            table.load(kept) if isinstance(kept, Rows) else table.restore(kept)


def _carry_out(acts: list[Act], table: Table, known: Owned | Common) -> None:
    for act in acts:
        act.carry_out(table, known)


class _Met:
    """What has happened so far, of all threads."""

    def __init__(self, setting: Setting):
        self._setting = setting
        self.known = [setting.dictionary(owner) for owner in range(max(map(len, setting.rounds)))]
        self._total = Common(unit, setting.loses)
        self._names: list[set[int]] = [set() for _ in self.known]
        self._ids: set[int] = set()
        self._stamps: dict[int, set[int]] = {}
        """Name of a shared row -> the stamps that it can have."""

    def expect(self, threads: list[list[Act]]) -> None:
        """These calls are about to be made."""
        stamps: dict[int, set[int]] = {}
        for acts, names in zip(threads, self._names, strict=False):
            last = {}
            for act in acts:
                names.update(act.names.tolist())
                self._ids.update(act.admits)
                if self._setting.shared and act.what in PUSHES:
                    self._total.stepped(act.step)
                    last |= dict.fromkeys(act.step.sums(), act.stamp)
            for name, stamp in last.items():
                stamps.setdefault(name, {-1} if self._setting.forgets else set()).add(stamp)
        self._stamps |= stamps
        for known in self.known if self._setting.shared else ():
            known.most = self._total.least

    def settle(self, table: Table) -> None:
        """Nobody uses the table: it holds what it must, and nothing else."""
        setting, content = self._setting, table.export()
        most = setting.store.max_rows or len(self._ids)
        found = {*content.ids.tolist()}
        if not found <= self._ids or len(found) > most or len(table) != content.ids.size or len(table) != len(found):
            raise Broken(
                "a table holds other rows", f"{len(table)} rows of {len(found)} ids, of {len(self._ids)} and {most}"
            )
        if not setting.forgets and (found != self._ids or table.lost or table.evicted):
            raise Broken(
                "rows are lost", f"{self._ids - found} are not there, {table.lost} lost, {table.evicted} evicted"
            )
        judge = Common(unit, setting.loses)
        judge.least, judge.most = dict(self._total.least), self._total.least
        for owner, (known, names) in enumerate(zip(self.known, self._names, strict=True)):
            left = [name for name in sorted(names) if found.issuperset(setting.ids(np.array([name]), owner).tolist())]
            act = Act(setting, owner, ["read", *left], 0)
            at = np.searchsorted(content.ids, act.ids)
            seen = act.seen(values=content.values[at], state=content.state[at], stamps=content.stamps[at])
            (judge if setting.shared else known).saw(seen)
            for name, stamps in zip(left, seen.stamps.tolist(), strict=True) if setting.shared else ():
                if not {*stamps} <= self._stamps.get(name, {-1}):
                    raise Broken("a wrong stamp", f"row {name}: {stamps}, not of {self._stamps.get(name)}")
        for known in self.known if setting.shared else ():
            known.least = dict(judge.least)


def _at_once(works: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own; the first error of any."""
    errors: list[Exception] = []
    start = threading.Barrier(len(works))

    def carry_out(work: Callable[[], None]) -> None:
        try:
            start.wait()
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=carry_out, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise Broken("hang", f"not done after {HANG:g} s")


@contextmanager
def _often_in_turn() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
