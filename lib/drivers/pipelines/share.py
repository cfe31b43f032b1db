"""A batch on the devices of one pipeline: which samples each computes, which rows each has, and what goes from whom to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lib.data.batch import Batch
from lib.drivers.run.plan import Plan
from lib.store.placement import Hashed, Placement
from lib.store.table.kernels import unique

Places = Mapping[str, np.ndarray]
"""Table -> positions among some rows of it."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one of the devices has of a batch. All of them know it of each other, since ids say it all."""

    index: int
    """The batch's."""
    size: int
    """Samples of the whole batch."""
    batch: Batch | None
    """The samples that it computes, with the ids of all rows that these need; None: there are none left for it."""
    ids: Mapping[str, np.ndarray]
    """Table -> its own rows among those that the whole batch needs."""
    gives: Sequence[Places] = ()
    """Device -> which of its own rows that one's samples need; () where there is one device."""
    takes: Sequence[Places] = ()
    """Device -> which of the rows that its samples need are that one's."""

    @property
    def weight(self) -> float:
        """How much the mean over its samples counts in the mean over all."""
        return self.batch.size / self.size if self.batch else 0.0


def share_of(plan: Plan, index: int, device: int) -> Share:
    """A device's share of the index-th batch, a pure function as the batch is."""
    rule = plan.protocol.dense
    if rule.devices == 1:
        batch = plan.batch(index)
        return Share(index, batch.size, batch, batch.ids)
    parts = plan.parts(index, rule.parts(plan.size_of(index)))
    return shared(parts, device, Hashed(shards=rule.devices))


def shared(parts: Sequence[Batch | None], device: int, placement: Placement) -> Share:
    """A device's share of a batch whose samples are parted like that, and whose rows are placed like that."""
    there = [part for part in parts if part]
    none, ids = np.empty(0, np.int64), {}
    gives, takes = [{} for _ in parts], [{} for _ in parts]
    for table in there[0].ids:
        needed = [part.ids[table] if part else none for part in parts]
        places = [placement.split(table, each) for each in needed]
        own = [each[split[device]] for each, split in zip(needed, places, strict=True)]
        ids[table], positions = unique(np.concatenate(own))
        ends = np.cumsum([each.size for each in own])[:-1]
        for other, its in enumerate(np.split(positions, ends)):
            gives[other][table], takes[other][table] = its, places[device][other]
    return Share(there[0].index, sum(part.size for part in there), parts[device], ids, gives, takes)
