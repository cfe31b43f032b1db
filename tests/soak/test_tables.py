"""The weather for the store: what it draws, what it lets pass, and which faults of a table it finds."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import tests
from lib.store import kernels
from lib.store.optim import SGD, Adagrad
from lib.store.table import Gate, Table
from tests.soak import soak, tables
from tests.soak.__main__ import main
from tests.soak.dictionary import Broken, Common, Owned, Seen, Step
from tests.soak.table_calls import LOOKS, PUSHES, REPLACES


def first_found(cases=400):
    """The number and finding of the first case that breaks something."""
    found = ((number, tables.check(tables.draw(1, number))) for number in range(cases))
    return next(((number, finding) for number, finding in found if finding), None)


class Faults:
    """Each plants one into the table."""

    @staticmethod
    def updates_take_no_lock(plant):
        made = Table.__init__
        plant.setattr(
            Table, "__init__", lambda self, *args, **options: made(self, *args, **options | {"locking": "none"})
        )

    @staticmethod
    def calls_that_should_be_alone_are_not(plant):
        plant.setattr(Gate, "alone", contextlib.nullcontext)
        plant.setattr(Gate, "shared", contextlib.nullcontext)

    @staticmethod
    def a_new_row_keeps_the_state_of_an_evicted_one(plant):
        admitted = Table._admit

        def admit(self, ids, *args, **options):
            before, gone = self._rows.copy(), self.evicted
            slots = admitted(self, ids, *args, **options)
            if self.evicted > gone:
                self._rows[slots, self.dim : self._column] = before[slots, self.dim : self._column]
            return slots

        plant.setattr(Table, "_admit", admit)

    @staticmethod
    def an_evicted_id_stays_in_the_index(plant):
        plant.setattr(kernels, "remove", lambda *args: None)

    @staticmethod
    def an_id_that_stands_twice_counts_once(plant):
        def last(positions, grads, weights, count):
            sums, met = added(positions, grads, weights, count)
            sums[positions] = weights[:, None] * grads
            return sums, met

        added = kernels.add_up
        plant.setattr(kernels, "add_up", last)

    @staticmethod
    def an_id_that_stands_twice_steps_twice(plant):
        pushed = Table.push
        plant.setattr(Table, "push", lambda *args, distinct=False: pushed(*args, distinct=True))

    @staticmethod
    def a_step_leaves_the_stamp(plant):
        stepped = kernels.step
        plant.setattr(kernels, "step", lambda *args: stepped(*args[:-2], -1, 0))

    @staticmethod
    def a_limit_is_none(plant):
        plant.setattr(Table, "__init__", _unlimited(Table.__init__))

    @staticmethod
    def a_rate_is_ignored(plant):
        plant.setattr("lib.store.optim.Optimizer.at", lambda self, rate: self)

    @staticmethod
    def older_rows_overwrite_newer(plant):
        written = Table.write
        plant.setattr(Table, "write", lambda self, rows, newer: written(self, rows, newer=False))

    @staticmethod
    def a_new_row_depends_on_its_slot(plant):
        admitted = Table._admit

        def admit(self, ids, *args, **options):
            unknown = self._find(ids)[0] < 0
            slots = admitted(self, ids, *args, **options)
            self._rows[slots[unknown], 0] += slots[unknown] == 3
            return slots

        plant.setattr(Table, "_admit", admit)

    @staticmethod
    def a_saved_table_forgets_its_stamps(plant):
        restored = Table.restore

        def restore(self, dump):
            restored(self, dump)
            self._words[:, self._column] = 0

        plant.setattr(Table, "restore", restore)


def _unlimited(made):
    def make(self, *args, max_rows=None, **options):
        made(self, *args, max_rows=max_rows, **options)
        self._limit = 2**20

    return make


FAULTS = [name for name in vars(Faults) if not name.startswith("_")]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    getattr(Faults, fault)(monkeypatch)
    assert first_found()


def test_some_of_it():
    counts = soak(seed=5, runs=200, of="store")
    assert counts.total() == 200


def test_everything_is_drawn():
    cases = [tables.draw(0, number) for number in range(300)]
    assert tables.draw(0, 7) == cases[7] != tables.draw(1, 7)
    calls = {name for case in cases for threads in case["rounds"] for acts in threads for name, *_ in acts}
    assert calls == {*LOOKS, *PUSHES, *REPLACES}
    assert {len(case["rounds"][0]) for case in cases} == {1, 2, 3, 4}
    assert {option for case in cases for option in case} >= {"shared", "spread", "copies", "between", "halting"}
    assert len({tables.named(case) for case in cases}) == 12


def test_a_fault_is_made_small_and_printed_as_a_call(monkeypatch, capsys):
    Faults.an_id_that_stands_twice_steps_twice(monkeypatch)
    assert main(["--of", "store", "--seed", "1", "--runs", "1"]) == 1
    told = capsys.readouterr().out
    pasted = next(line for line in told.splitlines() if "tests.soak.tables.check(" in line)
    assert len(pasted) < 200 and any(eval(pasted, {"tests": tests}))
    monkeypatch.undo()
    assert not any(eval(pasted, {"tests": tests}))


class TestTheDictionary:
    def test_a_row_steps_once_with_the_sum_of_what_a_call_holds_for_it(self):
        owned = Owned(Adagrad(lr=1.0), lambda name: np.zeros((1, 1), np.float32), forgets=False)
        grads = np.float32([1, 5, 2]).reshape(3, 1, 1)
        owned.stepped(Step(np.array([7, 8, 7]), grads, np.ones(3, np.float32), 4))
        ((values, state, stamp),) = owned.can_be(7)
        assert (values, state, stamp) == (-1, 9, 4)

    def test_under_a_limit_a_row_is_what_it_was_or_begins_anew_until_a_look_tells(self):
        owned = Owned(SGD(lr=1.0), lambda name: np.zeros((1, 1), np.float32), forgets=True)
        one = Step(np.array([7]), np.ones((1, 1, 1), np.float32), np.ones(1, np.float32), 4)
        owned.stepped(one)
        owned.stepped(one)
        assert sorted(float(values[0, 0]) for values, _, _ in owned.can_be(7)) == [-2, -1, 0]
        owned.saw(Seen(np.array([7]), values=np.full((1, 1, 1), -1, np.float32)))
        assert sorted(float(values[0, 0]) for values, _, _ in owned.can_be(7)) == [-1, 0]
        with pytest.raises(Broken):
            owned.saw(Seen(np.array([7]), values=np.full((1, 1, 1), -2, np.float32)))

    def test_shared_rows_never_shrink_and_never_exceed_what_all_have_pushed(self):
        common = Common(lambda name: 2, loses=False)
        common.most = {3: np.full((1, 1), 8)}

        def look(number):
            common.saw(Seen(np.array([3]), values=np.full((1, 1, 1), number, np.float32)))

        look(4)
        for number in (2, 10, 5):  # seen before; too much; another row's
            with pytest.raises(Broken):
                look(number)
        look(8)
