"""How GBA's modes were tuned: each by its own quality, from the same rates, on seeds that nothing is judged on."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from lib import Adagrad, Adam, Run
from lib.seeds import not_judging
from notebooks import grid_search, study
from notebooks.gba import switching
from notebooks.gba.tasks import Task

AXES = ("dense", "rows")
RATES: Mapping[type, Sequence[float]] = {Adam: (0.001, 0.003, 0.01), Adagrad: (0.003, 0.01, 0.03)}
"""What is tried first, of dense parameters and of rows apart."""
DAYS = 3
"""Over so many days each rate is tried."""


def grid(
    task: Task, profile: str, seeds: Iterable[int], rates: Mapping[type, Sequence[float]] = RATES, most: int = 6
) -> pd.DataFrame:
    """The mean AUC over the first days of the study, a row for each mode, pair of rates and seed. All, Sync too, go on from the
    base that Sync has at the paper's rates; each grid goes on past its edges until its best is inside."""
    seeds = not_judging(seeds, "rates are tried")
    starts = switching.bases(task, profile, seeds)
    until = task.sizes[profile].base + min(DAYS, task.sizes[profile].days)

    def job(mode: str, seed: int, **at: float) -> dict:
        return switching.days(task, profile, mode, starts[seed], until, **_rates(mode, at))

    def mean_auc(run: Run, **_: str) -> float:
        return switching.mean_auc(run)

    curves = [
        grid_search.curve(job, mean_auc, dict.fromkeys(AXES, rates[_kind(mode)]), seeds, most, mode=[mode])
        for mode in task.sizes[profile].modes
    ]
    return pd.concat(curves, ignore_index=True).rename(columns={"value": "auc"}).assign(task=task.name)


def optimisers(table: pd.DataFrame) -> dict[str, dict]:
    """Each mode's best, as a phase takes them."""
    return {mode: _rates(mode, dict(zip(AXES, found, strict=True))) for mode, found in best(table).items()}


def _kind(mode: str) -> type:
    return Adagrad if mode == "async" else Adam


def _rates(mode: str, case: study.Case) -> dict:
    kind = _kind(mode)
    return {"dense_optimizer": kind(lr=case["dense"]), "row_optimizer": kind(lr=case["rows"])}


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
