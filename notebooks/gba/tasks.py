"""GBA's three tasks, the setting of every mode in them, and the switching study of its Figure 6.

Su et al., "GBA", NeurIPS 2022, Section 5 and Tab. 5.1. Kept are the optimisers' kinds and rates, the thresholds, the age of
gradients, and all ratios of workers and of local batches, so that Sync's and GBA's global batches are equal, BSP's is 62 to 78 %
of them and Hop-BW's 250 to 470 %; and of Criteo, how many updates the base, a day and the study have. Scaled down are the data,
the models' widths and the batches, and where gradients are computed, the workers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

from lib import (
    Adagrad,
    Adam,
    BadOption,
    Lognormal,
    Phase,
    Rule,
    Run,
    Schedule,
    Slowdown,
    VirtualCluster,
    Workload,
    workloads,
)
from lib.options.checked import Checked, Count, Natural, NotNegative, Positive
from lib.options.yaml_source import load, read
from lib.protocols.baselines import BSP, Async, Frozen, Sync
from lib.protocols.gba import GBA
from lib.protocols.hop import HopBS, HopBW
from lib.store.optim import Optimizer
from lib.tasks import prepared_datasets
from lib.tasks.workload import dense_parameters
from notebooks import clusters, setting, study
from notebooks.gba.throughput import SIGMA
from notebooks.planted_control import CONTROL, PlantedControl

MODES = ("sync", "gba", "hop-bw", "hop-bs", "bsp", "async")
MOVING = 0.05
"""Time to bring the dense vector to a worker and back over its idle link, over that of computing Async's batch.

Tab. 5.2 leaves room for no more: on Criteo, GBA with batches of 12.8 thousand is as fast as Async with 5 thousand, to 0.4 % and
with a standard deviation of 3 % each. If a batch cost 5 % of Async's whatever its samples, GBA would be 3 % faster."""
HELD = 0.2
"""Share of a batch's time for which its worker holds the parameters that it has read; for the rest it makes the batch."""
SERVERS = 12 / 100
"""Machines of servers for each worker: in Fig. 7, 800 workers take and bring 300 dense vectors a second (see Figure 1)."""
LATENCY = 1e-6
"""50 us with the paper's batches of 0.15 to 4.4 s (Tab. 5.2, workers * batch / QPS), shortened as our batches are."""

DROPPED = 0.7
"""The share of updates that the planted control leaves out: 0.4 of them cost 9 % of what Figure 6's days bring, 0.6 cost 16 %
(two tuning seeds); 20 % are wanted."""


@dataclass(frozen=True, kw_only=True)
class Size(Checked):
    """How much of a task is trained, in one profile."""

    base: Count
    """Days of Sync before the study."""
    days: Count
    """Days under each mode, and days under Sync after them."""
    day: Count
    """Samples of a day."""
    fewer: Count = 1
    """How many times fewer workers there are than in the paper, in every mode, and servers; batches, and ratios of all, stay."""
    model: str = ""
    """Another workload than the task's, where that buys the paper's number of updates."""
    modes: tuple[str, ...] = MODES
    """Figure 6's."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the workload."""


@dataclass(frozen=True, kw_only=True)
class Printed(Checked):
    """A task's figures in the paper's Tab. 5.1 and Sec. 5.1."""

    sync: Count
    """Samples of a worker's step under Sync, Hop-BS, BSP and Hop-BW."""
    gba: Count
    lone: Count
    """Under Async."""
    adam: Positive
    """The learning rate of all modes but Async; ours too."""
    adagrad: Positive
    """Async's; ours too."""
    days: str
    """Of the base, and of the study."""
    day: Count
    """Samples of a day."""


