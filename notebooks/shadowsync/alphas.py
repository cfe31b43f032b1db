"""A shadow next to its foreground twins by alpha: each mode at its own best, and all at one.

In a foreground mix a replica stands still, and nothing is lost by going all of the way. A shadow's replica trains on meanwhile,
and what it learnt then is what a large alpha gives up. So one alpha for all is kinder to the one or to the other.
"""

from collections.abc import Sequence

import pandas as pd

from lib import Run
from notebooks import study
from notebooks.shadowsync import quality, tasks
from reports.claims import interval
from reports.claims.statistics import smallest_effect

SHADOW, TWINS = "s-easgd", ("fr-easgd (5)", "fr-easgd (30)")
TUNED = (SHADOW, *TWINS)
NEVER, FROZEN = "never", "frozen"
MODES = (*TUNED, NEVER, FROZEN)
LIMITS = {"alpha": (0.0, 1.0)}
"""An alpha of 1 is a copy, and no more than that is to be had."""


def job(trainers: int, mode: str, seed: int, *, samples: int, alpha: float = 0.5, **rates: float) -> dict:
    """A mode's run on light clicks, at the calibrated pace with 4 threads a trainer; *never* is the shadow with an alpha of 0,
    *frozen* throws every gradient away, for as long as it takes to see."""
    options = {"threads": 4, "build": tasks.light, **rates}
    if mode == FROZEN:
        return tasks.job("frozen", trainers, seed, samples=min(samples, 4_000), **options)
    options |= {"samples": samples}
    mixing = {"alpha": 0.0 if mode == NEVER else alpha}
    return tasks.job(tasks.rule(SHADOW if mode == NEVER else mode, threads=4, **mixing), trainers, seed, **options)


def figure(run: Run, **case) -> float:
    """The tuned figure: NE of new examples by the average of all copies, negated because less is better."""
    return -quality.figures(run)["ne"]


def differences(data: pd.DataFrame, same: Sequence[str], *bases: str) -> pd.DataFrame:
    """Add the differences of NE of new examples from each base with the `same` values."""
    for base in bases:
        data = study.differences(data, ["ne"], same, mode=base)
    return data


def intervals(data: pd.DataFrame, columns: Sequence[str], by: Sequence[str]) -> pd.DataFrame:
    """By case and column: the mean over the seeds, half its 95 % interval, and the smallest effect that so many seeds can
    detect."""
    rows = {}
    for case, part in data.groupby(list(by), sort=False):
        for column in columns:
            mean, low, _ = interval(part[column].to_list())
            rows[*case, column] = {"mean": mean, "+-": mean - low, "tells": smallest_effect(mean - low, len(part))}
    return pd.DataFrame.from_dict(rows, "index").rename_axis([*by, "of"])
