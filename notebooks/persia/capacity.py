"""Criteo-Syn: clicks over as many ids as the paper's capacities need, of which no teacher could hold a truth.

Ranks are Zipf-distributed over the whole space, by the inverse of the distribution function for real numbers. Labels are coins:
only time is asked here.

`serve` runs one server, the one that runs use, on this machine's own clock. Ids come from a space as large as the paper's; it has
room for as many rows as the least-recently-used limit allows. The server, its table, the limit and the time are real; the rows
beyond the limit are not there.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from lib import Adagrad, Batch, LocalCluster, RowStore
from lib.cluster.base import Site, World
from lib.drivers.parameter_server import ParameterServer, Servers
from lib.drivers.plan import Plan
from lib.drivers.record import PartLog
from lib.drivers.server_worker import ServerClient
from lib.options.checked import Count, Positive
from lib.protocols.baselines import Async
from lib.store.optim import Optimizer
from lib.streams import uniform
from lib.tasks.click_models import TABLE
from lib.tasks.clicks import ClickThrough
from lib.tasks.clicks_stream import FIELD_SHIFT
from lib.tasks.flat_model import StepResult
from lib.tasks.workload import Network
from notebooks.persia.tasks import speed_job

DIM = 128
"""Numbers of a row in the paper: parameters to an id."""

WIDTH = 2432
"""Of the first hidden layer: with rows of 128 the others' 4,096 would have twice the 12 million that Table 1 gives all tasks."""

CAPACITIES = {f"{tera:g} T": tera * 1e12 for tera in (6.25, 12.5, 25, 50, 100)}


@dataclass(frozen=True, kw_only=True)
class CoinFlips(ClickThrough):
    """Persia's Criteo-Syn1 to 5, by their parameters; the registry's `criteo-syn` has a teacher, and ids that share it."""

    name: ClassVar[str] = "criteo-syn-coins"

    parameters: Positive = 6.25e12
    """Of all rows that there could be, 128 to a row."""
    network: Network = "ffnn"
    fields: Count = 26
    vocabulary: Count = 1
    rank: int = 0
    exponent: float = 1.05
    dim: Count = 16
    dense_features: int = 13
    batch_size: Count = 4096
    samples: Count = 4_096_000
    days: Count = 1
    evaluation_samples: Count = 100
    row_optimizer: Optimizer = field(default=Adagrad(lr=0.05, rowwise=True))

    def __post_init__(self):
        super().__post_init__()
        if self.exponent == 1 or self.each > 1 << FIELD_SHIFT:
            self._reject("parameters", f"at most 2^{FIELD_SHIFT} ids a field, of an exponent that is not 1")

    @property
    def each(self) -> int:
        """Ids of a field."""
        return int(self.parameters / DIM / self.fields)

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        chances = uniform(seed, "criteo-syn", first=first, shape=(size, self.fields + self.dense_features + 1))
        power = 1 - self.exponent
        ranks = ((self.each**power - 1) * chances[:, : self.fields] + 1) ** (1 / power) - 1
        ids = ids_of(np.minimum(ranks.astype(np.int64), self.each - 1), np.arange(self.fields))
        dense = chances[:, self.fields : -1].astype(np.float32)
        labels = (chances[:, -1] < self.base_rate).astype(np.float32)
        return Batch.of(index=index, raw={TABLE: ids}, size=size, features={"dense": dense}, labels=labels)


def ids_of(ranks: np.ndarray, fields: np.ndarray) -> np.ndarray:
    """The ids of these ranks of these fields."""
    return (fields.astype(np.int64) << FIELD_SHIFT) | ranks


def job(capacity: str, protocol: str, seed: int, **shape: int) -> dict:
    """A timing run on the paper's eight machines of eight GPUs each."""
    base = speed_job("criteo-syn", protocol, 8, seed, **shape)
    kept = {name: getattr(base["workload"], name) for name in ("hidden", "dim", "batch_size", "samples", "world")}
    return base | {"workload": CoinFlips(parameters=CAPACITIES[capacity], **kept)}


