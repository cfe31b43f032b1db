"""What ShadowSync's experiments train, on what, and at which settings; each beside what the paper says of it.

The cluster's times follow from figures that the paper prints: 50 MB of dense parameters, links of 25 Gbit/s, 24 threads a
trainer, and how many steps lie between two synchronisations of S-EASGD (Fig. 5's text), from which follows how long a step takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lib import workloads
from lib.cluster.slowdowns import Lognormal
from lib.cluster.virtual.cluster import VirtualCluster
from lib.protocols.rule import Rule
from lib.protocols.shadowsync import (
    ForegroundBMUF,
    ForegroundEASGD,
    ForegroundMA,
    ShadowBMUF,
    ShadowEASGD,
    ShadowMA,
)
from lib.store.blank import BlankDense
from lib.store.optim import Adagrad
from lib.store.spec import RowStore
from lib.workloads import Workload
from lib.workloads.base import dense_parameters
from notebooks import clusters

DENSE = 50e6
"""Bytes of the interaction and the MLPs (Sec. 4)."""

THREADS = 24
"""Of a trainer (Sec. 4)."""

GAPS = {15: 8.60, 16: 8.76, 17: 10.43, 18: 10.93, 19: 11.95, 20: 12.48}
"""Trainers -> steps between two synchronisations of S-EASGD with two sync servers (Sec. 4.1.2)."""


def syncs(servers: int) -> float:
    """How often in a second so many sync servers can take in 50 MB, and give 50 MB back at the same time."""
    return servers * 25 * clusters.GBIT / DENSE


STEPS = round(sum(gap * syncs(2) / trainers for trainers, gap in GAPS.items()) / len(GAPS), 1)
"""Steps that a trainer makes in a second, all its threads together, if the sync servers' links are full with those gaps: 75. The
gaps grow with the trainers as they do where the links are full."""

STEPS_1 = round(5.21 * syncs(1) / 11, 1)
"""The same for Dataset-1, by Table 2's gap with 11 trainers and one sync server: 30."""

FIELDS: Mapping[str, tuple[int, ...]] = {
    "vocabularies": (4, 20, 60, 200, 500, 1_000, 2_000, 4_000, 8_000, 20_000, 20_000, 50_000),
    "pooling": (1, 1, 1, 1, 2, 1, 4, 1, 12, 1, 6, 24),
}
"""Tables of unlike sizes, and how many ids of each a sample has: a production model has hundreds of them (Sec. 3.1)."""


EMBEDDING = 2
"""Embedding servers, as they are simulated: each stands for several machines."""

BATCH = 16

EVALUATIONS = 20
"""Of a run that learns, all on the same new examples."""

PAUSE = 0.14
"""Seconds from one foreground average to the next: some three times as long as S-MA takes for one with five trainers; in the
paper the foreground averages once a minute, and S-MA 2.9 times (Sec. 4.1.3)."""

STORE = RowStore(pooling="server", placement="by-cost", locking="none")
"""Hogwild on the embedding servers, which sum the rows of a field, and have about as much to do as each other (Sec. 3.1, 3.2)."""


def workload(samples: int, **options) -> Workload:
    """A DLRM as the paper draws it, over planted multi-hot clicks."""
    own = {
        "network": "dlrm",
        "fields": len(FIELDS["pooling"]),
        **FIELDS,
        "samples": samples,
        "batch_size": BATCH,
        "days": 1,
        "drift": 0.0,
        "dim": 8,
        "hidden": (64, 32),
        "exponent": 1.1,
        "dense_optimizer": Adagrad(lr=0.03),
        "row_optimizer": Adagrad(lr=0.03),
    }
    return workloads.get("ctr-synthetic", **own | options)


def rule(name: str, *, servers: int = 2, threads: int = THREADS, **options) -> Rule:
    """A rule by its name in the paper: S-EASGD, FR-EASGD-5, S-MA, FR-MA, S-BMUF, FR-BMUF."""
    kind, _, gap = name.lower().removeprefix("fr-").removeprefix("s-").partition("-")
    shadow = name.startswith("S-")
    options = {"worker_threads": threads, **options}
    if kind == "easgd":
        options["sync_servers"] = servers
        return ShadowEASGD(**options) if shadow else ForegroundEASGD(every=int(gap), **options)
    kinds = {"ma": (ShadowMA, ForegroundMA), "bmuf": (ShadowBMUF, ForegroundBMUF)}
    return kinds[kind][0 if shadow else 1](**options)


