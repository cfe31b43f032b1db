"""The table against torch, fbgemm, arrays that are indexed directly, and the memory; and what keeping a table costs.

A step is a look-up and an update of the same ids: 26 features of 4096 samples, Zipf(1.05) within each feature. "raw" ids are as
they come, "unique" ones without duplicates, as a run's workers send them; a rate counts the ids of the step. Ours hashes 64-bit
ids, in the table that `RowStore` makes for a run. Two threads are two threads in each of a peer's calls, and two callers of ours,
as a server has them, which share the batches. What is demanded stands next to what was measured, and `holds` compares them:
"machine busy" where two threads were measured and `cores`, what plain arithmetic gains from a second thread at that moment,
is far from 2.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from lib import Adagrad, RowStore, streams
from lib.store import kernels
from lib.store.table import Table
from lib.tasks.sampling import zipf_probabilities
from notebooks.bench import checkpoint
from notebooks.bench.pairs import Work, against, at_most, at_once, cores, time_in_turn
from notebooks.bench.peers import FEATURES, Ceiling, Direct, Fbgemm, Torch

EXPONENT = 1.05
ELEMENTS, ROWWISE = Adagrad(lr=0.1), Adagrad(lr=0.1, rowwise=True)
NAMES = {ELEMENTS: "element-wise", ROWWISE: "row-wise"}
ODD = 0x9E3779B97F4A7C15 - 2**64
"""Row r has the id r x ODD: any 64 bits, all distinct."""
PUBLISHED = {
    "PERSIA's store": {(1_000_000, 1): 1.9, (1_000_000, 2): 3.9, (10_000_000, 1): 0.9, (10_000_000, 2): 2.8},
    "TF recommenders-addons": {(1_000_000, 1): 2.7, (1_000_000, 2): 4.3},
}
"""Million raw rows a second at dim 16 on this kind of machine, by rows and threads; not measured in this run."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    samples: int = 4096
    batches: int = 8
    rounds: int = 15
    shared: int = 7_000_000
    """Rows in shared memory, at dim 16: a gigabyte."""
    patience: float = 2.0
    """Seconds to wait for two free cores before two threads are measured."""


PROFILES = {
    "full": Profile(rows=(1_000_000, 10_000_000), dims=(16, 64)),
    "quick": Profile(rows=(1_000_000,), dims=(16,), batches=4, rounds=2, shared=1_000_000, patience=0.5),
    "tiny": Profile(rows=(20_800,), dims=(16,), samples=256, batches=2, rounds=1, shared=10_000, patience=0.0),
}
"""Minutes; seconds, for notebooks; and every figure once, at a size that says nothing, for tests."""


def measure(profile: str = "full") -> Iterator[dict[str, Any]]:
    scale = PROFILES[profile]
    for size in scale.rows:
        for dim in scale.dims:
            setting = Setting(size, dim, scale)
            for limit in (None, size):
                for optimizer in (ELEMENTS, ROWWISE):
                    yield from setting.measure(optimizer, limit)
                    gc.collect()
    yield from _memory(min(scale.rows))
    yield from checkpoint.checkpoints(2 * min(scale.rows), scale.rounds)
    yield from checkpoint.attaching(scale.shared)


