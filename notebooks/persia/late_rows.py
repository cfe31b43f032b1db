"""Theorem 1's alpha and tau on clicks: how much of what training brings is lost where rows are as common and as late.

Each field's ids are equally frequent, so that an id is in one of so many samples as a field has ids: alpha is one over that.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from lib import Run
from lib.protocols.baselines import Frozen
from lib.protocols.persia import Hybrid
from notebooks import study
from notebooks.persia import tasks

IDS = (3, 30, 1000)
"""Of a field."""

FROZEN = -1
"""In place of tau, for a model that learns nothing: from there to no delay is all that can be lost."""


def job(ids: int, tau: int, seed: int, samples: int) -> dict:
    """Criteo's task with ids so frequent, on the paper's eight GPUs."""
    made = replace(tasks.learning_task("criteo", samples, world=seed), vocabulary=ids, exponent=0.0)
    rule = Frozen() if tau == FROZEN else Hybrid(tau=tau)
    return {"workload": made, "protocol": rule, "cluster": tasks.small(made), "seed": seed, "trace": False}


def claim_table(cases: Sequence[study.Case], runs: Sequence[Run]) -> pd.DataFrame:
    """What claims read: the share that is lost of what training without delay brings, which is `brings`."""
    figures = {"auc": "auc", "updates late": "staleness_mean", "issued": "issued"}
    data = study.table(cases, runs, **figures)
    none, least = (study.baseline(data, "auc", ["ids", "seed"], tau=tau) for tau in (0, FROZEN))
    data["brings"] = none - least
    data["lost"] = (none - data["auc"]) / data["brings"]
    data["alpha tau / T"] = data["updates late"] / data["ids"] / data.pop("issued")
    data["subject"] = "one of " + data["ids"].astype(str) + ", tau " + data["tau"].astype(str)
    return data[data["tau"] != FROZEN]
