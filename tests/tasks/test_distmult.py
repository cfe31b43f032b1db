import numpy as np
import pytest
import torch

from lib.tasks.batch import Batch
from lib.tasks.graph import TABLE, DistMult


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
    model = model_of().double()
    rows = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)

    def loss(rows, relation):
        scores = torch.func.functional_call(model, {"relation": relation}, (batch, {TABLE: rows}))
        return model.loss(batch, scores)

    assert torch.autograd.gradcheck(loss, (rows, model.relation))
