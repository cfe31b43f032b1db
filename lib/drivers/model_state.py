"""A model between two protocols: what the parts of one leave, and what the parts of the next begin with.

The policy, the same for every pair of protocols:

- dense parameters and rows go over as they are, to the bit;
- the optimiser's state goes with them where both phases have the same kind of optimiser, whatever its learning rate; where the
  kinds differ it starts afresh, since Adagrad's sums mean nothing to Adam;
- replicas that mix gradients are copies of one model, of which the most advanced goes over; of those that mix parameters the
  mean of what they stand for (running statistics as the rule mixes them), or the sync servers' copy where that is the rule's
  model, with the mean of their optimisers' state; and a row is averaged over those replicas that have met its id;
- nothing is under way at a switch, so steps, tokens and the rows' timestamps count anew from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lib.drivers.plan import Plan
from lib.drivers.record import PartLog
from lib.protocols.statistics import pool_statistics
from lib.store.rows import Placement, Rows, Uniform, place_rows, reshard_dense
from lib.tasks.flat_model import FlatModel


@dataclass(frozen=True, slots=True)
class ModelState:
    """All parameters and their optimisers' state, and how far in the stream they have come."""

    next_sample: int
    """The next sample of the stream."""
    dense: dict[str, np.ndarray]
    """As `DenseStore.export` gives it."""
    rows: dict[str, Rows]
    optimizers: tuple[str, str]
    """Kinds of the dense parameters' and the rows' optimiser."""

    def for_optimizers_of(self, plan: Plan) -> ModelState:
        """The model as this plan's optimisers can go on with it."""
        kinds = _optimizer_state_kinds(plan)
        dense = self.dense if kinds[0] == self.optimizers[0] else {"values": self.dense["values"]}
        rows = self.rows
        if kinds[1] != self.optimizers[1]:
            first = plan.workload.row_optimizer.initial_row_state
            rows = {t: replace(each, state=first(len(each), each.values.shape[1])) for t, each in rows.items()}
        return ModelState(self.next_sample, dense, rows, kinds)

    def shard(
        self, shard: int, placement: Placement, holds: frozenset[str]
    ) -> tuple[dict[str, np.ndarray], dict[str, Rows]]:
        """One server's share of what it holds."""
        dense = reshard_dense([self.dense], placement.shards)[shard] if "dense" in holds else {}
        rows = self.rows if "rows" in holds else {}
        return dense, {table: place_rows([each], table, placement)[shard] for table, each in rows.items()}


def model_of(plan: Plan, records: Iterable[PartLog], next_sample: int) -> ModelState:
    """The model that the parts of a finished plan hold together."""
    records = [record for record in records if record.final]
    replicas = [record for record in records if "replica" in record.final]
    shards = {shard: each for record in records for shard, each in record.final.get("dense", {}).items()}
    rows = [record.final["rows"] for record in records if record.final.get("rows")]
    centre = [record.final["centre"] for record in records if "centre" in record.final]
    if replicas and plan.protocol.dense.exchange.copies:
        replicas = [max(replicas, key=lambda record: record.ledger["applied"])]
    if replicas:
        # The last snapshot has what a replica stands for.
        dense = _average_arrays([{**each.final["replica"], "values": each.snapshots[-1].dense[0]} for each in replicas])
        if plan.protocol.dense.statistics == "pooled":
            parameters = FlatModel(plan.workload.model(plan.seed)).size
            theirs = [each.snapshots[-1].dense[0][parameters:] for each in replicas]
            dense["values"][parameters:] = pool_statistics(theirs)
        if plan.protocol.dense.model == "centre":
            dense["values"] = np.concatenate(centre)
        tables = plan.workload.tables()
        rows = rows or [{t: _average_rows([r.final["replica rows"][t] for r in replicas]) for t in tables}]
    else:
        dense = reshard_dense([shards[shard] for shard in sorted(shards)], 1)[0]
    tables = {
        table: _with_fresh_timestamps(place_rows([part[table] for part in rows], table, Uniform(shards=1))[0])
        for table in plan.workload.tables()
    }
    return ModelState(next_sample, dense, tables, _optimizer_state_kinds(plan))


def _optimizer_state_kinds(plan: Plan) -> tuple[str, str]:
    """Two optimisers are of one kind where the state of one is that of the other."""
    dense, rows = plan.workload.dense_optimizer, plan.workload.row_optimizer
    return dense.name, f"{rows.name} with {rows.columns(4)} numbers of state for 4 values"


def _with_fresh_timestamps(rows: Rows) -> Rows:
    """Timestamps of rows that were updated are 0: the step that the next protocol begins with."""
    return replace(rows, stamps=np.minimum(rows.stamps, 0))


def _average_arrays(exports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each array's mean over those that have it: an optimiser that never stepped has no state."""
    having = {name: [export[name] for export in exports if name in export] for export in exports for name in export}
    return {name: np.mean(arrays, axis=0, dtype=np.float64).astype(arrays[0].dtype) for name, arrays in having.items()}


def _average_rows(parts: Sequence[Rows]) -> Rows:
    """Each id's mean over the parts that hold it."""
    if len(parts) == 1:
        return parts[0]
    ids, where = np.unique(np.concatenate([part.ids for part in parts]), return_inverse=True)
    counts = np.bincount(where, minlength=ids.size)[:, None]
    means = []
    for name in ("values", "state"):
        sums = np.zeros((ids.size, getattr(parts[0], name).shape[1]))
        np.add.at(sums, where, np.concatenate([getattr(part, name) for part in parts]))
        means.append((sums / counts).astype(np.float32))
    stamps = np.full(ids.size, -1)
    np.maximum.at(stamps, where, np.concatenate([part.stamps for part in parts]))
    return Rows(ids, *means, stamps)
