"""Random runs: a small workload, any protocol or schedule of them, and everything that may befall the cluster.

A case is plain data, the arguments of `lib.train` by their names, so that it can be printed as a call. `cases` is a strategy of
hypothesis, which makes a case that breaks something smaller: the first of several choices is the simplest.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from lib import workloads
from lib.protocols import ALL, get
from lib.store.spec import CODECS

Case = dict[str, Any]

WORKLOADS: dict[str, Case] = {
    "ctr-synthetic": {"vocabulary": 30, "fields": 2, "dim": 2, "hidden": [4], "dense_features": 1},
    "kg-synthetic": {"entities": 40, "triples": 200, "relations": 3, "dim": 4, "evaluation_triples": 10},
    "quadratic": {"dim": 4},
    "cifar10-wrn": {"side": 8, "classes": 2, "channels": 1, "noise": 1.0, "norm": "running"},
}
WORKLOADS = {name: {"batch_size": 8, **options} for name, options in WORKLOADS.items()}
WORKLOADS["ctr-synthetic"]["evaluation_samples"], WORKLOADS["cifar10-wrn"]["evaluation_samples"] = 40, 20
"""So small that a run takes a tenth of a second."""
FLOPS = 1e6
"""A worker's operations a second, so few that computing takes longer than a message."""
STEP = {"local": 5e-3, "ray": 2e-2}
"""About the seconds that a step takes on a wall clock."""
START = 8.0
"""Seconds in which Ray has started processes again, on a slow machine too."""
RUNNING = 0.5
"""Share of the cases of rules that read running statistics that have some."""
LIGHT = 0.25
"""Share of the cases of clicks whose model brings its gradients itself."""
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "bsp": {"size": (1, 2, 5)},
    "async": {"pull_ahead": (0, 0, 2)},
    "ssp": {"bound": (0, 1, 3)},
    "dynamic-averaging": {"every": (1, 2), "distance": (0.0, 0.05, 0.3)},
    "downpour": {"every": (1, 2), "sync_servers": (1, 2), "optimizer": (None, {"name": "adagrad", "lr": 0.1})},
    "dc-asgd": {"decay": (None, 0.0, 0.9)},
    "hop-bs": {"bound": (0, 1, 2), "pull_ahead": (0, 0, 1, 3)},
    "hop-bw": {"spare": (0, 1, 2)},
    "gba": {"size": (1, 2, 5), "iota": (0, 1, 4)},
    "all-reduce": {"buckets": (1, 3)},
    "prague": {"size": (2, 3), "every": (1, 3)},
    "swarm-adam": {"every": (1, 3)},
    "s-easgd": {"alpha": (0.0, 0.3), "sync_servers": (1, 2), "worker_threads": (1, 2), "until": ("own", "all")},
    "s-ma": {"alpha": (0.0, 0.3), "worker_threads": (1, 2), "until": ("own", "all")},
    "s-bmuf": {"eta": (0.5, 1.0), "momentum": (0.0, 0.5), "worker_threads": (1, 2), "until": ("own", "all")},
    "fr-easgd": {"every": (1, 3), "sync_servers": (1, 2), "worker_threads": (1, 2), "answer": ("new", "old")},
    "fr-ma": {"every": (1, 3), "worker_threads": (1, 2)},
    "fr-bmuf": {"every": (1, 3), "momentum": (0.0, 0.5), "worker_threads": (1, 2)},
    "hybrid": {"tau": (0, 1, 4), "counts": ("own", "all"), "buckets": (1, 3)},
    "ds-sync": {"size": (1, 2, 3), "every": (1, 2), "whole": (1, 3), "place": ("before", "beside", "after")},
    "ringmaster": {"limit": (None, 1, 3), "pull_ahead": (0, 0, 2)},
    "admission": {"lag": (0, 1, 2), "size": (None, 1, 3)},
    "semi-sync": {"pull_ahead": (0, 1, 3)},
    "streaming-diloco": {"every": (2, 4), "fragments": (1, 2), "overlap": (0, 1, 3), "alpha": (0.0, 0.5)},
    "eager-diloco": {"every": (1, 2, 3)},
    "async-local-sgd": {"every": (1, 2), "period": (0.0, 0.1), "delay": (1, 3), "sync_servers": (1, 2)},
    "noloco": {"every": (1, 2)},
    "des-loc": {"every": (1, 2), "first": (1, 2), "second": (1, 3)},
    "2d-sparse": {"every": (1, 3), "buckets": (1, 3)},
    "pipelined": {"in_flight": (1, 3)},
    "oac": {"in_flight": (1, 3, 8), "readers": (1, 4), "writers": (1, 4), "queue": (1, 8)},
}
SERVER = [name for name in ALL if ALL[name].family == "server"]
REPLICA = [name for name in ALL if ALL[name].family == "replica"]
PIPELINE = [name for name in ALL if ALL[name].family == "pipeline"]


