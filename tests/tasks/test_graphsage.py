import numpy as np
import pytest
import torch

from lib.tasks.batch import Batch
from lib.tasks.graph import TABLE, DistMult, GraphSage

DEGREE = (2, 0, 1, 2, 1)


@pytest.fixture
def batch():
    own = np.array([4, 5, 6, 7, 8])  # two heads, two tails, one negative
    near = np.array([6, 7, 5, 5, 4, 6, 8, 4, 5, 8])
    features = {"relation": np.array([1, 0]), "degree": np.array(DEGREE)}
    return Batch.of(index=0, size=2, raw={TABLE: np.concatenate((own, near))}, features=features).to(
        torch.device("cpu")
    )


def model_of():
    return GraphSage(relations=2, dim=3, neighbours=2, seed=0)


def test_equals_distmult_on_vectors_averaged_by_hand(batch):
    model, rows = model_of(), torch.randn(5, 3)
    block = rows[batch.where[TABLE]]
    encoded = []
    for place, degree in enumerate(DEGREE):
        near = block[5 + 2 * place : 5 + 2 * place + degree]
        mean = near.mean(0) if degree else torch.zeros(3)
        encoded.append(model.own.weight @ block[place] + model.own.bias + model.theirs.weight @ mean)
    plain = DistMult(relations=2, dim=3, seed=0)
    flat = Batch.of(index=0, size=2, raw={TABLE: np.arange(5)}, features={"relation": np.array([1, 0])})
    expected = plain(flat.to(torch.device("cpu")), {TABLE: torch.stack(encoded)})
    torch.testing.assert_close(model(batch, {TABLE: rows}), expected)


def test_a_vector_by_hand():
    model = model_of()
    model.own.weight.data, model.own.bias.data = torch.eye(3), torch.tensor([0.0, 0.0, 5.0])
    model.theirs.weight.data = 2 * torch.eye(3)
    own, near = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0], [0.0, 4.0, 0.0]])
    assert model.encode(own, near, torch.tensor([2])).tolist() == [[1, 6, 5]]
    assert model.encode(own, near, torch.tensor([1])).tolist() == [[1, 4, 5]]


def test_gradients(batch):
    model = model_of().double()
    rows = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in model.named_parameters()]

    def loss(rows, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return model.loss(batch, torch.func.functional_call(model, named, (batch, {TABLE: rows})))

    assert torch.autograd.gradcheck(loss, (rows, *model.parameters()))
