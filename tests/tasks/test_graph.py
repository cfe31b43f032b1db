"""DistMult and GraphSage: scores against plain loops and by hand, and gradients."""

import numpy as np
import pytest
import torch

from lib.tasks.flat_model import Batch
from lib.tasks.graph import TABLE, DistMult, GraphSage
from tests.tasks.gradients import check_gradients


@pytest.fixture
def batch():
    raw = {TABLE: np.array([4, 5, 6, 7, 8, 4, 9])}  # two heads, two tails, three negatives
    return Batch.of(index=0, size=2, raw=raw, features={"relation": np.array([1, 0])}).to(torch.device("cpu"))


def model_of(**options):
    return DistMult(relations=2, dim=3, **{"seed": 0} | options)


def plain(model, block, relations):
    def score(h, r, t):
        return (h * r * t).sum()

    negatives = block[4:]
    scores = []
    for h, r, t in zip(block[:2], model.relation.detach()[relations], block[2:4], strict=True):
        true = score(h, r, t)
        scores.append([[true, *(score(h, r, n) for n in negatives)], [true, *(score(n, r, t) for n in negatives)]])
    return torch.tensor(scores)


def test_equals_the_plain_reference(batch):
    model, rows = model_of(), torch.randn(6, 3)
    scores = model(batch, {TABLE: rows})
    assert scores.shape == (2, 2, 4)
    torch.testing.assert_close(scores, plain(model, rows[batch.where[TABLE]], batch.features["relation"]))


def test_the_loss_by_hand(batch):
    scores = torch.tensor([[[0.0, 0.0, 0.0, 0.0]] * 2] * 2)
    assert model_of().loss(batch, scores).item() == pytest.approx(2 * np.log(4))


def test_a_score_by_hand():
    model = model_of()
    model.relation.data = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    candidates = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 2.0]])
    scores = model.score_candidates(torch.tensor([[1.0, 1.0, 2.0]]), torch.tensor([0]), candidates)
    assert scores.tolist() == [[7.0, 14.0]]


def test_gradients(batch):
    check_gradients(model_of(), batch, 3, loss=True)


DEGREE = (2, 0, 1, 2, 1)


@pytest.fixture
def sage_batch():
    own = np.array([4, 5, 6, 7, 8])  # two heads, two tails, one negative
    near = np.array([6, 7, 5, 5, 4, 6, 8, 4, 5, 8])
    features = {"relation": np.array([1, 0]), "degree": np.array(DEGREE)}
    raw = {TABLE: np.concatenate((own, near))}
    return Batch.of(index=0, size=2, raw=raw, features=features).to(torch.device("cpu"))


def sage():
    return GraphSage(relations=2, dim=3, neighbours=2, seed=0)


def test_equals_distmult_on_vectors_averaged_by_hand(sage_batch):
    model, rows = sage(), torch.randn(5, 3)
    block = rows[sage_batch.where[TABLE]]
    encoded = []
    for place, degree in enumerate(DEGREE):
        near = block[5 + 2 * place : 5 + 2 * place + degree]
        mean = near.mean(0) if degree else torch.zeros(3)
        encoded.append(model.own.weight @ block[place] + model.own.bias + model.theirs.weight @ mean)
    plain = DistMult(relations=2, dim=3, seed=0)
    flat = Batch.of(index=0, size=2, raw={TABLE: np.arange(5)}, features={"relation": np.array([1, 0])})
    expected = plain(flat.to(torch.device("cpu")), {TABLE: torch.stack(encoded)})
    torch.testing.assert_close(model(sage_batch, {TABLE: rows}), expected)


def test_gradients_through_neighbours(sage_batch):
    check_gradients(sage(), sage_batch, 3, loss=True)