class Setting:
    """One size of tables, and the batches for it."""

    def __init__(self, size: int, dim: int, scale: Profile):
        self.size, self.dim, self.rounds, self.patience = size, dim, scale.rounds, scale.patience
        drawn = list(_drawn(size, scale.batches, scale.samples))
        self.kinds = {"raw": drawn, "unique": [kernels.unique(batch)[0] for batch in drawn]}
        grads = streams.stream(0, "bench", "store", "grads").standard_normal((drawn[0].size, dim), np.float32) / 100
        self.grads = {kind: [grads[: batch.size] for batch in batches] for kind, batches in self.kinds.items()}

    def measure(self, optimizer: Adagrad, limit: int | None) -> Iterator[dict[str, Any]]:
        table = self._filled(optimizer, limit)
        if optimizer is ELEMENTS:
            demanded = (3.5, 4.0) if limit is None else (3.0, 3.0)
            yield from self._beside(Torch(self.size, self.dim, optimizer), table, dict.fromkeys(self.kinds, demanded))
        if limit is None:
            yield from self._beside_fbgemm(table)
        if optimizer is ROWWISE and limit is None:
            yield from self._beside(Ceiling(self.size, self.dim, optimizer), table, {"unique": (0.5, 0.5)})
            yield from self._two_against_one(table)
        if optimizer is ROWWISE and limit is not None:
            yield from self._beside(Direct(self.size, self.dim, optimizer), table, dict.fromkeys(self.kinds, (0.714,)))
            yield from self._beside_published(table)

    def _filled(self, optimizer: Adagrad, limit: int | None) -> Table:
        table = RowStore(max_rows=limit).table("bench", self.dim, optimizer, seed=0, scale=0.01)
        for part in np.array_split(np.arange(self.size), max(1, self.size // 250_000)):
            table.pull(part * ODD)
        return table

    def _beside(self, peer: Any, table: Table, demanded: dict[str, tuple[float, ...]]) -> Iterator[dict[str, Any]]:
        """For each kind of ids, what is demanded on one thread, and on two."""
        for kind, ratios in demanded.items():
            for threads, ratio in enumerate(ratios, 1):
                theirs, mine = self._theirs(peer, kind, threads), self._ours(table, kind, threads)
                yield {"claim": peer.claim} | self._row(table, peer.name, kind, threads, ratio, theirs, mine)

    def _beside_fbgemm(self, table: Table) -> Iterator[dict[str, Any]]:
        demanded = (2.0, 2.0)
        if table.optimizer.rowwise:
            demanded = 0.6, 1.0 if (self.dim, self.size) == (64, 10_000_000) else 0.8
        try:
            peer = Fbgemm(self.size, self.dim, table.optimizer)
        except (ImportError, OSError) as error:
            reason = f"not installed: {type(error).__name__}; pip install .[peers]"
            yield {"claim": Fbgemm.claim, "what": "look-up + update", "peer": Fbgemm.name, "holds": reason}
            return
        yield from self._beside(peer, table, dict.fromkeys(self.kinds, demanded))

    def _two_against_one(self, table: Table) -> Iterator[dict[str, Any]]:
        for kind in self.kinds:
            one, two = self._ours(table, kind, 1), self._ours(table, kind, 2)
            yield {"claim": "two-callers"} | self._row(table, "one caller", kind, 2, 1.5, one, two)

    def _beside_published(self, table: Table) -> Iterator[dict[str, Any]]:
        for peer, rates in PUBLISHED.items():
            for threads in (1, 2):
                rate = rates.get((self.size, threads)) if self.dim == 16 else None
                if rate is not None:
                    seconds = sum(map(len, self.kinds["raw"])) / 1e6 / rate
                    ours = self._ours(table, "raw", threads)
                    row = self._row(table, f"{peer}, published", "raw", threads, 4.0, seconds, ours)
                    yield {"claim": "published"} | row

    def _ours(self, table: Table, kind: str, callers: int) -> Work:
        """The batches dealt out to so many callers at once."""
        steps = [(batch * ODD, grads) for batch, grads in zip(self.kinds[kind], self.grads[kind], strict=True)]

        def call(mine: list[tuple[np.ndarray, np.ndarray]]) -> None:
            for stamp, (ids, grads) in enumerate(mine):
                table.pull(ids)
                table.push(ids, grads, stamp, distinct=kind == "unique")

        return at_once([partial(call, steps[caller::callers]) for caller in range(callers)])

    def _theirs(self, peer: Any, kind: str, threads: int) -> Work:
        if isinstance(peer, Ceiling):
            steps = [peer.step(rows, threads) for rows in self.kinds[kind]]
        else:
            steps = [peer.step(*each) for each in zip(self.kinds[kind], self.grads[kind], strict=True)]

        def run() -> None:
            torch.set_num_threads(threads)
            for step in steps:
                step()

        return run

    def _row(
        self, table: Table, peer: str, kind: str, threads: int, demanded: float, theirs: Work | float, mine: Work
    ) -> dict[str, Any]:
        """A peer that is no work to do is the seconds that it takes."""
        free = cores(self.patience) if threads > 1 else None
        if isinstance(theirs, float):
            pairs = [(theirs, seconds) for seconds, _ in time_in_turn(mine, mine, self.rounds)]
        else:
            pairs = time_in_turn(theirs, mine, self.rounds)
        free = free and min(free, cores())
        return {
            "what": "look-up + update" + ", LRU" * (table.max_rows is not None),
            "peer": peer,
            "optimizer": NAMES[table.optimizer],
            "ids": kind,
            "rows": self.size,
            "dim": self.dim,
            "threads": threads,
            **against(demanded, pairs, sum(map(len, self.kinds[kind])) / 1e6, "M rows/s", free),
        }


def _memory(size: int) -> Iterator[dict[str, Any]]:
    """Full tables, with and without a limit; and what 50 million rows would take."""
    beside, whole = [], []
    for limit in (None, size):
        table = Setting(size, 16, Profile(rows=(), dims=(), samples=1, batches=1))._filled(ROWWISE, limit)
        room = table.nbytes / size if limit else table.bytes_per_row  # without a limit there is room for growth
        beside.append(room - 4 * 17)
        whole.append(50e6 * table.bytes_per_row / 1e9)
    common = {"claim": "memory", "optimizer": NAMES[ROWWISE], "dim": 16}
    yield common | {"what": "bytes a row, without vector and state", "rows": size, **at_most(24, max(beside))}
    yield common | {"what": "GB of 50e6 rows", "rows": 50_000_000, **at_most(8, max(whole))}


def headroom(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """For each claim what was measured over what is demanded, at its worst; not a number where nothing was judged."""
    table = pd.DataFrame(rows)
    table["headroom"] = table["headroom"].where(table["holds"].isin(["yes", "no"]))
    return table.groupby("claim")["headroom"].min().rename_axis("subject").reset_index().assign(seed=0)


def _drawn(size: int, batches: int, samples: int) -> Iterator[np.ndarray]:
    """Rows of a batch: a feature's ranks are scattered over its share of the rows."""
    share = size // FEATURES
    chances = np.cumsum(zipf_probabilities(share, EXPONENT))
    order = streams.stream(0, "bench", "store", "order").permutation(share)
    random = streams.stream(0, "bench", "store", "ids")
    for _ in range(batches):
        ranks = np.minimum(np.searchsorted(chances, random.random((samples, FEATURES))), share - 1)
        yield (order[ranks] + share * np.arange(FEATURES)).ravel()
