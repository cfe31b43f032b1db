"""Multi-hot features: the rows of several columns of a batch's places, summed into one vector before a model sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.data.batch import Batch
from lib.store.device.road import uploaded

Pooling = Mapping[str, Sequence[int]]
"""Table -> how many columns of its places are summed into each vector."""


def pooled(batch: Batch, rows: Mapping[str, Tensor], pooling: Pooling) -> tuple[Batch, Mapping[str, Tensor]]:
    """The batch and its rows with one column, and one row, for each sum; sums run in the order of the columns."""
    if not pooling:
        return batch, rows
    where, blocks = dict(batch.where), dict(rows)
    for table, sizes in pooling.items():
        places = where[table]
        starts = uploaded(np.array([0, *accumulate(sizes)][:-1]), places.device)
        firsts = torch.arange(len(places), device=places.device).unsqueeze(1) * places.shape[1] + starts
        blocks[table] = F.embedding_bag(places.flatten(), rows[table], firsts.flatten(), mode="sum")
        where[table] = torch.arange(firsts.numel(), device=places.device).view_as(firsts)
    return replace(batch, where=where), blocks
