"""What a death takes from Persia's hybrid: runs in which a part really dies, and models put together as a death leaves them.

The first say how long a run stands still and what its books lose, under what the drivers do. The second say what is left of the
AUC under readings of Sec. 4.2.4 that no driver has: who goes back to the last save, the network or one server's rows, and whether
the samples since then come again. There a run is parted at the save and at the death, and goes on with what each reading keeps.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from lib import Failure, Mishaps, RowStore, Run, Workload
from lib.protocols.persia import Hybrid
from lib.store.rows import Rows, Uniform, place_rows
from notebooks import study
from notebooks.deaths import account
from notebooks.persia import tasks
from notebooks.planted_control import CONTROL, PlantedHybrid

DAYS = 20
"""In a pass: the finest share of it at which it can be parted. The teacher turns as much as in five days of the other tasks."""
SAVE, DEATH = 12, 14
"""Days after which the newest save was made, of one in every three days, and after which a node dies."""

WITH_EMBEDDING_WORKERS = "hybrid, embedding workers"
"""The hybrid whose rows come by way of embedding workers, one for each server."""
MODES = ("hybrid", WITH_EMBEDDING_WORKERS, "sync", "frozen", CONTROL)
"""What nothing befalls."""
DROPPED = 0.14
"""The share of its rows' gradients that the planted control, a hybrid, drops: it loses 0.006 of the gain on tuning seeds, two
margins."""

CASES = {
    "a PS attaches again": "server0",
    "a PS takes all back": "server0",
    "an NN worker takes all back": "worker1",
    "an NN worker leaves": "worker1",
    "an embedding worker dies": "embedding0",
    "late and lost messages": None,
}
"""What befalls a run: which node dies. A PS attaches again where its rows are in shared memory."""

READINGS = ("a PS alone goes back", "NN workers go back", "NN workers go back, data again", "all go back")
"""To the save; who is not named keeps what it has, and the samples go on where they were unless it says so."""


def task(samples: int, seed: int) -> Workload:
    workload = tasks.learning_task("criteo", samples, world=seed)
    return replace(workload, days=DAYS, drift=workload.drift * workload.days / DAYS)


def job(samples: int, seed: int, subject: str = "hybrid") -> dict:
    """A run without a fault, saved as often as the faulty ones."""
    workload = task(samples, seed)
    cluster = tasks.small(workload)
    between = {"embedding_workers": cluster.servers} if subject in (WITH_EMBEDDING_WORKERS, CONTROL) else {}
    rule, every = tasks.MODES[subject.split(",")[0]], samples * 3 // DAYS
    rule = PlantedHybrid(dropped=DROPPED) if subject == CONTROL else rule
    return study.job(workload, rule, cluster, seed, trace=True, checkpoint_every=every, **between)


def mode_of(case: str) -> str:
    """The mode of a case without its fault."""
    return WITH_EMBEDDING_WORKERS if "embedding worker" in case else "hybrid"


def fault_job(case: str, samples: int, seed: int, whole: Run, outage: int = 20) -> dict:
    """The run that is `whole` without it. After `outage` steps a process is there again: as long as a server with a million rows
    takes on this machine (its page)."""
    base = job(samples, seed, mode_of(case))
    step = pace(whole)
    cluster = replace(base["cluster"], patience=2 * step)
    if case == "an NN worker takes all back":
        base["protocol"] = replace(base["protocol"], rolls_back=True)
    if CASES[case] is None:
        mishaps = Mishaps(late=0.01, delay=step, lost=0.001, retry=2 * step)
        return base | {"cluster": replace(cluster, mishaps=mishaps)}
    if case == "a PS attaches again":
        base["store"] = RowStore(shared_memory=True)
    at = DEATH / DAYS * whole.summary["virtual_seconds"]
    failure = Failure(node=CASES[case], kind="dies", at=at, lasts=outage * step)
    return base | {"cluster": replace(cluster, failures=(failure,))}


def outcome(case: str, seed: int, run: Run, whole: Run, samples: int, outage: int = 20) -> dict:
    """The ledger of a faulty run and its time over that of the run without a fault. A worker that leaves leaves out its share
    of the batches until the others notice, and what it had read ahead. Rows can miss what an embedding worker had
    buffered, or what a server had taken and not stored."""
    away = outage + 2 + Hybrid().tau + 2
    found = account(run, task(samples, seed), hands=away if case == "an NN worker leaves" else 0)
    abandoned, buffered = (run.summary.get(name, 0) for name in ("abandoned", "batches_abandoned"))
    return found | {
        "abandoned": abandoned,
        "buffered": buffered,
        "lost at a PS": run.summary.get("gradients_lost_at_servers", 0),
        "unaccounted": found["unaccounted"] + max(0, abandoned - buffered),
        "auc": study.quality(run, "auc"),
        "times as long": found["seconds"] / whole.summary["virtual_seconds"],
        "standstill, steps": found["standstill"] / pace(whole),
    }


def pace(whole: Run) -> float:
    """Seconds of a step."""
    return whole.summary["virtual_seconds"] / (whole.summary["issued"] / tasks.GPUS)


def readings(samples: int, seeds: Sequence[int]) -> tuple[pd.DataFrame, list[Run]]:
    """The final AUC of each reading and without a death; and all runs."""
    saved = _parts(samples, dict.fromkeys(seeds), SAVE)
    dead = _parts(samples, saved, DEATH)

    def on(subject: str, seed: int) -> dict:
        return _part(samples, seed, DAYS, restored(subject, saved[seed], dead[seed]))

    data, runs = study.run_grid(on, study.grid(subject=("nobody dies", *READINGS), seed=seeds), auc="auc")
    return data, [*saved.values(), *dead.values(), *runs]


def restored(reading: str, saved: Run, dead: Run) -> Run:
    """A run whose model is what a death leaves of `dead` where `saved` is the newest save."""
    if reading == "nobody dies":
        return dead
    old, new = saved.model, dead.model
    model = {
        "a PS alone goes back": lambda: replace(new, rows=restore_one_server(old.rows, new.rows)),
        "NN workers go back": lambda: replace(new, dense=old.dense),
        "NN workers go back, data again": lambda: replace(new, dense=old.dense, next_sample=old.next_sample),
        "all go back": lambda: replace(old, next_sample=new.next_sample),
    }[reading]()
    named = hashlib.sha256(f"{reading} {saved.digest} {dead.digest}".encode()).hexdigest()
    return replace(dead, kept=model, digest=named)


def restore_one_server(old: Mapping[str, Rows], new: Mapping[str, Rows]) -> dict[str, Rows]:
    """The first server's rows as they were, the second's as they are."""
    spread, found = Uniform(shards=2), {}
    for table, rows in new.items():
        parts = [place_rows([old[table]], table, spread)[0], *place_rows([rows], table, spread)[1:]]
        [found[table]] = place_rows(parts, table, Uniform(shards=1))
    return found


def _parts(samples: int, starts: Mapping[int, Run | None], until: int) -> dict[int, Run]:
    """Seed -> the run from its start."""
    return study.run({seed: _part(samples, seed, until, start) | {"keep": True} for seed, start in starts.items()})


def _part(samples: int, seed: int, until: int, start: Run | None) -> dict:
    """A run up to the end of a day."""
    base = job(samples, seed)
    base.pop("checkpoint_every")
    cut = replace(base["workload"], samples=samples * until // DAYS, days=until)
    return base | {"workload": cut, "trace": False} | ({"start": start} if start else {})
