"""What is trained: a model, its data stream, its optimisers and its evaluation, under one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.errors import unknown, unknown_option
from lib.registry import Registry

if TYPE_CHECKING:
    from lib.workloads.base import TableSpec, Workload

__all__ = ["ALL", "PROFILES", "TableSpec", "Workload", "get", "options", "profiles"]

PROFILES = ("smoke", "laptop", "full")
"""How large a workload is: for a look at every experiment in minutes, for results on a laptop, for a GPU or a cluster."""

ALL = Registry(
    "workload",
    {
        "quadratic": "lib.workloads.quadratic:QuadraticBowl",
        "ctr-synthetic": "lib.workloads.ctr:ClickThrough",
        "clicks-light": "lib.workloads.light:LightClicks",
        "kg-synthetic": "lib.workloads.graph:LinkPrediction",
        "criteo-deepfm": "lib.workloads.click_logs:CriteoDeepFM",
        "criteo-dlrm": "lib.workloads.click_logs:CriteoDLRM",
        "criteo-ffnn": "lib.workloads.click_logs:CriteoFFNN",
        "criteo-syn": "lib.workloads.click_logs:CriteoSyn",
        "alimama-dien": "lib.workloads.click_logs:AlimamaDIEN",
        "private-youtubednn": "lib.workloads.retrieval:PrivateYouTubeDNN",
        "taobao-ffnn": "lib.workloads.click_logs:TaobaoFFNN",
        "avazu-ffnn": "lib.workloads.click_logs:AvazuFFNN",
        "kwai-ffnn": "lib.workloads.click_logs:KwaiFFNN",
        "fb15k-237-distmult": "lib.workloads.graph:FB15k237",
        "freebase86m-distmult": "lib.workloads.graph:Freebase86mDistMult",
        "freebase86m-graphsage": "lib.workloads.graph:Freebase86mGraphSage",
        "cifar10-wrn": "lib.workloads.vision:Cifar10WRN",
        "cifar100-wrn": "lib.workloads.vision:Cifar100WRN",
        "imagenet-wrn50-2": "lib.workloads.vision:ImageNetWRN",
        "squad-bert": "lib.workloads.text:SquadBert",
    },
)


def get(name: str, profile: str = "smoke", **given) -> Workload:
    """The workload registered under `name` at the size of a profile, with its options set.

    On real data (`data=`) the profile's samples are at most one pass over the folder, and more only where `samples` says so;
    but the full profile of images, graphs and questions keeps the papers' epochs."""
    valid = options(name)
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    for option in given:
        if option not in valid:
            raise unknown_option(f"workload {name!r}", option, valid)
    kind = ALL[name]
    given = {kind.spelled.get(option, option): value for option, value in given.items()}
    from lib.data import source  # not for a list of names

    made = kind(**{**profiles().get(name, {}).get(profile, {}), **given})
    if given.get("data") and "samples" not in given and not (kind.epochs and profile == "full"):
        made = replace(made, samples=min(made.samples, source.samples(made.data)))
    return made


@cache
def profiles() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Workload -> profile -> the options that it sets; what is missing, as smoke always is, has the class's own defaults."""
    from lib.options.document import load  # not for a list of names

    return load(Path(__file__).with_name("profiles.yaml")).data


def options(name: str) -> set[str]:
    """All that `get` takes for that workload."""
    kind = ALL[name]
    return {"profile", *(field.name for field in fields(kind)), *kind.spelled}


def __getattr__(name: str) -> Any:
    """The contract, which is imported with its first use, since it needs torch."""
    if name not in ("TableSpec", "Workload"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lib.workloads import base

    return getattr(base, name)
