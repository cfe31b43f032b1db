"""Theorem 1's alpha and tau on clicks: how much of what training brings is lost where rows are as common and as late.

Each field's ids are equally frequent, so that an id is in one of so many samples as a field has ids: alpha is one over that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd

from lib.protocols.baselines import Frozen
from lib.protocols.persia import Hybrid
from lib.results.run import Run
from notebooks.persia import tasks

IDS = (3, 30, 1000)
"""Of a field."""

FROZEN = -1
"""In place of tau, for a model that learns nothing: from there to no delay is all that can be lost."""


class Place(NamedTuple):
    """A run."""

    ids: int
    tau: int
    seed: int


def places(taus: Iterable[int], seeds: Sequence[int]) -> list[Place]:
    """All of them; the first tau is 0, no delay but what workers that do not wait for each other make."""
    return [Place(ids, tau, seed) for ids in IDS for tau in (*taus, FROZEN) for seed in seeds]


def job(place: Place, samples: int) -> dict[str, Any]:
    """Criteo's task with ids so frequent, on the paper's eight GPUs."""
    made = replace(tasks.learning("criteo", samples, world=place.seed), vocabulary=place.ids, exponent=0.0)
    rule = Frozen() if place.tau == FROZEN else Hybrid(tau=place.tau)
    return {"workload": made, "protocol": rule, "cluster": tasks.small(made), "seed": place.seed, "trace": False}


def judged(found: Sequence[Place], runs: Sequence[Run]) -> pd.DataFrame:
    """What claims read: the share that is lost of what training without delay brings."""
    data = pd.DataFrame(found, columns=Place._fields)
    data["auc"] = [run.summary["auc"] for run in runs]
    data["updates late"] = [run.summary["staleness_mean"] for run in runs]
    keys = pd.MultiIndex.from_frame(data[["ids", "seed"]])
    none, all_ = (
        data[data["tau"] == tau].set_index(["ids", "seed"])["auc"].reindex(keys).to_numpy() for tau in (0, FROZEN)
    )
    data["lost"] = (none - data["auc"]) / (none - all_)
    data["alpha tau / T"] = data["updates late"] / data["ids"] / [run.summary["issued"] for run in runs]
    data["subject"] = "one of " + data["ids"].astype(str) + ", tau " + data["tau"].astype(str)
    return data[data["tau"] != FROZEN]
