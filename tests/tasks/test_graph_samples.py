"""Knowledge graphs: distinct triples, true answers, samples of neighbours and of negatives."""

import numpy as np
import pytest

from lib.errors import BadOption
from lib.streams import stream
from lib.tasks.graph import NO_TRIPLES, Graph, GraphDistribution, draw_graph

PLAN = {"entities": 60, "relations": 3, "triples": 500, "evaluation_triples": 40}
PLAN |= {"exponent": 0.8, "rank": 4, "sharpness": 3.0, "world": 0}


@pytest.fixture(scope="module")
def planted():
    return draw_graph(GraphDistribution(**PLAN))


def test_triples_are_distinct_and_in_range(planted):
    triples = np.concatenate((planted.train, planted.held_out))
    assert len(planted.train) == 500 and len(planted.held_out) == 40
    assert len(np.unique(triples, axis=0)) == 540
    assert triples.min() == 0 and (triples.max(0) < (60, 3, 60)).all()


def test_true_triples_score_above_random_ones(planted):
    head, relation, tail = planted.train.T

    def score(tails):
        return (planted.entities[head] * planted.relations[relation] * planted.entities[tails]).sum(1)

    assert score(tail).mean() > score(np.random.default_rng(0).permutation(tail)).mean() + 1


def test_heads_have_skewed_degrees():
    steep = draw_graph(GraphDistribution(**PLAN | {"exponent": 1.2}))
    degrees = np.sort(np.bincount(steep.train[:, 0], minlength=60))
    assert degrees[-6:].sum() > 0.35 * degrees.sum()


@pytest.mark.parametrize("side", [0, 2])
def test_known_is_a_plain_look_up(planted, side):
    queries, relation = planted.held_out[:, 2 - side], planted.held_out[:, 1]
    mask = planted.true_answers(queries, relation, side=side)
    triples = set(map(tuple, np.concatenate((planted.train, planted.held_out)).tolist()))
    for row, (entity, kind) in enumerate(zip(queries.tolist(), relation.tolist(), strict=True)):
        for other in range(60):
            triple = (entity, kind, other) if side == 2 else (other, kind, entity)
            assert mask[row, other] == (triple in triples)


def test_a_graph_without_room_is_an_error():
    with pytest.raises(BadOption, match="likely triples; 9540 are asked for"):
        draw_graph(GraphDistribution(**PLAN | {"triples": 9500, "sharpness": 20.0}))


def test_another_world_is_another_graph(planted):
    assert not np.array_equal(draw_graph(GraphDistribution(**PLAN | {"world": 1})).train, planted.train)


@pytest.mark.parametrize("side", [0, 2])
def test_known_among_some_entities_is_part_of_the_whole(planted, side):
    queries, relation = planted.held_out[:, 2 - side], planted.held_out[:, 1]
    some = np.array([1, 4, 5, 30, 58])
    whole = planted.true_answers(queries, relation, side=side)
    np.testing.assert_array_equal(planted.true_answers(queries, relation, side=side, among=some), whole[:, some])


def test_triples_that_are_kept_apart_are_known_too():
    one = np.array([[0, 0, 1]])
    made = Graph(train=one, held_out=np.array([[0, 0, 2]]), other_known=np.array([[0, 0, 3]]), nodes=5, kinds=1)
    assert made.true_answers(np.array([0]), np.array([0]), side=2).tolist() == [[False, True, True, True, False]]


def test_a_large_graph_draws_its_tails_from_a_sample(monkeypatch):
    monkeypatch.setattr("lib.tasks.graph._SCORED", 30)
    made = draw_graph(GraphDistribution(**PLAN | {"world": 7}))
    triples = np.concatenate((made.train, made.held_out))
    assert len(np.unique(triples, axis=0)) == 540 and triples[:, 2].max() > 50


def star(nodes):
    """Entity 0 stands in all of the eight triples, each leaf in one."""
    return Graph(train=np.array([[0, 0, leaf] for leaf in range(1, 9)]), held_out=NO_TRIPLES, nodes=nodes, kinds=1)


@pytest.mark.parametrize("by_degree", [0.0, 0.5, 1.0])
def test_negatives_are_uniform_or_follow_the_degrees_or_are_the_mean_of_both(by_degree):
    drawn = star(20).draw_negatives(40_000, by_degree, stream(0, "negatives"))
    shares = by_degree * np.array([0.5, *[1 / 16] * 8, *[0] * 11]) + (1 - by_degree) * 0.05
    np.testing.assert_allclose(np.bincount(drawn, minlength=20) / 40_000, shares, atol=0.01)


def test_the_share_is_exact_and_the_draw_repeats():
    drawn, again, other = (star(10**6).draw_negatives(40, 0.25, stream(3, name)) for name in "aab")
    assert (drawn[30:] <= 8).all() and (drawn[:30] > 8).any()
    assert (drawn == again).all() and not (drawn == other).all()


def test_few_neighbours_are_all_taken_in_both_directions():
    near, degree = star(10).distinct_neighbours(np.array([3, 0, 9]), 8, stream(0, "near"))
    assert degree.tolist() == [1, 8, 0]
    assert near[0].tolist() == [0] + [3] * 7  # the places past the end repeat the entity
    assert sorted(near[1].tolist()) == list(range(1, 9)) and set(near[2].tolist()) == {9}


def test_many_neighbours_are_sampled_evenly_and_without_replacement():
    near, degree = star(10).distinct_neighbours(np.zeros(8_000, np.int64), 3, stream(0, "near"))
    assert (degree == 3).all() and all(len(set(row)) == 3 for row in near.tolist())
    np.testing.assert_allclose(np.bincount(near.ravel(), minlength=9)[1:] / 8_000, 3 / 8, atol=0.02)
