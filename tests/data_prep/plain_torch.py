"""DeepFM in plain torch, on a log's rows as they are, to hold what `lib.train` learns of a prepared folder against.

Rows have Adagrad, which is the same everywhere, or `RowAdam`, which is Adam as `lib` has it for rows; data_prep/README.md says
what torch's own two come to.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lib.tasks import metrics


class DeepFM(nn.Module):
    """One table a field, whose last column is the first-order weight."""

    def __init__(self, sizes: Sequence[int], dim: int = 8, hidden: Sequence[int] = (128, 64)):
        super().__init__()
        self.rows = nn.ModuleList(nn.Embedding(size, dim + 1, sparse=True) for size in sizes)
        for table in self.rows:
            nn.init.uniform_(table.weight, -0.01, 0.01)
        widths = [len(sizes) * dim, *hidden]
        layers = [each for a, b in pairwise(widths) for each in (nn.Linear(a, b), nn.ReLU())]
        self.deep, self.bias = nn.Sequential(*layers, nn.Linear(widths[-1], 1)), nn.Parameter(torch.zeros(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = torch.stack([table(ids[:, field]) for field, table in enumerate(self.rows)], 1)
        vectors, first = found[..., :-1], found[..., -1]
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        return self.deep(vectors.flatten(1)).squeeze(1) + first.sum(1) + pairs + self.bias


class RowAdam(torch.optim.Optimizer):
    """Adam of the rows that have a gradient, its bias corrected by the steps that a row itself has seen."""

    def __init__(self, tables: Iterable[nn.Parameter], lr: float):
        super().__init__(tables, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for table in self.param_groups[0]["params"]:
            grad = table.grad.coalesce()
            at, found, state = grad.indices()[0], grad.values(), self.state[table]
            if not state:
                state |= {"m": torch.zeros_like(table), "v": torch.zeros_like(table), "n": torch.zeros(len(table), 1)}
            state["n"][at] += 1
            steps = state["n"][at].double()
            m = state["m"][at] = 0.9 * state["m"][at] + 0.1 * found
            v = state["v"][at] = 0.999 * state["v"][at] + 0.001 * found.square()
            root = (v / (1 - 0.999**steps)).sqrt() + 1e-8
            table[at] -= (self.param_groups[0]["lr"] * m / (1 - 0.9**steps) / root).float()


ROWS = {"adagrad": partial(torch.optim.Adagrad, lr=0.05), "adam": partial(RowAdam, lr=0.01)}


def auc(ids: np.ndarray, labels: np.ndarray, learnt: np.ndarray, seed: int, rows: str = "adagrad") -> float:
    """After one pass over the rows that are learnt, of all the others. `ids`: any values (rows, fields)."""
    torch.manual_seed(seed)
    numbered = [np.unique(column, return_inverse=True)[1] for column in ids.T]
    places = torch.from_numpy(np.stack(numbered, 1))
    model, clicks = DeepFM([int(each.max()) + 1 for each in numbered]), torch.from_numpy(labels).float()
    dense = [each for name, each in model.named_parameters() if not name.startswith("rows")]
    steps = torch.optim.Adam(dense, lr=0.01), ROWS[rows](model.rows.parameters())
    taken = torch.from_numpy(np.flatnonzero(learnt))
    for batch in taken[torch.randperm(len(taken))].split(128):
        loss = F.binary_cross_entropy_with_logits(model(places[batch]), clicks[batch])
        model.zero_grad()
        loss.backward()
        for step in steps:
            step.step()
    with torch.no_grad():
        scores = model(places[torch.from_numpy(~learnt)]).numpy()
    return metrics.auc(labels[~learnt], scores)
