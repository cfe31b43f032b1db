"""How a batch asks for ids: every form says the same, in bytes that can be counted by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.cluster.base import nbytes
from lib.store.spec import NARROW, decode_ids, encode_ids
from lib.tasks.flat_model import Batch

LOW, HIGH = -(2**63), 2**63 - 1
ID = st.one_of(st.integers(-3, 30), st.sampled_from([LOW, HIGH, 2**48, 5 << 48]), st.integers(LOW, HIGH))


def batch(raw):
    made = Batch.of(index=0, size=len(raw), raw={"t": np.asarray(raw, np.int64)}, features={})
    return made.ids["t"], made.where["t"]


def test_by_hand():
    ids, where = batch([[7, LOW], [7, 7], [9, 7]])
    assert ids.tolist() == [7, LOW, 9]
    assert encode_ids("distinct", ids, where, slice(None)).tolist() == [7, LOW, 9]
    assert encode_ids("entries", ids, where, slice(None)).tolist() == [7, LOW, 7, 7, 9, 7]
    message = encode_ids("samples", ids, where, slice(None))
    assert message.ids.tolist() == [7, LOW, 9] and message.counts.tolist() == [4, 1, 1]
    assert message.samples.tolist() == [0, 1, 1, 2, 0, 2] and message.samples.dtype == message.counts.dtype == np.uint16
    assert nbytes(message) == 3 * 8 + 3 * 2 + 6 * 2
    mine = np.array([1, 2])
    assert encode_ids("entries", ids, where, mine).tolist() == [LOW, 9]
    part = encode_ids("samples", ids, where, mine)
    assert (part.ids.tolist(), part.counts.tolist(), part.samples.tolist()) == ([LOW, 9], [1, 1], [0, 2])


@pytest.mark.parametrize("form", ["distinct", "entries", "samples"])
@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(raw=st.lists(st.tuples(ID, ID, ID), max_size=30), shards=st.integers(1, 3), seed=st.integers(0, 99))
def test_each_server_reads_the_ids_that_it_was_asked_for(form, raw, shards, seed):
    ids, where = batch(np.array(raw, np.int64).reshape(-1, 3))
    owner = np.random.default_rng(seed).integers(0, shards, ids.size)
    for shard in range(shards):
        mine = np.flatnonzero(owner == shard)
        message = encode_ids(form, ids, where, mine)
        assert np.array_equal(decode_ids(form, message), ids[mine])
        if form == "samples":  # lossless: the map says which sample has which id
            pairs = zip(np.repeat(message.ids, message.counts).tolist(), message.samples.tolist(), strict=True)
            own = set(ids[mine].tolist())
            assert set(pairs) == {(number, at) for at, row in enumerate(raw) for number in row if number in own}


def test_indices_of_a_large_batch_are_wider_and_counts_are_what_they_must_be():
    for samples, width in ((NARROW, np.uint16), (NARROW + 1, np.uint32)):
        message = encode_ids("samples", *batch((np.arange(samples) % 7)[:, None]), slice(None))
        assert message.samples.dtype == width and message.samples.max() == samples - 1
        assert message.counts.dtype == np.uint16
    message = encode_ids("samples", *batch(np.zeros((NARROW, 2), np.int64)), slice(None))
    assert message.counts.tolist() == [2 * NARROW] and message.samples.dtype == np.uint16