@dataclass(frozen=True, kw_only=True)
class Task(Checked):
    """One of the paper's tasks; `tasks.yaml` has all three."""

    name: str
    workload_name: str
    sync: tuple[Count, Count]
    """Sync's workers, and the samples of a worker's step; Hop-BS, BSP and Hop-BW have the second too."""
    others: tuple[Count, Count]
    """The workers of all other modes, and GBA's samples of a worker's step: its global batch is Sync's."""
    lone: Count
    """Samples of a step under Async."""
    iota: NotNegative
    bound: Natural
    """b1 of Hop-BS."""
    gathered: Count
    """b2 of BSP."""
    spare: Natural
    """b3 of Hop-BW."""
    printed: Printed
    sizes: Mapping[str, Size]
    """Profile -> size."""
    servers: Count = 4
    """As they are simulated: each stands for several machines."""
    moving: Positive = MOVING
    kind: str = "clicks"
    """Of the real data that it can train on."""
    rows_divided_by: Literal["met", "all"] = "met"
    """By what a row's summed gradient is divided in every mode: the workers that met its id, as the paper's Algorithm 2 has it,
    or all of them (joined rows), so that a global batch has one gradient however it is cut."""

    def workload(self, profile: str) -> Workload:
        """The stream: base, the modes' days, and Sync's days after them."""
        size = self.sizes[profile]
        days = size.base + 2 * size.days
        whole = {
            "samples": days * size.day,
            "days": days,
            "batch_size": self.sync[1],
            **at_rate(self.adam),
            **size.options,
        }
        name = size.model or self.workload_name
        if setting.data() and setting.holds(self.kind):  # a task of another kind is only timed there
            whole = setting.with_data(name, whole)
        return workloads.get(name, "full" if profile == "full" else "smoke", **whole)

    @property
    def adam(self) -> Adam:
        return Adam(lr=self.printed.adam)

    @property
    def adagrad(self) -> Adagrad:
        return Adagrad(lr=self.printed.adagrad)

    def at(self, profile: str) -> Self:
        """With that profile's workers, servers and batches, and the days of the folder of real data, if there is one."""
        fewer, printed = self.sizes[profile].fewer, self.printed
        batches = {"sync": self.sync[1], "others": self.others[1], "lone": self.lone}
        if profile == "full":
            batches = {"sync": printed.sync, "others": printed.gba, "lone": printed.lone}
        crews = {name: (getattr(self, name)[0] // fewer, batches[name]) for name in ("sync", "others")}
        own = {
            "gathered": self.gathered // fewer,
            "spare": self.spare // fewer,
            "servers": max(1, self.servers // fewer),
        }
        if setting.data():
            own["sizes"] = {**self.sizes, profile: self._on_data(self.sizes[profile])}
        return replace(self, lone=batches["lone"], **own, **crews)

    def _on_data(self, size: Size) -> Size:
        """The base, the modes' days and Sync's after them as thirds of the folder's days, all of which are trained on."""
        log = prepared_datasets.read_clicks(setting.data(), behaviours=self.kind == "behaviours")
        days = log.day(log.samples - 1) + 1
        if days < 3:
            raise BadOption(f"data={setting.data()!r} has {days} days of training; switching needs at least 3")
        each = days // 3
        return replace(size, base=days - 2 * each, days=each, day=max(1, log.samples // days))

    def rule(self, mode: str) -> Rule:
        kinds = {"sync": Sync, "async": Async, "one worker": Async, "frozen": Frozen}
        kinds |= {"gba": partial(GBA, iota=self.iota), "hop-bw": partial(HopBW, spare=self.spare)}
        kinds |= {CONTROL: partial(PlantedControl, dropped=DROPPED)}
        kinds |= {"hop-bs": partial(HopBS, bound=self.bound), "bsp": partial(BSP, size=self.gathered)}
        return kinds[mode](rows_divided_by=self.rows_divided_by)

    def phase(self, mode: str, **options) -> Phase:
        """A phase in that mode, with the paper's optimiser; `options` are a Phase's own and go before the task's.

        *One worker* is Async by one, the control: its updates are as large and as many, and none is stale."""
        batch = {"gba": self.others[1], "async": self.lone, "one worker": self.lone}.get(mode, self.sync[1])
        own: dict[str, Any] = {"protocol": self.rule(mode), "workers": self.workers(mode), "batch_size": batch}
        if mode == "one worker":
            own["workers"] = 1
        if mode in ("async", "one worker"):
            own |= at_rate(self.adagrad)
        return Phase(**own | options)

    def workers(self, mode: str) -> int:
        return (self.sync if mode in ("sync", "frozen", CONTROL) else self.others)[0]

    def cluster(
        self,
        profile: str,
        mode: str,
        slowdown: Slowdown | float = SIGMA,
        workers: int | None = None,
        each: bool = False,
        held: float = HELD,
    ) -> VirtualCluster:
        """The paper's cluster. However many workers there are, they have the same cores, links and servers together; with `each`,
        more workers bring more of them. A batch takes its time whatever share of it parameters are `held` for."""
        cluster = clusters.gba()
        workers = workers or self.workers(mode)
        nodes = workers if each else self.others[0]
        alone = replace(self.workload(profile), batch_size=self.lone)
        vector = 4 * dense_parameters(alone)
        seconds = 2 * vector / cluster.worker.bandwidth / self.moving
        flops, reading = alone.work().flops / (held * seconds), (1 - held) * seconds / self.lone
        worker = replace(cluster.worker, flops=flops, reading=reading, latency=LATENCY)
        server = replace(cluster.server, latency=LATENCY)
        fold, share = SERVERS * nodes / self.servers, nodes / workers  # so many machines are simulated as one
        return replace(
            cluster,
            workers=workers,
            servers=self.servers,
            worker=replace(clusters.scale(worker, share, "flops", "bandwidth"), reading=reading / share),
            server=clusters.scale(server, fold, "flops", "memory", "core_memory", "bandwidth"),
            slowdown=Lognormal(sigma=slowdown) if isinstance(slowdown, (int, float)) else slowdown,
        )

    def job(
        self, profile: str, mode: str, seed: int, slowdown: Slowdown | float = SIGMA, held: float = HELD, **phase
    ) -> dict[str, Any]:
        """What `lib.train` takes for one phase in a mode, without a trace; each seed has a world of its own."""
        workload, plan = replace(self.workload(profile), world=seed), Schedule(phases=(self.phase(mode, **phase),))
        cluster = self.cluster(profile, mode, slowdown, phase.get("workers"), held=held)
        return study.job(workload, plan, cluster, seed)

    def speed_job(
        self, profile: str, mode: str, seed: int, slowdown: Slowdown | float, batches: int, **phase
    ) -> dict[str, Any]:
        """A timing run. With as many batches for each worker, modes with as many workers meet
        the same slowdowns; with others, two equally fast modes of 100 workers and 16 batches differ by 3 per cent by chance."""
        own = self.phase(mode, **phase)
        samples = batches * own.workers * own.batch_size
        workload = replace(self.workload(profile), samples=samples, days=1, evaluation_samples=100)
        return study.timing(self.job(profile, mode, seed, slowdown, **phase)) | {"workload": workload}


def at_rate(kind: Optimizer) -> dict[str, Optimizer]:
    """The options that give dense parameters and rows that optimiser."""
    return {"dense_optimizer": kind, "row_optimizer": kind}


_FILE = Path(__file__).with_suffix(".yaml")

TASKS: Mapping[str, Task] = {task.name: task for task in (read(Task, case, _FILE) for case in load(_FILE))}


def chosen(profile: str, names: Iterable[str]) -> dict[str, Task]:
    """Those of the tasks that a page trains, with a profile's sizes: of a folder of real data, what it has data for."""
    return {name: TASKS[name].at(profile) for name in setting.served({name: TASKS[name].kind for name in names})}


def settings(tasks: Iterable[Task], profile: str) -> pd.DataFrame:
    """What is trained, and how, each next to what the paper has."""
    columns = {}
    for task in tasks:
        size, paper, full = task.sizes[profile], task.printed, TASKS[task.name]
        crews, steps = "workers of Sync, of the others", "samples a step: {}".format
        columns[task.name, "here"] = {
            crews: f"{task.sync[0]}, {task.others[0]}",
            steps("Sync, Hop-BS, BSP, Hop-BW"): task.sync[1],
            steps("GBA"): task.others[1],
            steps("Async"): task.lone,
            "iota; b1 of Hop-BS": f"{task.iota:g}; {task.bound}",
            "b2 of BSP; b3 of Hop-BW": f"{task.gathered}; {task.spare}",
            "learning rate: Adam; Adagrad (Async)": f"{paper.adam:g}; {paper.adagrad:g}",
            "days of the base + of a mode": f"{size.base} + {size.days}",
            "samples a day": f"{size.day:,}",
        }
        printed = [f"{full.sync[0]}, {full.others[0]}", *(f"{each:,}" for each in (paper.sync, paper.gba, paper.lone))]
        printed += [f"{task.iota:g}; {task.bound}", f"{full.gathered}; {full.spare}"]
        printed += [f"{paper.adam:g}; {paper.adagrad:g}", paper.days, f"{paper.day:,}"]
        columns[task.name, "paper"] = dict(zip(columns[task.name, "here"], printed, strict=True))
    found = pd.DataFrame(columns).rename_axis("setting")
    return found.rename_axis(["task", None], axis=1).sort_index(axis=1)


def figures(run: Run, **case: Any) -> dict[str, Any]:
    """How old its gradients were, and how many were left out; frozen applies nothing."""
    ages = [f"{name}_{figure}" for name in ("staleness", "data_staleness") for figure in ("mean", "max")]
    return {name: run.summary.get(name) for name in (*ages, "decayed", "dropped")}


def daily_figures(run: Run, **case: Any) -> dict[str, Any]:
    """Of a run that was evaluated daily: the mean AUC over its days and that of the first, its speed and the same figures."""
    daily = study.course(run, "auc")
    return {"auc": daily.mean(), "first": daily.iloc[0], "qps": run.summary.get("qps"), **figures(run)}


def samples_by(run: Run, times: Sequence[float]) -> np.ndarray:
    """Samples computed by each of these times; a batch counts as it is being computed."""
    start, end = run.trace.loc[run.trace["kind"] == "compute", ["start", "end"]].to_numpy().T
    done = ((np.asarray(times)[:, None] - start) / (end - start)).clip(0, 1).sum(axis=1)
    return done * run.provenance["workload"]["batch_size"]
