"""Calls that meet in a table, stopped at every point: of each row they look as if one had come after the other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from lib.store.optim import Adagrad
from lib.store.rows import Rows
from lib.store.shared_memory.table import SharedTable
from lib.store.table import table as tables
from lib.store.table.gate import Gate
from lib.store.table.table import Table
from tests.store.table.interleave import Interleaving, Stuck, all_orders, stoppable

pytestmark = pytest.mark.usefixtures("own_memory")

OPTIMIZER = Adagrad(lr=0.5, initial=1.0)
Call = tuple[str, list[int], float]
"""What is called, for which ids, and a number of its own, from which it has values and stamp."""

MEETINGS: dict[str, list[list[Call]]] = {
    "two write": [[("write", [1, 2], 5)], [("write", [2, 1], 7)]],
    "an older one writes": [[("write", [1, 2], 7)], [("write", [1, 2], 5), ("read", [1, 2], 0)]],
    "one reads what another writes": [[("read", [1, 2], 0)], [("write", [1, 2], 5)]],
    "one reads what another pushes": [[("read", [1, 2], 0)], [("push", [1, 2], 5)]],
    "two push": [[("push", [1, 2], 5)], [("push", [2, 1], 7)]],
    "one pushes what another writes": [[("push", [1, 2], 5)], [("write", [2, 1], 7)]],
    "one assigns what another pushes": [[("assign", [1, 2], 5)], [("push", [1, 2], 7)]],
}
GROWING: dict[str, list[list[Call]]] = {
    "it grows beside a push": [[("pull", [8, 9], 0)], [("push", [1], 5)]],
    "it grows beside a write": [[("pull", [8, 9], 0)], [("write", [1], 5)]],
    "it grows beside a reader": [[("read", [1], 0)], [("push", [8], 5), ("write", [1], 7)]],
    "two bring the same row": [[("push", [9], 5)], [("push", [9], 7)]],
    "one reads what another brings": [[("read", [9], 0)], [("write", [9], 5)]],
}
FULL: dict[str, list[list[Call]]] = {
    "a row goes beside its write": [[("write", [1], 5)], [("pull", [8], 0), ("read", [8], 0)]],
    "a row goes beside its push": [[("push", [1], 5)], [("pull", [8], 0), ("push", [8], 7)]],
    "a row goes beside its reader": [[("read", [1], 0)], [("push", [8], 7)]],
}


def striped(**more: Any) -> Table:
    return Table(1, OPTIMIZER, seed=0, capacity=1, **more)


def unlocked() -> Table:
    return striped(locking="none")


def journaled() -> Table:
    return SharedTable(1, OPTIMIZER, seed=0, capacity=1, name=f"test-meet-{os.getpid()}-{next(_names)}")


def limited() -> Table:
    return striped(max_rows=2)


_names = itertools.count()


def filled(make: Callable[[], Table]) -> Table:
    table = make()
    table.pull([1])
    table.pull([2])
    return table


def carry_out(table: Table, call: Call, only: int | None = None) -> Any:
    """What it gives; with `only`, as if no other id stood there."""
    what, ids, number = call
    ids = np.array([each for each in ids if only in (None, each)], np.int64)
    block = (number + ids[:, None] / 8).astype(np.float32)
    if what == "read":
        return [tuple(map(float, row)) for row in told(table.read(ids))]
    if what == "pull":
        return None
    if what == "write":
        return table.write(Rows(ids, block, block + 100, np.full(ids.size, int(number))))
    if what == "push":
        return table.push(ids, block, int(number))
    return table.assign(ids, block)


def told(rows: Rows) -> Iterator[Any]:
    return zip(rows.ids, rows.values[:, 0], rows.state[:, 0], rows.stamps, strict=True)


def orders(calls: Sequence[Sequence[Call]]) -> Iterator[list[tuple[int, int]]]:
    """Who calls which of its calls, in all orders that keep each thread's own."""
    threads = [number for number, mine in enumerate(calls) for _ in mine]
    for order in {*itertools.permutations(threads)}:
        yield [(thread, order[:place].count(thread)) for place, thread in enumerate(order)]


def left(table: Table) -> list[Any]:
    return [tuple(map(float, row)) for row in told(table.export())]


def of_row(outcome: Any, number: int) -> tuple[Any, ...]:
    """What the calls gave of one row, and what is left of it."""
    *results, rows = outcome
    return tuple(tuple(row for row in each or () if row[0] == number) for each in (*itertools.chain(*results), rows))


def expected(make: Callable[[], Table], calls: Sequence[Sequence[Call]], number: int | None = None) -> set[Any]:
    """All that calls one after another may give, of that row if one is named."""
    outcomes = set()
    for order in orders(calls):
        table, results = filled(make), [[None] * len(mine) for mine in calls]
        for thread, place in order:
            results[thread][place] = carry_out(table, calls[thread][place], number)
        outcomes.add(plain((*results, left(table))) if number is None else of_row((*results, left(table)), number))
    return outcomes


