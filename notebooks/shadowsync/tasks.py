"""What ShadowSync's experiments train, on what, and at which settings; each next to what the paper says of it.

The cluster's times follow from figures that the paper prints: 50 MB of dense parameters, links of 25 Gbit/s, 24 threads a
trainer, and how many steps lie between two synchronisations of S-EASGD (Fig. 5's text), from which follows how long a step takes.

In the paper five trainers average 50 MB in some 20 seconds, in which each makes hundreds of steps (Sec. 4.1.3). A modelled ring
takes 30 ms. `SlowMA` is model averaging whose average arrives some mixes after it was asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

import lib
from lib import Adagrad, Lognormal, RowStore, Rule, VirtualCluster, Workload, protocols, workloads
from lib.options.checked import Count
from lib.protocols.mixing import Mix
from lib.protocols.shadowsync import ShadowMA
from lib.store.dense import PhantomDense
from lib.tasks.workload import dense_parameters
from notebooks import clusters, setting, study

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
"""Of a run that learns, all on the same new examples."""

PAUSE = 0.18
"""Seconds from one foreground average to the next: some three times as long as S-MA takes for one with five trainers; in the
paper the foreground averages once a minute, and S-MA 2.9 times (Sec. 4.1.3)."""

STORE = RowStore(pooling="server", placement="by-cost", locking="none")
"""Hogwild on the embedding servers, which sum the rows of a field, and have about as much to do as each other (Sec. 3.1, 3.2)."""


def workload(samples: int, **options) -> Workload:
    """A DLRM as the paper draws it, over synthetic multi-hot clicks."""
    sizes = {"fields": len(FIELDS["pooling"]), **FIELDS, "batch_size": BATCH, "days": 1, "drift": 0.0, "exponent": 1.1}
    shape = {"network": "dlrm", "dim": 8, "hidden": (64, 32)}
    rates = dict.fromkeys(("dense_optimizer", "row_optimizer"), Adagrad(lr=0.03))
    return workloads.get("ctr-synthetic", **{"samples": samples, **sizes, **shape, **rates} | options)


def light(samples: int, *, rate: float | None = None, rows: float | None = None, **options) -> Workload:
    """Clicks for a factorisation machine with a small network, whose steps are a few times as cheap, for long passes; at full for
    a DLRM of the paper's size. `rate` is that of the dense parameters, `rows` that of the rows; by default they are S-EASGD's
    best with ten trainers, on a tuning seed, and at full the named workload's."""
    sizes = {"batch_size": BATCH, "days": 1, "drift": 0.0, "hidden": (32,), "dense_features": 4}
    rates = {"dense_optimizer": Adagrad(lr=0.1), "row_optimizer": Adagrad(lr=0.03)}
    name = "criteo-dlrm" if setting.is_full() else "clicks-light"
    made = setting.workload(name, "shadowsync", "dataset 1", **{"samples": samples, **sizes, **rates} | options)
    given = {"dense_optimizer": rate, "row_optimizer": rows}
    return replace(made, **{option: Adagrad(lr=lr) for option, lr in given.items() if lr})


def store(task: Workload) -> RowStore:
    """`STORE`, for tables whose fields have several ids or one."""
    return STORE if task.pooling else replace(STORE, pooling="worker")


def rule(name: str, *, servers: int = 2, threads: int = THREADS, **options) -> Rule:
    """A rule by its name on pages: fr-easgd (5) exchanges after every fifth step."""
    kind, _, every = name.rstrip(")").partition(" (")
    options |= ({"every": int(every)} if every else {}) | ({"sync_servers": servers} if "easgd" in kind else {})
    return protocols.get(kind, worker_threads=threads, **options)


ETA = 0.5
"""BMUF's step: it goes part of the way to the average, not all of it (Sec. 4.2); how far is not said."""

ALPHA = 0.25
"""The one alpha for all modes, which in the paper is production's and not given: S-EASGD's best, on a seed kept for tuning."""

LARGER = 2 * ALPHA
"""Figure 7's larger alpha of S-BMUF; how much larger is not said."""


def compared_rules(threads: int, alpha: float = ALPHA) -> dict[str, Rule]:
    """What is compared for quality in Table 3, Figure 6 and Figure 7. A foreground average is interpolated as Algorithms 3 and 4
    do it, and copied as MA and BMUF have it: threads stand still, so a copy loses nothing."""
    pause, part = {"seconds": PAUSE}, {"eta": ETA}
    options = {"s-easgd": {}, "fr-easgd (5)": {}, "fr-easgd (30)": {}, "s-ma": {}, "fr-ma": pause}
    options |= {"s-bmuf": part, "fr-bmuf": part | pause}
    rules = {name: rule(name, threads=threads, alpha=alpha, **given) for name, given in options.items()}
    copied = {
        f"copied {name}": rule(name, threads=threads, alpha=1.0, **options[name]) for name in ("fr-ma", "fr-bmuf")
    }
    return rules | copied | {"s-bmuf larger": rule("s-bmuf", threads=threads, eta=ETA, alpha=LARGER)}


def learning_job(protocol: Rule, trainers: int, seed: int, *, samples: int, **options) -> dict:
    """A run that learns on light clicks, whose passes are long for their time."""
    return job(protocol, trainers, seed, samples=samples, build=light, **options)


