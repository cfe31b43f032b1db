"""What is trained: a model, its data stream, its optimisers and its evaluation, under one name."""

from __future__ import annotations

from dataclasses import fields

from lib.errors import unknown, unknown_option
from lib.workloads import named
from lib.workloads.base import PROFILES, TableSpec, Workload
from lib.workloads.ctr import ClickThrough
from lib.workloads.graph import LinkPrediction
from lib.workloads.quadratic import QuadraticBowl

__all__ = ["ALL", "PROFILES", "TableSpec", "Workload", "get", "options"]

ALL: dict[str, type[Workload]] = {
    kind.name: kind for kind in (QuadraticBowl, ClickThrough, LinkPrediction, *named.WORKLOADS)
}


def get(name: str, profile: str = "smoke", **given) -> Workload:
    """The workload registered under `name` at the size of a profile, with its options set."""
    valid = options(name)
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    for option in given:
        if option not in valid:
            raise unknown_option(f"workload {name!r}", option, valid)
    kind = ALL[name]
    given = {kind.spelled.get(option, option): value for option, value in given.items()}
    return kind(**{**kind.profiles.get(profile, {}), **given})


def options(name: str) -> set[str]:
    """All that `get` takes for that workload."""
    if name not in ALL:
        raise unknown("workload", name, ALL)
    return {"profile", *(field.name for field in fields(ALL[name])), *ALL[name].spelled}
