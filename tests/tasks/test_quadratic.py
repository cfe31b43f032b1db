"""The quadratic's values and gradients by hand."""

import numpy as np
import torch

from lib.tasks.flat_model import Batch
from lib.tasks.quadratic import Quadratic


def test_value_and_gradient_by_hand():
    matrix = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    model = Quadratic(matrix=matrix, optimum=torch.ones(2), start=torch.tensor([2.0, 3.0]))
    noise = np.array([[1.0, 0.0], [0.0, -1.0]], np.float32)
    batch = Batch.of(index=0, size=2, raw={}, features={"noise": noise}).to(torch.device("cpu"))
    scores = model(batch, {})
    # the error is (1, 2): f = (2 * 1 + 1 * 4) / 2 = 3, and the samples add 1 and -2
    assert scores.tolist() == [4.0, 1.0]
    model.loss(batch, scores).backward()
    assert model.weights.grad.tolist() == [2.5, 1.5]


def test_gradients():
    matrix = torch.randn(3, 3, dtype=torch.float64)
    model = Quadratic(matrix=matrix @ matrix.T, optimum=torch.zeros(3).double(), start=torch.ones(3).double())
    noise = torch.randn(4, 3, dtype=torch.float64)
    batch = Batch(index=0, size=4, ids={}, where={}, features={"noise": noise})
    call = torch.func.functional_call
    assert torch.autograd.gradcheck(lambda w: call(model, {"weights": w}, (batch, {})), (model.weights,))