def cluster(task: Workload, trainers: int, *, steps: float = STEPS) -> VirtualCluster:
    """The paper's machines, whose links and memories are smaller by as much as our dense parameters are: a synchronisation takes
    as long as of 50 MB, and a step as `steps` a second and trainer say, with 24 threads that together use a machine's memory.

    Embedding servers, one for each trainer, are simulated as two that are as much larger."""
    machines = clusters.shadowsync()
    shrink = 4 * dense_parameters(task) / DENSE
    replica = PhantomDense(dense_parameters(task), task.dense_optimizer)
    replica.apply(replica.values)
    core = (task.work().bytes + 3 * replica.nbytes) * steps / THREADS  # gradients, then the optimiser's step
    worker = replace(
        clusters.scale(machines.worker, shrink, "bandwidth"),
        cores=40,  # hyperthreads
        flops=1e30,  # the interaction is bound by memory (Sec. 4.3)
        memory=THREADS * core,
        core_memory=core,
    )
    sync = clusters.scale(machines.server, shrink, "memory", "core_memory", "bandwidth")
    larger = clusters.scale(sync, trainers / EMBEDDING, "memory", "bandwidth")
    nodes = {f"server{each}": larger for each in range(EMBEDDING)}
    slowdown = Lognormal(sigma=0.1)  # an estimate: hyperthreads and networks are not quite even
    machines = replace(machines, workers=trainers, servers=EMBEDDING, nodes=nodes)
    return replace(machines, worker=worker, server=sync, slowdown=slowdown)


def timing(task: Workload, protocol: Rule, there: VirtualCluster, seed: int) -> dict:
    """A run of its messages and seconds alone."""
    return study.job(task, protocol, there, seed, gradients=False)


def speed_job(protocol: Rule, trainers: int, seed: int, *, each: int, **pace) -> dict:
    """A timing run in which each thread makes so many steps; rows are a small share of its messages, next to the wide MLPs."""
    samples = each * trainers * protocol.worker_threads * BATCH
    alone = workload(samples, evaluation_samples=100, hidden=(512, 256), world=seed)
    return timing(alone, protocol, cluster(alone, trainers, **pace), seed)


def copy_bytes(job: Mapping) -> int:
    """Bytes of a trainer's copy of the dense parameters in a job."""
    return 4 * dense_parameters(job["workload"])


@cache
def paced_cluster(
    trainers: int, threads: int, servers: int, steps: float, build: Callable[..., Workload] = workload
) -> VirtualCluster:
    """A cluster on which a trainer of so many threads makes `steps` a second, to a few per cent, with S-EASGD's shadow: with
    what rows take on their way and wait behind copies. A thread's own part of a step is what timing runs leave for it."""
    task = build(20 * threads * trainers * BATCH, evaluation_samples=100)
    shadow = rule("s-easgd", servers=servers, threads=threads)
    whole = own = threads / steps  # seconds of a thread's step
    for _ in range(3):
        paced = cluster(task, trainers, steps=THREADS / own)
        # Rows are no smaller than the paper's, as the dense parameters are, so what serves them is no slower either.
        paced = replace(paced, nodes=dict.fromkeys(paced.nodes, clusters.shadowsync().server))
        run = lib.train(**timing(task, shadow, paced, 0) | {"store": store(task)}, save=False)
        own += whole - threads * trainers * BATCH / run.steady_qps
        if own <= 0:
            raise ValueError(
                f"a trainer of {threads} threads cannot make {steps} steps a second: rows alone take {whole - own:.3f} s of a "
                f"thread's {whole:.3f} s a step; take more threads, or fewer steps"
            )
    return paced


def job(
    protocol: Rule,
    trainers: int,
    seed: int,
    *,
    samples: int,
    steps: float = STEPS,
    servers: int = 2,
    threads: int | None = None,
    build: Callable[..., Workload] = workload,
    **options,
) -> dict:
    """A run that learns in one pass, on machines on which `threads` of a trainer (default: all) make `steps` a second next to
    the shadow of S-EASGD with so many sync servers; `options` are the workload's."""
    machines, task = (
        paced_cluster(trainers, threads or protocol.worker_threads, servers, steps, build),
        build(samples, world=seed, **options),
    )
    return study.job(task, protocol, machines, seed, store=store(task), evaluations=study.marks(20))


EXAMPLES = {number: int(setting.printed("shadowsync", f"dataset {number}")["samples"]) for number in (1, 2, 3)}
"""Of a pass over each of the paper's data sets (Sec. 4)."""

SHARES = {"half": 0.5, "copied": 1.0, "never": 0.0}
"""How far of the way to the average a replica goes."""


@dataclass(frozen=True, kw_only=True)
class SlowMA(ShadowMA):
    """S-MA (Algorithm 3) whose every so-many mixes are one: the average of what all sent in the first is merged in the last, and
    what passes in between is left alone."""

    name: ClassVar = "slow s-ma"

    lasts: Count = 1
    """Mixes of a fast ring that one slow one takes; 1 is S-MA."""

    def init(self, start: np.ndarray) -> np.ndarray:
        return start.copy()

    def merge(self, memory: np.ndarray, mine: np.ndarray, mix: Mix) -> tuple[Any, np.ndarray]:
        position = mix.round % self.lasts
        average = mix.theirs.copy() if position == 0 else memory
        return average, self._towards(mine, average) if position == self.lasts - 1 else mine


def slow_job(trainers: int, lasts: int, way: str, seed: int, *, samples: int, threads: int) -> dict[str, Any]:
    """A run that learns under it, one of `WAYS`."""
    rule = SlowMA(lasts=lasts, alpha=SHARES[way], worker_threads=threads)
    return learning_job(rule, trainers, seed, samples=samples)
