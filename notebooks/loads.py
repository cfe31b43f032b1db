"""The load of each embedding server: tables of unlike cost, the rows that each server is asked for, and their imbalance."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lib import RowStore, Run, Workload
from lib.store.rows import Placement, look_up_costs
from lib.tasks.clicks_stream import FIELD_SHIFT

LOAD = 0.8
"""How busy servers are where their work is even and no trainer ever waits."""


def fields(
    draws: np.random.Generator, count: int, sizes: Sequence[int], sigma: float, most: int
) -> dict[str, tuple[int, ...]]:
    """Tables of unlike vocabularies, of which a sample has unlike numbers of ids: lognormal, with a median of 2."""
    pooling = np.clip(2 * np.exp(sigma * draws.standard_normal(count)), 1, most).astype(int)
    return {"vocabularies": tuple(draws.choice(sizes, count).tolist()), "pooling": tuple(pooling.tolist())}


def costs(task: Workload, batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """What the look-ups of batches cost, by group."""
    return look_up_costs(batches, {name: spec.dim for name, spec in task.tables().items()}, shift=FIELD_SHIFT)


def place(placement: str, servers: int, costs: Mapping[str, float]) -> Placement:
    """Where rows lie under a placement."""
    return RowStore(placement=placement).place(servers, shift=FIELD_SHIFT, costs=lambda: costs)


def look_ups(placed: Placement, servers: int, batches: Iterable[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Rows that batches (table -> ids) request from each server."""
    owners = (
        np.bincount(placed.shard_of(table, ids), minlength=servers) for batch in batches for table, ids in batch.items()
    )
    return sum(owners, start=np.zeros(servers))


def measured(run: Run, role: str = "server") -> np.ndarray:
    """What each server of a run did; an embedding server's is the bytes that it looked up, since its cores share nothing."""
    return run.usage.loc[run.usage["name"].str.startswith(role), "computed"].to_numpy()


def imbalance(loads: np.ndarray) -> float:
    """The largest over the mean."""
    return float(loads.max() / loads.mean())
