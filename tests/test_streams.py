"""Random streams: which numbers they are, that no machine's entropy is in them, and that blocks are of one table."""

import numpy as np
import pytest
from numpy.random import bit_generator

from lib.streams import key, stream, uniform


@pytest.mark.parametrize("names", [(), ("clicks", "train"), (3, "slowdown", "worker17")])
def test_a_stream_is_philoxs_of_its_key(names):
    ours, theirs = stream(5, *names), np.random.Generator(np.random.Philox(key=key(5, *names)))
    assert np.array_equal(ours.random(9), theirs.random(9))
    assert np.array_equal(ours.integers(2**40, size=9), theirs.integers(2**40, size=9))


def test_keys_have_128_bits_of_which_all_count():
    keys = [key(seed, "x") for seed in range(200)]
    assert len(set(keys)) == 200 and max(keys).bit_length() > 120
    ours = [stream(seed, "x").random() for seed in range(200)]
    assert len(set(ours)) == 200 and abs(np.mean(ours) - 0.5) < 4 * np.sqrt(1 / 12 / 200)


def test_no_machine_is_asked_for_entropy(monkeypatch):
    def refuse(_):
        raise AssertionError("a stream follows from its key alone")

    monkeypatch.setattr(bit_generator, "randbits", refuse)
    with pytest.raises(AssertionError):
        np.random.Philox(key=1)
    assert 0 <= stream(5, "x").random() < 1 and uniform(5, "x", first=3, shape=(2, 2)).shape == (2, 2)


@pytest.mark.parametrize("width", [1, 3, 4, 7])
def test_blocks_are_cut_from_one_table(width):
    whole = uniform(1, "a", first=0, shape=(20, width))
    for first, rows in ((0, 1), (3, 5), (4, 16), (19, 1)):
        assert np.array_equal(uniform(1, "a", first=first, shape=(rows, width)), whole[first : first + rows])