PERSIA = 3.9e6
"""Rows a second of PERSIA's own store: two threads, LRU, a million rows of 16 numbers, on this kind of machine."""

_FILLING = 500_000
"""Rows of a call that fills the table."""


class MeasuredServer(ParameterServer):
    async def holds(self) -> tuple[int, int, int]:
        """Rows, the bytes that they take, and how many rows went for want of room so far."""
        tables = self._shard.tables.values()
        return sum(map(len, tables)), sum(table.nbytes for table in tables), sum(table.evicted for table in tables)


class Caller:
    """A worker without a network: it pulls each batch's rows and pushes a gradient of each."""

    def __init__(self, site: Site, plan: Plan, servers: Servers, rank: int):
        self._client, self._rank = ServerClient(site, plan, servers, rank, 0, PartLog(site.node, None)), rank
        self._handle = servers.handles[0].bind(site)

    async def fill(self, ids: np.ndarray) -> None:
        """Look rows up once."""
        await self._handle.pull(self._rank, -1, {TABLE: ids})

    async def run(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            rows = (await self._client.pull(batch)).rows
            gradients = {table: np.full_like(block, 0.01) for table, block in rows.items()}
            result = StepResult(loss=0.0, dense=torch.empty(0), rows=gradients, scores=np.empty(0))
            await self._client.push(batch, result)


def serve(tasks: Mapping[str, CoinFlips], rows: int, *, turns: int, batches: int = 8) -> pd.DataFrame:
    """Fill one server with so many of the likeliest rows, then let two workers pull and push batches of each task, turn by turn.

    What is reported: the ids a second that samples hold; the share of them that is sent, each once a batch; the share of
    these for which another row goes; rows and bytes then.
    """
    largest = max(tasks.values(), key=lambda task: task.each)
    callers = 2
    crew = {"workers": callers, "servers": 1, "seed": 0, "on_nan": "stop", "trace": False}
    plan = Plan(workload=largest, protocol=Async(), store=RowStore(max_rows=rows), **crew)

    async def main(world: World) -> list[dict]:
        holds = frozenset({"rows"})
        handle = await world.host(MeasuredServer, plan, Async(), 0, holds, node="server0")
        servers = Servers((handle,), holds)
        workers = [await world.host(Caller, plan, servers, rank, node=f"worker{rank}") for rank in range(callers)]
        for ranks in _ranks(min(rows, largest.fields * largest.each)):
            await workers[0].fill(ids_of(ranks // largest.fields, ranks % largest.fields))
        found, gone = [], (await handle.holds())[-1]
        for turn in range(-1, turns):  # what is called for the first time takes longer, and is not reported
            for name, task in tasks.items():
                drawn = [task.batch(0, (turn + 1) * batches + index) for index in range(batches)]
                begin = time.perf_counter()
                await asyncio.gather(*(worker.run(drawn[rank::callers]) for rank, worker in enumerate(workers)))
                seconds = time.perf_counter() - begin
                looked_up, sent = (sum(getattr(each, of)[TABLE].size for each in drawn) for of in ("where", "ids"))
                before, (held, size, gone) = gone, await handle.holds()
                row = {"rate": looked_up / seconds, "sent": sent / looked_up, "new": (gone - before) / sent}
                row |= {"capacity": name, "seed": turn, "rows": held, "bytes": size}
                found += [row] if turn >= 0 else []
        return found

    return pd.DataFrame(LocalCluster(workers=callers, threads=callers).open(0, callers).run(main))


def _ranks(rows: int) -> Iterator[np.ndarray]:
    """So many of the likeliest, in parts, the likeliest at last."""
    for end in range(rows, 0, -_FILLING):
        yield np.arange(max(0, end - _FILLING), end)
