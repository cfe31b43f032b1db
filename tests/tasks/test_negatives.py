import numpy as np
import pytest

from lib import workloads
from lib.errors import BadOption
from lib.streams import stream
from lib.tasks.graph_stream import Adjacency, Negatives

STAR = np.array([[0, 0, leaf] for leaf in range(1, 9)])  # entity 0 stands in all of the eight triples, each leaf in one


def shares(by_degree, count=40_000):
    drawn = Negatives(STAR, 20, by_degree).draw(stream(0, "negatives"), count)
    return np.bincount(drawn, minlength=20) / count


def test_uniform_negatives_are_uniform():
    np.testing.assert_allclose(shares(0.0), 0.05, atol=0.006)


def test_by_degree_follows_the_degrees():
    np.testing.assert_allclose(shares(1.0), [0.5, *[1 / 16] * 8, *[0] * 11], atol=0.01)


def test_half_by_degree_is_the_mean_of_both():
    np.testing.assert_allclose(shares(0.5), (shares(0.0) + shares(1.0)) / 2, atol=0.01)


def test_the_share_is_exact_and_the_draw_repeats():
    negatives = Negatives(STAR, 10**6, 0.25)
    drawn = negatives.draw(stream(3, "a"), 40)
    assert (drawn[30:] <= 8).all() and (drawn[:30] > 8).any()
    assert (drawn == negatives.draw(stream(3, "a"), 40)).all() and not (
        drawn == negatives.draw(stream(3, "b"), 40)
    ).all()


def test_a_share_beyond_one_is_an_error():
    with pytest.raises(BadOption, match="workload 'kg-synthetic': by_degree must be at most 1, not"):
        workloads.get("kg-synthetic", by_degree=1.5)


def test_few_neighbours_are_all_taken_in_both_directions():
    near, degree = Adjacency(STAR, 10).sample(np.array([3, 0, 9]), 8, stream(0, "near"))
    assert degree.tolist() == [1, 8, 0]
    assert near[0].tolist() == [0] + [3] * 7  # the places past the end repeat the entity
    assert sorted(near[1].tolist()) == list(range(1, 9)) and set(near[2].tolist()) == {9}


def test_many_neighbours_are_sampled_evenly_and_without_replacement():
    near, degree = Adjacency(STAR, 10).sample(np.zeros(8_000, np.int64), 3, stream(0, "near"))
    assert (degree == 3).all() and all(len(set(row)) == 3 for row in near.tolist())
    np.testing.assert_allclose(np.bincount(near.ravel(), minlength=9)[1:] / 8_000, 3 / 8, atol=0.02)
