"""At full each page of quality trains what its paper prints: parameters or operations, batch, rates, falls, passes, workers."""

from dataclasses import replace

import pytest

from lib.tasks.workload import dense_parameters
from notebooks import regime, setting
from notebooks.dssync import quality
from notebooks.gba import tasks as gba
from notebooks.oac import plateau
from notebooks.oac import tasks as oac
from notebooks.persia import tasks as persia
from notebooks.shadowsync import tasks as shadowsync

EXCEPTIONS = {
    ("dssync", "questions, 4", "parameters"): "synthetic questions have few words; SQuAD's 30,522 are 31 million more"
}
"""Paper, task and cell that differ from what is printed -> the reason."""


@pytest.fixture(autouse=True)
def full():
    setting.use("full")


def check(paper, task, workload, workers, **own):
    """Compare each cell that the paper prints and that a workload decides."""
    printed = regime.paper_regime(paper)[task]
    found = {
        "workers": workers,
        "batch": workload.batch_size,
        "rate of dense": workload.dense_optimizer.lr,
        "rate of rows": workload.row_optimizer.lr,
        "falls": len(workload.lr_milestones),
        "fall": workload.lr_gamma,
        "decay": workload.dense_optimizer.weight_decay or getattr(workload, "weight_decay", 0.0),
        **own,
    }
    if "parameters" in printed:
        found["parameters"] = dense_parameters(workload)
    wrong = {}
    for cell in printed.keys() & found.keys():
        near = 0.1 if cell in ("parameters", "operations") else 1e-9
        if found[cell] != pytest.approx(printed[cell], rel=near) and (paper, task, cell) not in EXCEPTIONS:
            wrong[cell] = found[cell], printed[cell]
    assert not wrong, f"{paper}, {task}: here, in the paper: {wrong}"
    return found


@pytest.mark.parametrize("task", quality.TASKS)
@pytest.mark.parametrize("workers", [4, 16])
def test_dssync(task, workers):
    job = quality.job(task, "DS-Sync", 0, steps=0, evaluations=1, workers=workers)
    check("dssync", f"{task}, {workers}", job["workload"], job["cluster"].workers)
    passes = {"images": 200 * 50_000, "questions": 2 * 87_599, "clicks": 40_000_000}
    assert job["workload"].samples == passes[task]
    if task == "images":
        assert job["workload"].lr_milestones == (60 / 200, 120 / 200, 160 / 200)


@pytest.mark.parametrize("name", gba.TASKS)
def test_gba(name):
    task = gba.TASKS[name].at("full")
    paper = task.printed
    sync, shared, lone = (task.phase(mode) for mode in ("sync", "gba", "async"))
    stream = task.workload("full")
    work = stream.work().flops / stream.batch_size
    check("gba", name, replace(stream, batch_size=sync.batch_size), sync.workers, operations=work)
    assert (sync.batch_size, shared.batch_size, lone.batch_size) == (paper.sync, paper.gba, paper.lone)
    assert (stream.dense_optimizer.lr, lone.dense_optimizer.lr) == (paper.adam, paper.adagrad)
    size = task.sizes["full"]
    assert (f"{size.base} + {size.days}", size.day) == (paper.days, paper.day)
    assert stream.samples == (size.base + 2 * size.days) * paper.day


@pytest.mark.parametrize("name", persia.TASKS)
def test_persia(name):
    job = persia.job(name, "hybrid", 0, samples=0)
    found = check("persia", name, job["workload"], job["cluster"].workers)
    assert found["parameters"] > 11e6
    assert job["workload"].samples == regime.paper_regime("persia")[name]["samples"]


@pytest.mark.parametrize("dataset", [1, 2, 3])
def test_shadowsync(dataset):
    task = shadowsync.light(shadowsync.EXAMPLES[dataset], world=3)
    column = f"dataset {dataset}"
    check("shadowsync", column, task, regime.paper_regime("shadowsync")[column].get("workers"))
    assert task.network == "dlrm" and task.samples == regime.paper_regime("shadowsync")[f"dataset {dataset}"]["samples"]


@pytest.mark.parametrize("name", oac.SETUPS)
def test_oac(name):
    setup = oac.SETUPS[name]
    for task in (setup.workload(10, 0), plateau.Study(10).workload(name, 0, 0.1)):
        check("oac", name, task, 1)
        assert task.name == setup.workload_name and task.samples == 10 * task.triples and task.dim == 50
    assert oac.SETUPS["setup 1"].workload(10, 0).neighbours == 10


def test_every_task_that_a_paper_prints_is_compared():
    tasks = {"gba": gba.TASKS, "persia": persia.TASKS, "oac": oac.SETUPS}
    for paper, names in tasks.items():
        assert regime.paper_regime(paper).keys() == set(names)
    assert len(EXCEPTIONS) <= 10


def test_below_full_nothing_of_the_paper_is_taken():
    setting.use("laptop")
    assert dense_parameters(persia.learning_task("criteo", 64, world=0)) < 20_000
    assert shadowsync.light(64).name == "clicks-light" and quality.task_workload("images").depth == 8
