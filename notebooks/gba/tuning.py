"""How GBA's modes were tuned: each by its own quality, from the same rates, on seeds that nothing is judged on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from lib.results.run import Run
from lib.seeds import not_judging
from lib.store.optim import Adagrad, Adam
from notebooks import study
from notebooks.gba import switching
from notebooks.gba.tasks import MODES, Task

AXES = ("dense", "rows")
RATES: Mapping[type, Sequence[float]] = {Adam: (0.001, 0.003, 0.01), Adagrad: (0.003, 0.01, 0.03)}
"""What is tried first, of dense parameters and of rows apart."""


def grid(
    task: Task, profile: str, seeds: Iterable[int], rates: Mapping[type, Sequence[float]] = RATES, most: int = 6
) -> pd.DataFrame:
    """The mean AUC over the days of the study, a row for each mode, pair of rates and seed: of Sync with those rates from the
    start on, of the others where they inherit the base of Sync's best. Each goes on past its edges until its best is inside."""
    seeds = not_judging(seeds, "rates are tried")
    stays = partial(_days, task, profile, "sync", lambda places: _bases(task, profile, places))
    found = {"sync": _climbed(stays, Adam, seeds, rates, most)}
    inherited = dict(zip(AXES, best(found["sync"].assign(mode="sync"))["sync"], strict=True))
    starts = dict(zip(seeds, _bases(task, profile, [inherited | {"seed": seed} for seed in seeds]), strict=True))
    for mode in (mode for mode in MODES if mode != "sync"):
        goes_on = partial(_days, task, profile, mode, lambda places: [starts[at["seed"]] for at in places])
        found[mode] = _climbed(goes_on, _kind(mode), seeds, rates, most)
    return pd.concat([each.assign(mode=mode, task=task.name) for mode, each in found.items()], ignore_index=True)


def _climbed(measured, kind: type, seeds: list[int], rates: Mapping[type, Sequence[float]], most: int) -> pd.DataFrame:
    axes = dict.fromkeys(AXES, rates[kind])
    return study.climbed(measured, axes, seeds, most).rename(columns={"value": "auc"})


def _bases(task: Task, profile: str, places: list[study.Place]) -> list[Run]:
    jobs = [switching.base(task, profile, at["seed"], **_rates("sync", at)) for at in places]
    return [*study.made(dict(enumerate(jobs))).values()]


def _days(task: Task, profile: str, mode: str, begun, places: list[study.Place]) -> list[float]:
    """The mean AUC of each place's days, from where it has begun; a rate may be too large to go on with."""
    both = zip(begun(places), places, strict=True)
    jobs = [switching.days(task, profile, mode, start, **_rates(mode, at)) | {"on_nan": "skip"} for start, at in both]
    return [switching.mean_auc(run) for run in study.made(dict(enumerate(jobs))).values()]


def _kind(mode: str) -> type:
    return Adagrad if mode == "async" else Adam


def _rates(mode: str, place: study.Place) -> dict[str, Any]:
    kind = _kind(mode)
    return {"dense_optimizer": kind(lr=place["dense"]), "row_optimizer": kind(lr=place["rows"])}


def best(table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Each mode's rates of dense parameters and of rows, those with the best mean over the seeds."""
    means = table.groupby(["mode", *AXES])["auc"].mean()
    return {mode: group.idxmax()[1:] for mode, group in means.groupby("mode")}


def curves(table: pd.DataFrame) -> pd.DataFrame:
    """The two lines through each mode's best, over the rate of the one where the other is at its best."""
    parts = []
    for (_, mode), group in table.groupby(["task", "mode"], sort=False):
        at = dict(zip(AXES, best(group)[mode], strict=True))
        for axis, other in (AXES, AXES[::-1]):
            line = group[group[other] == at[other]]
            parts.append(line.assign(of=f"rate of {axis}", rate=line[axis]))
    return pd.concat(parts, ignore_index=True)
