"""DS-Sync's Tables 2, 3 and 5: what the modes learn with 4 and with 16 workers on images, questions and clicks.

Of the paper's data sets of images, CIFAR-100 and ImageNet are trained where the page has a folder of them.

Settings that the paper gives stay as ratios of ours: the same optimiser, momentum and decay for all modes, one batch size a
worker. The paper gives all modes one learning rate, with 4 nodes and with 16: here BSP's best with 4 workers, on tuning seeds;
next to it each mode has its own best.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from lib import Lognormal, Node, Run, VirtualCluster, Workload, workloads
from lib.seeds import not_judging
from lib.tasks import prepared_datasets
from notebooks import grid_search, regime, setting, study
from notebooks.planted_control import CONTROL, PlantedControl

MODES = {"BSP": "all-reduce", "ASP": "async", "SSP": "hop-bs", "DS-Sync": "ds-sync"}
"""The paper's names -> the kit's. SSP's bound is not said."""

WORKERS = 4
"""Of the 4-node tables."""

RATES = (1 / 3, 1.0, 3.0)
"""Learning rates over the workload's own, from which on the best is looked for."""

FALLS = {"images": {"lr_milestones": (0.3, 0.6, 0.8), "lr_gamma": 0.2}}
"""CIFAR-10's learning rate is a fifth of what it was after epochs 60, 120 and 160 (Sec. 4.1). How many epochs there are is not
said; 200 is usual for this network. Questions and clicks have one rate."""

FOLDERS = {"cifar-100": "cifar100-wrn", "imagenet": "imagenet-wrn50-2"}
"""Data sets of images that need a folder -> the workload that is the paper's at full. Below full the small network of
synthetic images learns them, with the falls of the paper's rate."""

BESIDE = {"images": "loss", "questions": "em", "clicks": "logloss"}
"""What the tables have besides accuracy, F1 and AUC: log loss of CIFAR-10 and Criteo, exact matches of SQuAD."""

FROZEN = "frozen"
"""A model that stops training where the others begin: from there to the best is all that can be lost."""


DROPPED = {"images": 0.28, "questions": 0.2, "clicks": 0.12}
"""Shares of updates that the planted control leaves out. They were chosen when it left out single gradients, which harms less:
`planted_control.dose` says them anew before the next run that judges."""


class Task(NamedTuple):
    """One of the tables' data sets."""

    workload: Workload
    metric: str


MANY = {"evaluation_samples": 4_000}
"""Of images and questions, whose labels have little noise and whose thousand usual samples are too few to tell modes apart."""

TASKS = {
    "images": Task(workloads.get("cifar10-wrn", **MANY), "accuracy"),
    "questions": Task(workloads.get("squad-bert", kinds=4, words=8, slots=6, distractors=2, **MANY), "f1"),
    "clicks": Task(workloads.get("criteo-deepfm"), "auc"),
}
"""Synthetic twins of CIFAR-10 for a wide residual network (SGD with momentum), SQuAD for BERT, Criteo for DeepFM (Adam).
Questions ask for few kinds of words: a network that starts from nothing learns them in a jump, which must be over when a run is,
since the paper's was pretrained."""

LONGER = {"questions": 2, "clicks": 20, "clicks, 16": 10}
"""Of a task, or of one with so many workers, times the steps of images: of questions for the same reason, of clicks so that 250
steps of 4 workers and 200 of 16 come to the 5,000 and 1,980 iterations of Table 4."""


def job(
    task: str,
    mode: str,
    seed: int,
    *,
    steps: int,
    evaluations: int | Sequence[float],
    rate: float = 1.0,
    workers: int = WORKERS,
) -> dict:
    """A run of so many steps of each worker, 0: of as many as the workload's pass has; steps vary by a tenth between workers."""
    own = replace(task_workload(task), **({} if setting.is_full() else falls(task)))
    kinds = {each: getattr(own, each) for each in ("dense_optimizer", "row_optimizer")}
    scaled: dict = {each: replace(kind, lr=rate * kind.lr) for each, kind in kinds.items()}
    if "world" in {each.name for each in fields(own)}:  # a question's truth is in its words, alike in all worlds
        scaled["world"] = seed
    samples = workers * steps * LONGER.get(f"{task}, {workers}", LONGER.get(task, 1)) * own.batch_size or own.samples
    workload = replace(own, samples=samples, **scaled)
    rule = PlantedControl(dropped=DROPPED[task]) if mode == CONTROL else MODES.get(mode, FROZEN)
    return study.job(workload, rule, cluster(workload, workers), seed, evaluations=evaluations)


def tasks(*names: str) -> list[str]:
    """The tasks that a page trains, of some or all: every one, or those of the folder of real data."""
    found = setting.served({task: task for task in TASKS})
    return [task for task in found if task in (names or TASKS)]


def task_workload(task: str) -> Workload:
    """What a task trains: its own at smoke and laptop, the paper's at full; real data if there is a folder of it."""
    if setting.is_full():
        name = FOLDERS.get(of_folder(task), TASKS[task].workload.name)
        return setting.workload(name, "dssync", f"{of_folder(task)}, {WORKERS}")
    return replace(TASKS[task].workload, **({"data": setting.data()} if setting.data() else {}))


def of_folder(task: str) -> str:
    """The task's column in `regime.yaml`: the data set's name where the folder of images is one of `FOLDERS`."""
    held = prepared_datasets.Partitions(setting.data()).manifest["dataset"] if setting.data() else ""
    return held if task == "images" and held in FOLDERS else task


