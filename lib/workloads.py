"""The registered workloads. A workload is a model, its data stream, its optimisers and its evaluation.

`ALL` has the class of each name. `lib/tasks/named.yaml` has the options of names that share a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.errors import BadField, unknown, unknown_option
from lib.options.registry import Registry

if TYPE_CHECKING:
    from lib.tasks.workload import Workload

PROFILES = ("smoke", "laptop", "full")
"""Sizes of a workload: for every experiment in minutes, for results on a laptop, for a GPU or a cluster."""


class _Workloads(Registry):
    """A registry in which several names may share a class, and then have a description each."""

    def sentence(self, name: str) -> str:
        return named_entries()[name]["about"] if name in named_entries() else super().sentence(name)


ALL = _Workloads(
    "workload",
    {
        "quadratic": "lib.tasks.quadratic:QuadraticBowl",
        "ctr-synthetic": "lib.tasks.clicks:ClickThrough",
        "clicks-light": "lib.tasks.clicks:LightClicks",
        "kg-synthetic": "lib.tasks.graph:LinkPrediction",
        "criteo-deepfm": "lib.tasks.clicks:ClickThrough",
        "criteo-dlrm": "lib.tasks.clicks:ClickThrough",
        "criteo-ffnn": "lib.tasks.clicks:ClickThrough",
        "criteo-syn": "lib.tasks.clicks:ClickThrough",
        "alimama-dien": "lib.tasks.clicks:ClickThrough",
        "private-youtubednn": "lib.tasks.retrieval:NextItem",
        "taobao-ffnn": "lib.tasks.clicks:ClickThrough",
        "avazu-ffnn": "lib.tasks.clicks:ClickThrough",
        "kwai-ffnn": "lib.tasks.clicks:ClickThrough",
        "fb15k-237-distmult": "lib.tasks.graph:LinkPrediction",
        "freebase86m-distmult": "lib.tasks.graph:LinkPrediction",
        "freebase86m-graphsage": "lib.tasks.graph:LinkPrediction",
        "cifar10-wrn": "lib.tasks.vision:ImageClasses",
        "cifar100-wrn": "lib.tasks.vision:ImageClasses",
        "imagenet-wrn50-2": "lib.tasks.vision:ImageClasses",
        "squad-bert": "lib.tasks.text:Answers",
    },
)


def get(name: str, profile: str = "smoke", **given) -> Workload:
    """Make the workload with a name and the size of a profile, with options.

    On real data (`data=`), `samples` is by default at most one pass over the folder, and at full as many passes as the paper's
    epochs.
    """
    valid = options(name)
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    for option in given:
        if option not in valid:
            raise unknown_option(f"workload {name!r}", option, valid)
    from lib.tasks import prepared_datasets  # a list of names does not need it

    kind, layers = ALL[name], [given]
    if given.get("data") and (idle := kind.synthetic_only & given.keys()):
        problem = " would change nothing: it is of the synthetic data, and data names a folder; leave one of them out"
        raise BadField(f"workload {name!r}", (min(idle),), problem)
    if entry := named_entries().get(name):
        layers = [{"name": name}, entry["smoke"], entry[profile], given]
    settings = {kind.spelled.get(option, option): value for layer in layers for option, value in layer.items()}
    epochs = settings.pop("epochs", None)
    try:
        made = kind(**settings)
    except BadField as error:
        raise BadField(f"workload {name!r}", error.path, error.problem) from error
    if given.get("data") and "samples" not in given:
        once = prepared_datasets.training_samples(made.data)
        made = replace(made, samples=epochs * once if epochs else min(made.samples, once))
    return made


@cache
def named_entries() -> Mapping[str, Mapping[str, Any]]:
    """Name -> a sentence about it, and its options for each profile; those of smoke hold for all."""
    from lib.options.yaml_source import load  # a list of names does not need it

    return load(Path(__file__).with_name("tasks") / "named.yaml")


def options(name: str) -> set[str]:
    """The options that `get` takes for a workload."""
    kind = ALL[name]
    return {"profile", *(field.name for field in fields(kind)), *kind.spelled} - {"name"}
