"""What is trained: a model, its data stream, its optimisers and its evaluation, under one name."""

from __future__ import annotations

from dataclasses import fields

from lib.errors import unknown, unknown_option
from lib.workloads.base import TableSpec, Workload
from lib.workloads.ctr import SyntheticClicks
from lib.workloads.graph import SyntheticGraph
from lib.workloads.quadratic import QuadraticBowl

__all__ = ["ALL", "TableSpec", "Workload", "get"]

ALL: dict[str, type[Workload]] = {kind.name: kind for kind in (QuadraticBowl, SyntheticClicks, SyntheticGraph)}


def get(name: str, **options) -> Workload:
    """The workload registered under `name`, with its options set."""
    if name not in ALL:
        raise unknown("workload", name, ALL)
    kind = ALL[name]
    options = {kind.spelled.get(option, option): value for option, value in options.items()}
    valid = {field.name for field in fields(kind)}
    for option in options:
        if option not in valid:
            raise unknown_option(f"workload {name!r}", option, valid)
    return kind(**options)
