"""Tables that forget: who goes, who comes in, what is lost, what a row takes; against Python's own containers."""

from collections import OrderedDict
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


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("ids", "values", "state", "stamps"))


@QUIET
@given(st.lists(st.integers(-12, 12), max_size=300), st.integers(1, 9))
def test_single_look_ups_go_by_ordered_dict(ids, limit):
    ours, model = table(limit), OrderedDict()
    for number in ids:
        ours.pull([number])
        model[number] = None
        model.move_to_end(number)
        if len(model) > limit:
            model.popitem(last=False)
        assert held(ours) == sorted(model)


BATCHES = st.lists(
    st.tuples(st.sampled_from(["pull", "push"]), st.lists(st.integers(-40, 40), min_size=1, max_size=25)),
    max_size=60,
)


@QUIET
@given(BATCHES, st.integers(1, 50))
def test_who_goes_by_a_list_that_is_sorted_anew_each_time(calls, limit):
    """Rows of one call are equally recent, of which the least id goes first; a call never evicts what it looked up. A push admits
    too, and spares the rows of its own batch, though it is no use of them."""
    ours, rows, numbers = table(limit), {}, 0  # id -> its touch
    for stamp, (call, batch) in enumerate(calls):
        met = list(dict.fromkeys(batch))
        new = [number for number in met if number not in rows]
        numbers += call == "pull" or bool(new)  # a push takes a number where it admits
        if call == "pull":
            ours.pull(batch)
            rows |= {number: numbers for number in met if number in rows}
        else:
            ours.push(batch, -np.ones((len(batch), 1), np.float32), stamp)
        for number in new:
            if len(rows) == limit:
                old = [key for key in rows if rows[key] < numbers and key not in met]
                if not old:
                    continue
                del rows[min(old, key=lambda key: (rows[key], key))]
            rows[number] = numbers
        assert held(ours) == sorted(rows)


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


@pytest.mark.parametrize("stale", [1, 2, 3])
def test_a_push_for_an_evicted_id_never_shifts_the_others(stale):
    """Persia's released code pairs gradients with the rows that are left."""
    ours, others = table(3), [number for number in (1, 2, 3) if number != stale]
    ours.pull([stale])
    ours.pull(others)
    ours.pull([9])
    assert held(ours) == sorted([*others, 9])
    ours.push([1, 2, 3], np.float32([[-1], [-2], [-3]]), 0)
    assert held(ours) == [1, 2, 3] and ours.peek([1, 2, 3]).ravel().tolist() == [1, 2, 3]


def test_what_does_not_fit_in_a_call_is_lost_and_counted():
    ours = table(2)
    assert ours.pull([1, 2, 3, 4]).shape == (4, 1)
    assert held(ours) == [1, 2]
    ours.push([1, 2, 3, 4], -np.ones((4, 1), np.float32), 0)
    assert ours.peek([1, 2]).ravel().tolist() == [1, 1]
    assert ours.lost == 2
    ours.assign([7, 8, 9], np.ones((3, 1), np.float32))
    assert (len(ours), ours.lost) == (2, 3)


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
    assert ours.nbytes <= rows * ours.bytes_per_row + 1024
    assert 50e6 * ours.bytes_per_row < 8e9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rows": 0}, "max_rows must be an integer of at least 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(BadOption, match=message):
        Table(1, STEP, **{"seed": 0, **options})


def test_stamps_beyond_31_bits_are_refused():
    ours, one = table(3), np.ones((1, 1), np.float32)
    with pytest.raises(BadOption, match="stamp must be at most"):
        ours.push([1], one, 2**31)
    with pytest.raises(BadOption, match=r"rows.stamps must be .* at most 2147483647"):
        ours.write(Rows(np.array([1]), one, one[:, :0], np.array([2**31])))
