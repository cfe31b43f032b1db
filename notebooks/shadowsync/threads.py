"""What a shadow, a foreground exchange and further Hogwild threads cost the training threads of this machine, on its own clock.

One trainer and its sync server in one process. Its rows stay with it, so that nothing but the dense parameters travels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lib import Batch, Job, LocalCluster, Mishaps, RowStore, Rule, Run, TableSpec, Workload, workloads
from lib.protocols.shadowsync import ForegroundEASGD, ShadowEASGD
from notebooks.bench.pairs import at_once, best
from notebooks.toys import Climb, Toy

WIRE = 50e6 / 3.125e9
"""Seconds that 50 MB take over 25 Gbit/s, each way."""

EXCHANGES = 5
"""Steps of the stretches that are timed: one of them has an exchange of FR-EASGD-5."""


@dataclass(frozen=True, kw_only=True)
class Shadow(ShadowEASGD):
    rows: ClassVar = "local"


@dataclass(frozen=True, kw_only=True)
class Foreground(ForegroundEASGD):
    rows: ClassVar = "local"


COUNTS = {1: "one thread", 2: "two threads", 4: "four threads"}
"""Hogwild threads on one replica."""

RULES = {
    "nobody": Foreground(every=5, seconds=1e9),
    "S-EASGD": Shadow(),
    "FR-EASGD-5": Foreground(every=5),
}
"""Who synchronises."""


def task(steps: int, *, batch: int = 512, hidden: tuple[int, ...] = (1024, 1024)) -> Workload:
    """A network of 4 MB, whose steps last some hundredths of a second; few rows."""
    small = {"fields": 4, "vocabulary": 100, "dim": 8, "evaluation_samples": 100}
    return workloads.get("ctr-synthetic", samples=steps * batch, batch_size=batch, hidden=hidden, **small)


def train(workload: Workload, rule: Rule, seed: int, *, wire: float = 0.0, threads: int = 2, **options) -> Run:
    """A run of one trainer; `wire`: mean seconds that a message to the sync server, or its answer, is under way."""
    mishaps = Mishaps(late=1.0, delay=wire) if wire else Mishaps()
    cluster = LocalCluster(workers=1, threads=threads, mishaps=mishaps)
    return Job.of(workload, rule, cluster, seed=seed, feed="split", save=False, **options).run(lambda samples: None)


def pace(run: Run, steps: int = EXCHANGES) -> float:
    """Batches a second: over the median stretch of so many steps, after the first fifth."""
    ends = np.sort(run.trace.loc[run.trace["kind"] == "compute", "end"].to_numpy())
    ends = ends[len(ends) // 5 :: steps]
    return float(steps / np.median(np.diff(ends)))


def bandwidth() -> dict[int, float]:
    """Threads -> GB/s at which they copy arrays that no cache holds, read and written together."""
    size = 64_000_000
    pairs = [(np.ones(size // 8), np.empty(size // 8)) for _ in range(2)]
    copies = [lambda pair=pair: np.copyto(pair[1], pair[0]) for pair in pairs]
    return {count: 2e-9 * size * count / best(at_once(copies[:count]), 5) for count in (1, 2)}


@dataclass(frozen=True, kw_only=True)
class Counting(Toy):
    """Every batch adds 1 to all numbers of the same wide rows, so what is short at the end was lost."""

    name: ClassVar[str] = "counting"

    dim: int = 2**16

    def tables(self) -> dict[str, TableSpec]:
        return {"row": TableSpec(self.dim, 0.0)}

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        return Batch.of(index=index, raw={"row": np.arange(4)}, size=1, features={})

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        return {"row": np.arange(4)}

    def evaluate(
        self, model: Climb, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """Shares of the updates that rows and dense parameters have lost."""
        means = {"lost of rows": rows["row"].mean(), "lost of dense": model.w.detach()[0]}
        return {name: 1 - float(mean) / self.samples for name, mean in means.items()}


def lost_updates(locking: str, threads: int, seed: int) -> dict[str, float]:
    """What so many Hogwild threads lose of rows on a server, with or without its locks, and of the dense parameters."""
    rule = ForegroundEASGD(every=5, seconds=1e9, worker_threads=threads)
    store, cluster = RowStore(locking=locking), LocalCluster(workers=1, threads=4)
    job = Job.of(Counting(samples=300), rule, cluster, seed=seed, store=store, save=False)
    summary = job.run(lambda samples: None).summary
    return {name: summary[name] for name in ("lost of rows", "lost of dense")}
