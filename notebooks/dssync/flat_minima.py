"""How flat are the minima of images in which the modes end? The Hessian's largest eigenvalue, and how far the loss rises in a
small ball.

By DS-Sync's Sec. 3.3 small groups add noise to a step, and shuffled groups add more, by which training leaves sharp minima and
ends in flat ones. The loss is the cross-entropy of training images, under batch normalisation by their own moments. A network
with batch normalisation computes the same function at twice the weights, where its eigenvalues are a quarter: so the ball's
radius is a share of the parameters' norm.
"""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

from lib import Run
from notebooks import study
from notebooks.dssync import quality

RATES = {"BSP": 9.0, "DS-Sync": 9.0, "ASP": 1 / 3}
"""Each mode's best learning rate over the workload's own, by the tuning of Tables 2 and 5."""

IMAGES = 256
"""Training images by which sharpness is measured."""
RADIUS = 0.02
"""Of the ball, as a share of the parameters' norm."""

Loss = Callable[[], Tensor]


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in parts])


def job(mode: str, seed: int, **shape) -> dict:
    """The run of the tables of accuracy at the mode's best rate, whose final model is kept."""
    return quality.job("images", mode, seed, rate=RATES[mode], **shape) | {"keep": True}


def largest_eigenvalue(loss: Loss, parameters: Sequence[Tensor], iterations: int = 20, change: float = 0.01) -> float:
    """The eigenvalue of the loss's Hessian that is largest in size, by power iteration on Hessian-vector products."""
    slope = _flat(torch.autograd.grad(loss(), parameters, create_graph=True))
    direction = torch.randn(len(slope), generator=torch.Generator().manual_seed(0), dtype=slope.dtype)
    value = torch.inf
    for _ in range(iterations):
        direction = direction / direction.norm()
        product = _flat(torch.autograd.grad(slope @ direction, parameters, retain_graph=True))
        before, value, direction = value, float(direction @ product), product
        if abs(value - before) < change * abs(value):
            break
    return value


def rise(loss: Loss, parameters: Sequence[Tensor], radius: float = RADIUS, steps: int = 10) -> float:
    """How far the loss rises on a path of steepest ascent that ends in the ball of that share of the parameters' norm."""
    start = _flat(parameters).detach()
    least, step = float(loss().detach()), radius * start.norm() / steps
    for _ in range(steps):
        slope = _flat(torch.autograd.grad(loss(), parameters))
        vector_to_parameters(_flat(parameters).detach() + step * slope / slope.norm(), parameters)
    risen = float(loss().detach()) - least
    vector_to_parameters(start, parameters)
    return risen


def sharpness(run: Run, **case) -> dict[str, float]:
    """Both measures at the model that a run ends with; of copies at their mean. And its accuracy, loss and norm."""
    workload = job(**case, steps=1, evaluations=1)["workload"]
    module, parameters = workload.model(case["seed"]), run.model.dense["values"]
    vector_to_parameters(torch.from_numpy(parameters.copy()), module.parameters())
    batch = workload.draw(case["seed"], 0, IMAGES, 0).to("cpu")

    def loss() -> Tensor:
        return F.cross_entropy(module(batch, {}), batch.labels)

    own = [*module.parameters()]
    measured = {"largest eigenvalue": largest_eigenvalue(loss, own), "rise in the ball": rise(loss, own)}
    return measured | {"loss": float(loss().detach()), "norm": float((parameters**2).sum() ** 0.5)}


def run_grid(seeds: Sequence[int], **shape) -> tuple[pd.DataFrame, list[Run]]:
    """The rows of claims, and the runs: each mode and seed, with both measures."""
    found = study.grid(mode=RATES, seed=seeds)
    data, runs = study.run_grid(lambda **case: job(**case, **shape), found, sharpness, accuracy="accuracy")
    return data.assign(subject=data["mode"]), runs