@st.composite
def cases(draw: st.DrawFn, cluster: str = "virtual") -> Case:
    """A run on that cluster."""
    source = Draw(draw, cluster)
    case = source.case()
    if case["workload"] == "ctr-synthetic" and source.chance(LIGHT):
        case["workload"] = "clicks-light"
    return source.with_statistics(case)


def _flops(name: str, **options: Any) -> float:
    return workloads.get(name, **(options or WORKLOADS[name])).work().flops


def protocols_of(case: Case) -> str:
    """What the case trains under, as one name."""
    if isinstance(case["protocol"], str):
        return case["protocol"]
    return " > ".join(map(_phase_name, case["protocol"]["phases"]))


def families(case: Case) -> set[str]:
    """The families of rules that it needs."""
    named = protocols_of(case).replace(" > ", "+").split("+")
    return {ALL[name].family for name in named}


def looked_up(case: Case) -> bool:
    """Whether all its rows are looked up at servers."""
    sparse = (name.split("+")[0] for name in protocols_of(case).split(" > "))
    return case["workload"] != "quadratic" and all(get(name).sparse.family == "server" for name in sparse)


def batches(case: Case) -> int:
    return -(-case["samples"] // case["batch_size"])


class Draw:
    """The parts of a case, as hypothesis draws them."""

    def __init__(self, draw: st.DrawFn, cluster: str):
        self._draw, self._cluster = draw, cluster

    def case(self) -> Case:
        virtual = self._cluster == "virtual"
        workers = self.one((1, 2, 3, 4, 6, 8, 13, 20) if virtual else (1, 2, 3, 4))
        scheduled = self.chance(0.25)
        protocol = self.schedule() if scheduled else self.protocol()
        case: Case = {"protocol": protocol} if scheduled else protocol
        case["cluster"] = self._cluster
        pipeline = "pipeline" in families(case)
        if not pipeline:
            case["workers"] = workers
        elif scheduled:
            workers = 4
        else:
            workers = 1
        case["workload"] = self.one(("ctr-synthetic",) * 6 + ("kg-synthetic", *(() if pipeline else ("quadratic",))))
        case |= WORKLOADS[case["workload"]]
        case["samples"] = 8 * self.below(2, 60 if virtual else 30) - self.below(0, 8)
        if virtual:
            case["worker.flops"] = FLOPS
        case["seed"] = self.below(0, 1000)
        case["servers"] = 1 if pipeline else self.one((1, 1, 2, 3))
        self.training(case, pipeline)
        self.weather(case, workers)
        if not pipeline and self.chance(0.1):
            self.readers(case, workers)
        if looked_up(case) and self.chance(0.15):
            self.embedding(case, workers)
        return case

    def with_statistics(self, case: Case) -> Case:
        """The case, or the same over a network with batch normalisation, whose statistics go with the mixes or in a mean of
        their own."""
        name = case["protocol"] if isinstance(case["protocol"], str) else ""
        others = {"days", "embedding_workers"} & case.keys()
        if name not in ("all-reduce", "ds-sync") or others or not self.chance(RUNNING):
            return case
        old = WORKLOADS["ctr-synthetic" if case["workload"] == "clicks-light" else case["workload"]]
        found = {
            key: each for key, each in case.items() if key not in old and not key.startswith(("store.", "pooling"))
        }
        found |= {"workload": "cifar10-wrn", **WORKLOADS["cifar10-wrn"]}
        if "worker.flops" in found:  # that steps take as long as the weather expects
            found["worker.flops"] *= _flops("cifar10-wrn") / _flops(case["workload"], **old)
        options: dict[str, tuple[Any, ...]] = {"statistics": ("naive", "pooled", "none"), "buckets": (1, 3, "tensor")}
        options |= {"overlapped": (False, True)} if name == "all-reduce" else {}
        return found | {key: self.one(values) for key, values in options.items()}

    def training(self, case: Case, pipeline: bool) -> None:
        """How it is trained, shared out and kept."""
        case["dense_optimizer"], case["row_optimizer"] = (
            {"name": self.one(("sgd", "momentum", "adagrad", "adam")), "lr": self.one((0.1, 0.01))} for _ in range(2)
        )
        if self.chance(0.08):
            case |= {"on_nan": "skip", "dense_optimizer": {"name": "sgd", "lr": 1e20}}
        if self.chance(0.1):
            case["lr_milestones"] = [self.one((0.0, 0.3, 0.9)), 0.5]
        if not pipeline and self.chance(0.5):
            case["feed"] = self.one(("split", "stream", "queue"))
        if not pipeline and self.chance(0.2):
            case["prefetch"] = self.below(0, 3)
        if case["workload"] == "ctr-synthetic" and self.chance(0.15):
            case |= {"evaluations": "daily", "days": self.below(1, 6)}
        elif self._cluster == "virtual" and self.chance(0.1):
            case["gradients"] = False
        elif self.chance(0.4):
            case["evaluations"] = self.below(2, 5)
        if self.chance(0.6):
            case["checkpoint_every"] = 8 * self.below(1, batches(case) + 2)
        if "gradients" not in case and self.chance(0.1):
            case["keep"] = True
        if case["workload"] != "quadratic" and self.chance(0.3):
            self.store(case)

    def store(self, case: Case) -> None:
        """Options of the rows' store; what a protocol without row servers has none of is left out."""
        case["store.max_rows"] = self.one((None, 10, 40))
        if self._cluster != "ray" and case.get("gradients", True) and self.chance(0.5):
            case["store.shared_memory"] = True
            if self.chance(0.2):
                case["store.journal"] = False
        if families(case) == {"server"}:
            case["store.rows"], case["store.gradients"] = self.one(tuple(CODECS)), self.one(tuple(CODECS))
            case["store.ids"] = self.one(("distinct", "entries", "samples"))
            case["store.placement"] = self.one(("uniform", "by-group", "by-cost"))
            case["store.locking"] = self.one(("table", "none"))
            if case["workload"] == "ctr-synthetic" and self.chance(0.4):
                case |= {"pooling": [1, 3], "store.pooling": "server", "store.ids": "distinct"}

    def weather(self, case: Case, workers: int) -> None:
        """Slowdowns, failures and mishaps, at times that fall into the run."""
        step = self.step(case)
        lasts = step * batches(case) / workers
        if self.chance(0.7):
            case["slowdown"] = self.slowdown(step)
        if self.chance(0.15) and "workers" in case:
            case["speeds"] = [self.one((0.3, 1.0, 2.0)) for _ in range(workers)]
        if self.chance(0.3):
            late, lost = self.one((0.0, 0.1, 0.5)), self.one((0.0, 0.1, 0.5))
            case["mishaps"] = {"late": late, "delay": self.seconds(step), "lost": lost, "retry": self.seconds(step)}
        if self.chance(0.5):
            case["patience"] = self.seconds(self.one((step, lasts / 3)))
            case["failures"] = [self.failure(case, workers, lasts) for _ in range(self.below(1, 4))]
        if case.get("store.shared_memory") and self.chance(0.7):
            self.servers_dying_again(case, lasts)

    def servers_dying_again(self, case: Case, lasts: float) -> None:
        """Deaths of servers early and late, so that some come after a return to a checkpoint, and after the run was resumed."""
        case.setdefault("patience", self.seconds(self.step(case)))
        early, late = (lasts * share for share in (0.3, 1.5))
        for at in (self.seconds(early), early + self.seconds(late - early)):
            server = f"server{self.below(0, case['servers'])}"
            death = {"node": server, "kind": "dies", "at": float(f"{at:.3g}"), "lasts": self.seconds(self.step(case))}
            case["failures"] = [*case.get("failures", ()), death]

    def readers(self, case: Case, workers: int) -> None:
        """Nodes that make the batches, one of which may die for a while."""
        case["reader_nodes"] = self.below(1, 3)
        if self._cluster == "virtual":
            case["server.reading"] = self.step(case) / 8
        if self.chance(0.3):
            lasts = self.step(case) * batches(case) / workers
            death = {"node": "reader0", "kind": "dies", "at": self.seconds(lasts), "lasts": self.seconds(lasts)}
            case["failures"] = [*case.get("failures", ()), death]

    def embedding(self, case: Case, workers: int) -> None:
        """Nodes that hold the batches' ids, any of which may die."""
        case["embedding_workers"] = self.below(1, 4)
        lasts = self.step(case) * batches(case) / workers
        if self.chance(0.6):
            which = self.one(("embedding0", "embedding*"))
            kind = self.one(("dies", "dies", "hangs"))
            death = {"node": which, "kind": kind, "at": self.seconds(lasts), "lasts": self.seconds(lasts)}
            if self.chance(0.5):
                death["every"] = death.pop("at") + lasts + self.rest(case)
            case["failures"] = [*case.get("failures", ()), death]

    def step(self, case: Case) -> float:
        """About the seconds that a batch takes."""
        if self._cluster != "virtual":
            return STEP[self._cluster]
        name = case["workload"]
        return workloads.get(name, **WORKLOADS[name]).work().flops / FLOPS

    def rest(self, case: Case) -> float:
        """Seconds that nothing befalls a node after it was struck: what dies too often never gets anywhere."""
        return START if self._cluster == "ray" else 40 * self.step(case)

    def failure(self, case: Case, workers: int, lasts: float) -> Case:
        """Servers die for a while only: without one nothing can go on; a pipeline's device too."""
        worker, server = f"worker{self.below(0, workers)}", f"server{self.below(0, case['servers'])}"
        roles = (worker,) * 4 + ("worker*", server, f"{worker} - {server}")
        node = self.one(roles)
        connection, alone = " - " in node, families(case) == {"pipeline"}
        kinds = ("dies",) if connection else ("dies", "dies", "hangs", "slows")
        failure: Case = {"node": node, "kind": self.one(kinds)}
        when = ("at", "at", "every") if connection or node == server else ("at", "at_batch", "every")
        which = self.one(when)
        failure[which] = (
            self.below(1, 12) if which == "at_batch" else self.seconds(lasts * (4 if which == "every" else 1))
        )
        if which == "every":
            failure[which] += lasts + self.rest(case)
        for_ever = failure["kind"] == "dies" and which != "every" and node == worker and not alone and workers > 1
        if not for_ever or self.chance(0.7):
            failure["lasts"] = self.seconds(lasts)
        if failure["kind"] == "slows":
            failure["factor"] = self.one((2.0, 20.0))
        return failure

    def slowdown(self, step: float) -> Any:
        on, off = self.seconds(10 * step), self.seconds(20 * step)
        return self.one(
            (
                *(0.3, 0.7, 2.0),
                {"name": "transient", "mean_on": on, "mean_off": off, "factor": 8.0},
                {"name": "empirical", "quantiles": [0.5, 1.0, 6.0], "seconds": [on], "shares": [0.8]},
            )
        )

    def protocol(self) -> Case:
        """A registered name or a pair, with options."""
        pairs = [f"{self.one(SERVER)}+{self.one((*SERVER, *REPLICA))}"]
        name = self.one(pairs if self.chance(0.15) else tuple(ALL))
        return {"protocol": name, **(self.options(name.split("+")[-1]) if self.chance(0.5) else {})}

    def schedule(self) -> Case:
        phases = [self.phase() for _ in range(self.below(2, 4))]
        for name in ("until_samples", "steps", "until_day"):
            phases[-1].pop(name, None)
        restart = {"restart": self.seconds(1e-3)} if self.chance(0.3) else {}
        return {"phases": phases, **restart}

    def phase(self) -> Case:
        name = self.one(tuple(ALL))
        phase = {"protocol": {"name": name, **(self.options(name) if self.chance(0.4) else {})}}
        limit = self.one(("steps", "until_samples"))
        phase[limit] = self.below(1, 8) if limit == "steps" else self.below(1, 300)
        if self.chance(0.3):
            phase["batch_size"] = self.one((4, 8, 16))
        if self.chance(0.2):
            phase["dense_optimizer"] = {"name": self.one(("sgd", "adam")), "lr": 0.01}
        return phase

    def options(self, name: str) -> Case:
        return {option: self.one(values) for option, values in OPTIONS.get(name, {}).items() if self.chance(0.5)}

    def one(self, things: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(things))

    def below(self, first: int, last: int) -> int:
        return self._draw(st.integers(first, last - 1))

    def chance(self, share: float) -> bool:
        """True in about that share of the cases; False is simpler."""
        return self._draw(st.integers(0, 99)) >= 100 * (1 - share)

    def seconds(self, most: float) -> float:
        """In few digits, so that a case is easy to read."""
        return max(1e-5, float(f"{most * self._draw(st.integers(0, 50)) / 50:.2g}"))


def _phase_name(phase: Case) -> str:
    return phase["protocol"]["name"]
