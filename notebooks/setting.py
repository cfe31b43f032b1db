"""The setting of a page of quality: a small one at smoke and laptop, the paper's at full, and real data where a folder is given.

    setting.use(profile, data, device)  # once, in a page's settings
    task = setting.workload("taobao-ffnn", "persia", "taobao", samples=4_000, hidden=(64, 32))

A paper's `regime.yaml` says what it prints of each of its tasks. The regime's table shows it at every profile, and at full a
workload has it: the registered workload's full profile, with the batch, the rates, their falls and the passes that are printed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lib import BadOption, Workload, workloads
from lib.tasks import prepared_datasets
from notebooks import regime, study
from reports.runner import note_parameters

NEEDS = {
    "clicks": "clicks, as `python -m data_prep` makes them of Criteo, Avazu, Taobao or your own log",
    "behaviours": "clicks with what each user did before, as `python -m data_prep taobao` makes them",
    "none": "data that only its authors have",
    "images": "images, as `python -m data_prep cifar-10` makes them",
    "questions": "questions, as `python -m data_prep squad` makes them",
    "triples": "triples, as `python -m data_prep fb15k-237` makes them",
}
"""Kind -> what a folder must hold, for an error."""


def use(profile: str, data: str = "", device: str = "cpu") -> None:
    """Let all workloads that are made from here on in this process have a profile and the data of a folder, and all runs in
    simulated time compute and evaluate on a device."""
    study.use(profile, device)
    study.PAGE["data"] = data
    note_parameters(profile=profile, data=data)
    if data:
        prepared_datasets.Partitions(data)


def is_full() -> bool:
    return study.PAGE["profile"] == "full"


def data() -> str:
    """The folder of real data; "" without one."""
    return study.PAGE["data"]


def holds(kind: str) -> bool:
    """Whether the folder has data of that kind."""
    manifest = prepared_datasets.Partitions(data()).manifest
    if kind == "none":
        return False
    if kind == "behaviours":
        return "history" in manifest
    return manifest["kind"].removeprefix("encoded ") == kind


def served(tasks: Mapping[str, str]) -> list[str]:
    """The tasks, name -> kind of data, that the page trains: all, or those that the folder has data for."""
    if not data():
        return [*tasks]
    found = [name for name, kind in tasks.items() if holds(kind)]
    if not found:
        needed = "; or ".join(NEEDS[kind] for kind in dict.fromkeys(tasks.values()))
        manifest = prepared_datasets.Partitions(data()).manifest
        raise BadOption(f"data={data()!r} holds {manifest['kind']}; this page needs a folder of {needed}")
    return found


def printed(paper: str, column: str) -> dict[str, float]:
    """What a paper prints of a task."""
    return regime.paper_regime(paper)[column]


def with_data(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the named workload; where the page has real data with its folder, and without those of synthetic data."""
    if not data():
        return dict(options)
    kept = {key: value for key, value in options.items() if key not in workloads.ALL[name].synthetic_only}
    return kept | {"data": data()}


def workload(name: str, paper: str, column: str, samples: int = 0, **small: Any) -> Workload:
    """The registered workload: with those options at smoke and laptop; at full as the paper prints it, with the options `PASSED`.

    A pass has `samples`; 0 stands for the workload's own, at full the paper's. Real data are passed over once at most, unless
    the paper has epochs.
    """
    if not is_full():
        return _of_length(workloads.get(name, **with_data(name, small)), samples)
    paper_s = printed(paper, column)
    made = workloads.get(name, "full", **with_data(name, {key: small[key] for key in PASSED & small.keys()}))
    return _of_length(as_printed(made, paper_s), samples or (0 if data() else int(paper_s.get("samples", 0))))


PASSED = {"world", "norm", "evaluation_samples"}
"""What a page may ask for at full too: nothing that a paper prints."""


def as_printed(made: Workload, cells: Mapping[str, float]) -> Workload:
    """The workload with the batch and the rates of the paper's cells; what is not printed stays."""
    own: dict[str, Any] = {"batch_size": int(cells["batch"])} if "batch" in cells else {}
    for cell, option in {"rate of dense": "dense_optimizer", "rate of rows": "row_optimizer"}.items():
        if cell in cells:
            own[option] = replace(getattr(made, option), lr=float(cells[cell]))
    return replace(made, **own)


def _of_length(made: Workload, samples: int) -> Workload:
    once = prepared_datasets.training_samples(made.data) if data() and not made.lr_milestones else samples
    return replace(made, samples=min(samples, once)) if samples else made
