import numpy as np

from lib import workloads
from lib.tasks.clicks_stream import _hashed


def test_a_stream_is_the_same_however_it_is_cut():
    workload = workloads.get("clicks-light", vocabulary=50, copies=2)
    whole = workload._synthetic.draw(40, seed=1, day=0, first=0)
    parts = [workload._synthetic.draw(20, seed=1, day=0, first=first) for first in (0, 20)]
    for field, of_whole in enumerate(whole):
        np.testing.assert_array_equal(of_whole, np.concatenate([part[field] for part in parts]))
    others = (
        workload._synthetic.draw(40, seed=2, day=0),
        workload._synthetic.draw(40, seed=1, day=0, part="evaluation 4"),
    )
    assert not any((other.logits == whole.logits).any() for other in others)  # copies have a stream of their own


def test_its_numbers_are_splitmix64s():
    """The first two that its author's code gives for a seed of 1234567."""
    numbers = _hashed(np.uint64(1234567), 0, 1, 2)
    np.testing.assert_array_equal(numbers[0] * 2**53, [6457827717110365317 >> 11, 3203168211198807973 >> 11])


def test_its_numbers_are_uniform_and_clicks_as_frequent_as_asked_for():
    numbers = _hashed(np.uint64(7), 0, 20_000, 5)
    assert numbers.min() >= 0 and numbers.max() < 1
    np.testing.assert_allclose(numbers.mean(0), 0.5, atol=0.01)
    np.testing.assert_allclose(np.cov(numbers.T), np.eye(5) / 12, atol=0.002)
    assert abs(workloads.get("clicks-light").draw(0, 0, 20_000, 0).labels.mean() - 0.25) < 0.01
