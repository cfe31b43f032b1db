"""DeepFM in plain torch, on a log's rows as they are, to hold what `lib.train` learns of a prepared folder against.

Rows have Adagrad, which is the same everywhere. With Adam torch is 0.005 to 0.008 ahead on MovieLens; the two correct its bias
by other counts, `lib` by the steps that a row has seen and torch by all, and whether that is why was not tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lib.workloads import metrics


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


def auc(ids: np.ndarray, labels: np.ndarray, learnt: np.ndarray, seed: int, lr: float = 0.01, size: int = 128) -> float:
    """After one pass over the rows that are learnt, of all the others. `ids`: any values (rows, fields)."""
    torch.manual_seed(seed)
    numbered = [np.unique(column, return_inverse=True)[1] for column in ids.T]
    places = torch.from_numpy(np.stack(numbered, 1))
    model, clicks = DeepFM([int(each.max()) + 1 for each in numbered]), torch.from_numpy(labels).float()
    dense = [each for name, each in model.named_parameters() if not name.startswith("rows")]
    steps = torch.optim.Adam(dense, lr=lr), torch.optim.Adagrad(model.rows.parameters(), lr=0.05)
    rows = torch.from_numpy(np.flatnonzero(learnt))
    for batch in rows[torch.randperm(len(rows))].split(size):
        loss = F.binary_cross_entropy_with_logits(model(places[batch]), clicks[batch])
        model.zero_grad()
        loss.backward()
        for step in steps:
            step.step()
    with torch.no_grad():
        scores = model(places[torch.from_numpy(~learnt)]).numpy()
    return metrics.auc(labels[~learnt], scores)
