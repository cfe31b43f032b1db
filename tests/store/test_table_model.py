"""The table against a Python dictionary, under random sequences of every call, of checkpoints and of killed processes."""

import os
import shutil
import signal
import tempfile
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lib.store import checkpoint, kernels
from lib.store.optim import Adagrad
from lib.store.rows import Dump, Rows
from lib.store.shared_memory import Segment, SharedTable, remove
from lib.store.table import Table

pytestmark = pytest.mark.usefixtures("own_memory")

DIM, SEED, SCALE = 2, 11, 0.5
ID = st.one_of(st.integers(-3, 4), st.sampled_from([-(2**63), 2**63 - 1, 2**40]), st.integers(-(2**63), 2**63 - 1))
IDS = st.lists(ID, max_size=12)


class TableAgainstDictionary(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.optimizer = Adagrad(lr=0.5, initial=1.0)
        self.table = self.new()
        self.model = {}
        self.now = 0
        self.folder, self.saved = Path(tempfile.mkdtemp()), None

    def new(self):
        return Table(DIM, self.optimizer, seed=SEED, scale=SCALE, capacity=1)

    def teardown(self):
        shutil.rmtree(self.folder)

    def admit(self, number):
        row = self.first(number), np.ones(DIM, np.float32), -1
        return self.model.setdefault(number, row)

    def first(self, number):
        return kernels.first_rows(np.array([number], np.int64), SEED, DIM, SCALE)[0]

    def block(self, data, n):
        numbers = st.lists(st.integers(-8, 8), min_size=n * DIM, max_size=n * DIM)  # their sums are exact
        return np.array(data.draw(numbers), np.float32).reshape(n, DIM)

    @rule(ids=IDS)
    def pull(self, ids):
        pulled = self.table.pull(ids)
        for number, row in zip(ids, pulled, strict=True):
            assert np.array_equal(row, self.admit(number)[0])

    @rule(ids=IDS)
    def peek(self, ids):
        for number, row in zip(ids, self.table.peek(ids), strict=True):
            assert np.array_equal(row, self.model[number][0] if number in self.model else self.first(number))

    @rule(ids=IDS)
    def stamps(self, ids):
        expected = [self.model[number][2] if number in self.model else -1 for number in ids]
        assert self.table.stamps(ids).tolist() == expected

    @rule(ids=IDS, data=st.data())
    def push(self, ids, data):
        grads = self.block(data, len(ids))
        self.table.push(ids, grads, self.now)
        self.pushed(ids, grads)

    def pushed(self, ids, grads):
        for number in dict.fromkeys(ids):
            grad = grads[[i for i, other in enumerate(ids) if other == number]].sum(axis=0)
            values, state, _ = self.admit(number)
            state = state + grad * grad
            values = values - np.float32(0.5) * grad / (np.sqrt(state) + np.float32(1e-10))
            self.model[number] = values, state, self.now
        self.now += 1

    @rule(ids=IDS, data=st.data())
    def assign(self, ids, data):
        values = self.block(data, len(ids))
        self.table.assign(ids, values)
        for number, row in zip(ids, values, strict=True):
            self.model[number] = row, *self.admit(number)[1:]

    @rule(ids=IDS)
    def read(self, ids):
        rows = self.table.read(ids)
        assert rows.ids.tolist() == ids
        for number, values, state, stamp in zip(ids, rows.values, rows.state, rows.stamps, strict=True):
            expected = self.admit(number)
            assert np.array_equal(values, expected[0])
            assert np.array_equal(state, expected[1])
            assert stamp == expected[2]

    @rule(ids=IDS, newer=st.booleans(), data=st.data())
    def write(self, ids, newer, data):
        values, state = self.block(data, len(ids)), np.abs(self.block(data, len(ids))) + 1
        stamps = data.draw(st.lists(st.integers(-1, self.now + 1), min_size=len(ids), max_size=len(ids)))
        for number, row in zip(ids, zip(values, state, stamps, strict=True), strict=True):
            if not newer or number not in self.model or row[2] > self.model[number][2]:
                self.model[number] = row
        self.table.write(Rows(np.array(ids, np.int64), values, state, np.array(stamps, np.int64)), newer=newer)

    @rule()
    def move_to_a_new_table(self):
        dump = deepcopy(self.table.dump())  # the old one's memory is not the new one's
        self.table = self.new()
        self.table.pull([1, 2, 3])
        self.table.restore(dump)

    @rule(form=st.sampled_from([Table.export, Table.dump]))
    def save(self, form):
        checkpoint.save(self.folder / "kept", form(self.table), durable=False)
        self.saved = dict(self.model), self.now

    @precondition(lambda self: self.saved)
    @rule()
    def load(self):
        self.model, self.now = dict(self.saved[0]), self.saved[1]
        content = checkpoint.load(self.folder / "kept")
        self.table.restore(content) if type(content) is Dump else self.table.load(content)

    @invariant()
    def export_is_the_dictionary_sorted_by_id(self):
        rows = self.table.export()
        assert self.table.ids().tolist() == rows.ids.tolist()
        assert rows.ids.tolist() == sorted(self.model)
        assert len(self.table) == len(self.model)
        for i, number in enumerate(sorted(self.model)):
            values, state, stamp = self.model[number]
            assert np.array_equal(rows.values[i], values)
            assert np.array_equal(rows.state[i], state)
            assert rows.stamps[i] == stamp


class SharedTableAgainstDictionary(TableAgainstDictionary):
    """A table in shared memory, whose process is killed in the midst of a push: it is as it was before."""

    def new(self):
        self.name = f"test-model-{os.getpid()}"
        if hasattr(self, "table"):
            self.table.close()  # it would take its successor's segment away when it is collected
        remove(self.name)
        return self.attach()

    def attach(self):
        return SharedTable(DIM, self.optimizer, name=self.name, seed=SEED, scale=SCALE, capacity=1)

    def teardown(self):
        super().teardown()
        self.table.close(remove=True)

    @rule(ids=IDS, place=st.sampled_from([(kernels, "insert"), (kernels, "step"), (Segment, "commit")]))
    def kill(self, ids, place):
        self.table.close(remove=False)
        child = os.fork()
        if child == 0:
            try:
                table = self.attach()

                def die(rows, *arguments):
                    if place[1] == "step":
                        rows[arguments[0][::2]] = 99  # half of what was to be written
                    os.kill(os.getpid(), signal.SIGKILL)

                setattr(*place, die)
                table.push(ids, np.ones((len(ids), DIM), np.float32), self.now)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        self.table = self.attach()
        if not os.WIFSIGNALED(status):  # no such moment in this push
            assert os.WEXITSTATUS(status) == 0
            self.pushed(ids, np.ones((len(ids), DIM), np.float32))


QUICK = settings(derandomize=True, deadline=None, max_examples=100, stateful_step_count=25, database=None)
TestTableAgainstDictionary = TableAgainstDictionary.TestCase
TestTableAgainstDictionary.settings = QUICK
TestSharedTableAgainstDictionary = SharedTableAgainstDictionary.TestCase
TestSharedTableAgainstDictionary.settings = settings(QUICK, max_examples=25)
