"""Tables that forget: who goes, who comes in, what is lost, what a row takes; against Python's own containers."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import BadOption
from lib.store.device import DeviceTable
from lib.store.optim import SGD, Adagrad
from lib.store.rows import Rows
from lib.store.table import Table

STEP = SGD(lr=1.0)
QUIET = settings(derandomize=True, deadline=None, max_examples=60, database=None)


def table(rows, **options):
    return Table(1, STEP, seed=0, scale=0, **{"capacity": 1, "max_rows": rows, **options})


def held(table):
    return table.export().ids.tolist()


CALLS = st.lists(
    st.tuples(st.sampled_from(["pull", "push", "assign"]), st.lists(st.integers(-40, 40), min_size=1, max_size=25)),
    max_size=60,
)


@QUIET
@given(CALLS, st.integers(1, 50))
def test_it_is_a_dict_from_which_the_least_recently_used_go(calls, limit):
    """Rows of one call are equally recent, of which the least id goes first; a call never evicts what it looked up. Updates admit
    too, and spare the rows of their own batch, though they are no use of them. An update for which there is no room is lost and
    counted, and shifts no other: Persia's released code pairs gradients with the rows that are left."""
    ours, rows, values, numbers, lost = table(limit), {}, {}, 0, 0  # id -> its touch, and its value
    for stamp, (call, batch) in enumerate(calls):
        met = list(dict.fromkeys(batch))
        new, own = [number for number in met if number not in rows], np.float32([[number % 7 + 1] for number in met])
        numbers += call == "pull" or bool(new)  # an update takes a number where it admits
        if call == "pull":
            assert ours.pull(batch).ravel().tolist() == [values.get(number, 0) for number in batch]
            rows |= {number: numbers for number in met if number in rows}
        elif call == "push":
            ours.push(batch + met, np.concatenate([np.zeros((len(batch), 1), np.float32), -own]), stamp)
        else:
            ours.assign(met, own)
        for number in new:
            if len(rows) == limit:
                old = [key for key in rows if rows[key] < numbers and key not in met]
                if not old:
                    continue
                gone = min(old, key=lambda key: (rows[key], key))
                del rows[gone], values[gone]
            rows[number], values[number] = numbers, 0
        if call != "pull":
            lost += sum(number not in rows for number in met)
            for number in rows.keys() & met:
                values[number] = number % 7 + 1 + (values[number] if call == "push" else 0)
        assert held(ours) == sorted(rows) and ours.lost == lost
        assert ours.peek(sorted(values)).ravel().tolist() == [values[number] for number in sorted(values)]


def test_a_row_that_was_spared_goes_next():
    ours = table(80)
    for number in range(81):  # 0 goes, and 1 to 4 were picked with it
        ours.pull([number])
    ours.push([1, 200], np.ones((2, 1), np.float32), 0)  # 1 is the oldest and stays: 2 goes
    ours.pull([201])
    assert held(ours) == [*range(3, 81), 200, 201]


def test_many_evictions_leave_a_sound_index():
    ours, rng, seen = table(500), np.random.default_rng(0), set()
    for stamp in range(150):
        ids = rng.integers(-(2**63), 2**63 - 1, 40) if stamp % 3 < 2 else rng.choice(sorted(seen), 40, replace=False)
        before = dict(zip(ids.tolist(), ours.pull(ids).ravel(), strict=True))
        ours.push(ids, np.full((40, 1), -1, np.float32), stamp)
        assert ours.peek(ids).ravel().tolist() == [before[number] + 1 for number in ids.tolist()]
        seen |= set(ids.tolist())
    rows = ours.export()
    assert len(rows) == 500 and ours.evicted >= len(seen) - 500
    assert np.array_equal(ours.stamps(rows.ids), rows.stamps) and np.array_equal(ours.peek(rows.ids), rows.values)
    gone = np.array(sorted(seen - set(rows.ids.tolist())))
    assert (ours.stamps(gone) == -1).all()


@pytest.mark.parametrize("kind", [Table, partial(DeviceTable, device=torch.device("cpu"))], ids=["host", "device"])
def test_only_training_look_ups_are_use(kind):
    ours = kind(1, STEP, seed=0, scale=0, max_rows=2)
    ours.pull([1])
    ours.pull([2])
    ours.push([1], np.ones((1, 1), np.float32), 0)
    ours.peek([1])
    ours.stamps([1])
    ours.assign([1], np.ones((1, 1), np.float32))
    ours.pull([3])
    assert held(ours) == [2, 3]
    ours.read([2])
    ours.pull([4])
    assert held(ours) == [2, 4]


def test_recency_outlives_the_end_of_its_numbers():
    ours = table(3)
    for number in (1, 2, 3, 1):
        ours.pull([number])
    ours._calls = 2**32 - 2**16
    ours.pull([4])
    assert held(ours) == [1, 3, 4]
    ours.pull([5])
    assert held(ours) == [1, 4, 5]


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("optimizer", [STEP, Adagrad(lr=0.1, rowwise=True)], ids=repr)
def test_a_row_of_a_full_table_takes_24_bytes_beside_values_and_state(limited, optimizer):
    rows, columns = 20_000, 16 + optimizer.columns(16)
    ours = Table(16, optimizer, seed=0, capacity=rows, max_rows=rows if limited else None)
    for ids in np.array_split(np.arange(rows + rows // 2), 9):
        ours.pull(ids if limited else ids % rows)
    assert len(ours) == rows
    assert ours.nbytes <= rows * (4 * columns + 24)
    bound, free = (Table(16, optimizer, seed=0, max_rows=each).bytes_per_row for each in (rows, None))
    assert bound - free == 4.5, "four bytes more, for the last look-up, and half a byte of the queue"
    assert 0.8 * rows * ours.bytes_per_row < ours.nbytes <= rows * ours.bytes_per_row + 1024
    assert 50e6 * ours.bytes_per_row < 8e9


def test_stamps_beyond_31_bits_are_refused():
    ours, one = table(3), np.ones((1, 1), np.float32)
    with pytest.raises(BadOption, match="stamp must be at most"):
        ours.push([1], one, 2**31)
    with pytest.raises(BadOption, match=r"rows.stamps must be .* at most 2147483647"):
        ours.write(Rows(np.array([1]), one, one[:, :0], np.array([2**31])))