def plain(outcome: Any) -> Any:
    return tuple(map(plain, outcome)) if isinstance(outcome, (list, tuple)) else outcome


def met(make: Callable[[], Table], calls: Sequence[Sequence[Call]], changes: int = 2) -> Iterator[Any]:
    """What the calls gave and left, in all orders."""
    table: Table

    def works() -> list[Callable[[], Any]]:
        nonlocal table
        table = filled(make)
        return [lambda mine=mine: [carry_out(table, call) for call in mine] for mine in calls]

    for results in all_orders(works, changes):
        yield (*results, left(table))


@pytest.mark.parametrize("go", [tables.SMALL, 0], ids=["in one go", "stripe by stripe"])
@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("make", [striped, unlocked, journaled])
def test_of_every_row_one_call_comes_after_the_other(make, meeting, go):
    calls = MEETINGS[meeting]
    if make is unlocked and "push" in meeting:
        pytest.skip("updates without locks may lose each other")
    with stoppable() as patched:
        allowed = {number: expected(make, calls, number) for number in (1, 2)}
        patched.setattr(tables, "SMALL", go)
        patched.setattr(tables, "GO", 1)
        for outcome in met(make, calls, changes=2 if make is striped else 1):
            for number, possible in allowed.items():
                assert of_row(outcome, number) in possible


@pytest.mark.parametrize(
    ("make", "meeting"), [*itertools.product([striped, journaled], GROWING), *itertools.product([limited], FULL)]
)
def test_rows_that_come_and_go_beside_others_calls(make, meeting):
    calls = (GROWING | FULL)[meeting]
    with stoppable():
        allowed = expected(make, calls)
        for outcome in met(make, calls, changes=2 if make is striped else 1):
            assert plain(outcome) in allowed


@pytest.mark.parametrize("go", [tables.SMALL, 0], ids=["in one go", "stripe by stripe"])
def test_the_order_of_accesses_is_the_one_in_which_they_happened(go):
    """Played in that order on another table they give the same, and there are no two alike of a row."""
    calls = [[("read", 0), ("write", 5)], [("write", 7), ("read", 0)]]

    def access(table, what, number, order):
        if what == "read":
            return [*told(table.read([1, 2], order=order))]
        block = np.full((2, 1), number, np.float32)
        return table.write(Rows(np.array([1, 2]), block, block + 1, np.full(2, number)), order=order, newer=False)

    def works():
        nonlocal table, noted
        table, noted = filled(striped), [[np.full(2, -1) for _ in mine] for mine in calls]

        def work(thread):
            return [access(table, *call, order) for call, order in zip(calls[thread], noted[thread], strict=True)]

        return [lambda: work(0), lambda: work(1)]

    table, noted = None, []
    with stoppable() as patched:
        patched.setattr(tables, "SMALL", go)
        patched.setattr(tables, "GO", 1)
        for results in all_orders(works):
            for place in (0, 1):
                ordered = sorted(
                    (int(noted[thread][call][place]), *calls[thread][call], results[thread][call])
                    for thread, call in itertools.product((0, 1), (0, 1))
                )
                assert len({number for number, *_ in ordered}) == 4 and ordered[0][0] >= 0
                now = None
                for _, what, number, result in ordered:
                    now = number if what == "write" else now
                    if what == "read" and now is not None:
                        assert result[place][1:] == (now, now + 1, now)


def test_a_gate_that_somebody_waits_at_opens():
    """One who wants to be alone beside two who share it: nobody is left waiting, and nobody is with him."""
    with stoppable():

        def works():
            gate, inside = Gate(), []

            def alone():
                with gate:
                    assert not inside
                    inside.append("alone")
                    point_of(gate)
                    inside.remove("alone")

            def sharing(name):
                with gate.shared():
                    assert "alone" not in inside
                    inside.append(name)
                    point_of(gate)
                    inside.remove(name)

            return [lambda: sharing("a"), alone, lambda: sharing("b")]

        assert sum(1 for _ in all_orders(works, every=1)) > 100


def point_of(gate):
    """Stopped while inside."""
    assert Interleaving.current
    Interleaving.current.point()


def test_the_scheduler_sees_an_update_lost_and_a_wait_for_ever():
    with stoppable():
        calls = [[("push", [1], 5)], [("push", [1], 7)]]
        possible = expected(unlocked, calls, 1)
        assert any(of_row(outcome, 1) not in possible for outcome in met(unlocked, calls))
        locks = [tables.threading.Lock(), tables.threading.Lock()]

        def both(first, second):
            with locks[first], locks[second]:
                pass

        with pytest.raises(Stuck, match="and so do all others"):
            for _ in all_orders(lambda: [lambda: both(0, 1), lambda: both(1, 0)]):
                pass