ETA = 0.5
"""BMUF's step: it goes part of the way to the average, not all of it (Sec. 4.2); how far is not said."""


def compared(threads: int) -> dict[str, Rule]:
    """What is compared for quality in Table 3, Figure 6 and Figure 7, by names in lower case."""
    names = {"S-EASGD": {}, "FR-EASGD-5": {}, "FR-EASGD-30": {}, "S-MA": {}, "FR-MA": {"seconds": PAUSE}}
    names |= {"S-BMUF": {"eta": ETA}, "FR-BMUF": {"eta": ETA, "seconds": PAUSE}}
    rules = {label(name): rule(name, threads=threads, **options) for name, options in names.items()}
    return rules | {"s-bmuf (0.9)": rule("S-BMUF", threads=threads, eta=ETA, alpha=0.9)}


def label(name: str) -> str:
    """As pages write it: FR-EASGD-5 is fr-easgd (5)."""
    stem, dash, gap = name.lower().rpartition("-")
    return f"{stem} ({gap})" if gap.isdigit() else stem + dash + gap


def cluster(task: Workload, trainers: int, *, embedding: int | None = None, steps: float = STEPS) -> VirtualCluster:
    """The paper's machines, whose links and memories are smaller by as much as our dense parameters are: a synchronisation takes
    as long as of 50 MB, and a step as `steps` a second and trainer say, with 24 threads that together use a machine's memory.

    `embedding` servers, one for each trainer by default, are simulated as two that are as much larger."""
    here = clusters.shadowsync()
    shrink = 4 * dense_parameters(task) / DENSE
    replica = BlankDense(dense_parameters(task), task.dense_optimizer)
    replica.apply(replica.values)
    core = (task.work().bytes + 3 * replica.nbytes) * steps / THREADS  # gradients, then the optimiser's step
    worker = replace(
        here.worker,
        cores=40,  # hyperthreads
        flops=1e30,  # the interaction is bound by memory (Sec. 4.3)
        memory=THREADS * core,
        core_memory=core,
        bandwidth=here.worker.bandwidth * shrink,
    )
    sync = replace(
        here.server,
        memory=here.server.memory * shrink,
        core_memory=here.server.core_memory * shrink,
        bandwidth=here.server.bandwidth * shrink,
    )
    fold = (embedding or trainers) / EMBEDDING
    return replace(
        here,
        workers=trainers,
        servers=EMBEDDING,
        worker=worker,
        server=sync,
        nodes={
            f"server{each}": replace(sync, memory=sync.memory * fold, bandwidth=sync.bandwidth * fold)
            for each in range(EMBEDDING)
        },
        slowdown=Lognormal(sigma=0.1),  # an estimate: hyperthreads and networks are not quite even
    )


def speed_job(
    protocol: Rule, trainers: int, seed: int, *, each: int, embedding: int | None = None, steps: float = STEPS
) -> dict[str, Any]:
    """A timing run in which each thread makes so many steps; of its messages, rows are a small share beside the wide MLPs."""
    samples = each * trainers * protocol.worker_threads * BATCH
    alone = workload(samples, evaluation_samples=100, hidden=(512, 256), world=seed)
    there = cluster(alone, trainers, embedding=embedding, steps=steps)
    return _run(alone, protocol, there, seed) | {"gradients": False}


def copied(job: Mapping[str, Any]) -> int:
    """Bytes of a trainer's copy of the dense parameters in a job."""
    return 4 * dense_parameters(job["workload"])


def job(
    protocol: Rule,
    trainers: int,
    seed: int,
    *,
    samples: int,
    embedding: int | None = None,
    steps: float = STEPS,
    **options,
) -> dict[str, Any]:
    """A run that learns, in one pass. However many threads a trainer has, it makes as many steps in a second."""
    task = workload(samples, world=seed, **options)
    there = cluster(task, trainers, embedding=embedding, steps=steps * THREADS / protocol.worker_threads)
    return _run(task, protocol, there, seed) | {"store": STORE, "evaluations": EVALUATIONS}


def _run(task: Workload, protocol: Rule, there: VirtualCluster, seed: int) -> dict[str, Any]:
    return {"workload": task, "protocol": protocol, "cluster": there, "seed": seed, "trace": False}