def falls(task: str) -> dict[str, object]:
    """When and by what the task's learning rates fall, in shares of a run."""
    if of_folder(task) not in FOLDERS:
        return FALLS.get(task, {})
    full = workloads.get(FOLDERS[of_folder(task)], "full")
    return {"lr_milestones": full.lr_milestones, "lr_gamma": full.lr_gamma}


def folder_rows(data: pd.DataFrame, paper: str) -> pd.DataFrame:
    """The paper's rows of data sets that need a folder: best accuracy and best top-5 accuracy in per cent, next to the means of
    our runs where the page has that folder."""
    columns = [name for name in ("best", "top-5") if name in data]
    ours = 100 * data[data["task"] == "images"].groupby("mode")[columns].mean()
    rows = []
    for name, values in study.paper_table("dssync", paper).items():
        held, metric = name.lower().split(", ")
        for mode, value in values.items():
            found = f"needs data=FOLDER of {held}"
            if held == of_folder("images"):
                found = f"{ours.loc[mode, 'top-5' if metric == 'top-5' else 'best']:.2f}"
            rows.append({"data": name, "mode": mode, "paper": value, "here": found})
    return pd.DataFrame(rows).set_index(["data", "mode"])


def cluster(workload: Workload, workers: int = WORKERS) -> VirtualCluster:
    """A second a step, compared with which nothing that is sent takes long."""
    node = Node(flops=workload.work().flops, core_memory=1e30)
    return VirtualCluster(workers=workers, worker=node, slowdown=Lognormal(sigma=0.1), collective="ring")


def with_constant_rate(made: dict) -> dict:
    """The same run, whose rates stay what they are at first."""
    return made | {"workload": replace(made["workload"], lr_milestones=())}


def best(run: Run, task: str) -> float:
    """The best of a run's evaluations, as the paper takes it."""
    return float(study.course(run, TASKS[task].metric).max())


def ends(run: Run, task: str, **case) -> dict[str, float]:
    """The quality of a run and, as the paper takes it, the best of its evaluations; its quality by labels; what its last fifth
    brought, the best of what the paper has next to it, and how long it was. Where the last fifth brings as much as a margin, a
    curve is too steep to be judged by it."""
    metric, other = TASKS[task].metric, study.course(run, BESIDE[task])
    steps = run.summary["issued"] / run.provenance["cluster"]["workers"]
    found = study.quality_figures(run, "quality", metric) | {"best": best(run, task), "steps of a worker": steps}
    course = study.course(run, metric)
    samples = run.history["samples"][course.index]
    early = course[samples <= study.EARLY * samples.iloc[-1]]
    if "top5" in run.history:
        found["top-5"] = float(run.history["top5"].max())
    found["last fifth"] = float(course.iloc[-1] - early.iloc[-1]) if len(early) else 0.0
    return found | {"log loss or EM": float(other.max() if BESIDE[task] == "em" else other.min())}


def tune(
    tasks: Iterable[str], modes: Sequence[str], seeds: Iterable[int], rates: Sequence[float] = RATES, **shape: int
) -> pd.DataFrame:
    """The curve of each mode's quality on each task over its rate, on tuning seeds."""
    seeds = not_judging(seeds, "the learning rates of DS-Sync's tables")

    def quality(run: Run, task: str, **_) -> float:
        return study.quality(run, TASKS[task].metric)

    return grid_search.curve(partial(job, **shape), quality, {"rate": rates}, seeds, task=tasks, mode=modes)


def at_best(curve: pd.DataFrame, alike: Container[str] = (), **shape) -> Callable[..., dict]:
    """The job of a case at its task and mode's best tried rate; modes that are `alike` have BSP's."""
    return grid_search.at_best(partial(job, **shape), curve, "BSP", alike)


def histories(cases: Iterable[study.Case], runs: Sequence[Run]) -> pd.DataFrame:
    """The metric at each evaluation, by samples and by steps of each worker."""
    parts = []
    for case, run in zip(cases, runs, strict=True):
        task, workers = TASKS[case["task"]], run.provenance["cluster"]["workers"]
        found = study.histories([case], [run], "samples", task.metric).rename(columns={task.metric: "metric"})
        step = (found["samples"] / (workers * run.provenance["workload"]["batch_size"])).round(2)
        parts.append(found.assign(step=step, workers=workers, protocol=found["mode"]))
    return pd.concat(parts, ignore_index=True)


def claim_table(data: pd.DataFrame, own: str = "") -> pd.DataFrame:
    """The rows of claims: each run's quality, and the best of its evaluations; `own` marks modes at their own rates."""
    return data.assign(subject=data["task"] + ", " + data["mode"] + own)


def regimes(data: pd.DataFrame, runs: Sequence[Run], workers: int) -> pd.DataFrame:
    """DS-Sync's regime next to the paper's with so many workers; what training brings is BSP's quality minus frozen's."""
    frozen = data[data["mode"] == FROZEN].groupby("task")["quality"].mean()
    ours = data[data["mode"] == "DS-Sync"]
    brings = study.baseline(data, "quality", ["task", "seed"], mode="BSP")[data["mode"] == "DS-Sync"]
    brings -= ours["task"].map(frozen)
    return regime.comparison(
        ours.assign(brings=brings, task=ours["task"].map(of_folder) + f", {workers}"), runs, "dssync"
    )
