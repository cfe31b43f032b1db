"""How GBA's modes were tuned: each over the same learning rates, by its own quality, on seeds that nothing is judged on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from lib.seeds import not_judging
from lib.store.optim import Adagrad, Adam
from notebooks import study
from notebooks.gba import switching
from notebooks.gba.tasks import MODES, Task, at_rate

RATES: Mapping[type, Sequence[float]] = {
    Adam: (0.0003, 0.001, 0.003, 0.01, 0.03),
    Adagrad: (0.001, 0.003, 0.01, 0.03, 0.1),
}
"""What is tried, for dense parameters and rows together."""


def grid(task: Task, profile: str, seeds: Iterable[int], rates: Mapping[type, Sequence[float]] = RATES) -> pd.DataFrame:
    """The mean AUC over the days of the study, a row for each mode, rate and seed: of Sync with that rate from the start on, of
    the others where they inherit the base of Sync's best rate."""
    seeds = not_judging(seeds, "rates are tried")
    at = {rate: replace(task, adam={"sync": rate}) for rate in rates[Adam]}
    starts = study.made({(rate, seed): switching.base(at[rate], profile, seed) for rate in at for seed in seeds})
    stays = {place: switching.days(at[place[0]], profile, "sync", start) for place, start in starts.items()}
    rows = [("sync", *place, switching.mean_auc(run)) for place, run in study.made(stays).items()]
    columns = ["mode", "rate", "seed", "auc"]
    found = best(pd.DataFrame(rows, columns=columns))["sync"]
    jobs = {}
    for mode in (mode for mode in MODES if mode != "sync"):
        kind = Adagrad if mode == "async" else Adam
        for rate, seed in ((rate, seed) for rate in rates[kind] for seed in seeds):
            job = switching.days(at[found], profile, mode, starts[found, seed], **at_rate(kind(lr=rate)))
            jobs[mode, rate, seed] = job | {"on_nan": "skip"}  # a rate may be too large to go on with
    rows += [(*place, switching.mean_auc(run)) for place, run in study.made(jobs).items()]
    return pd.DataFrame(rows, columns=columns).assign(task=task.name)


def best(table: pd.DataFrame) -> dict[str, float]:
    """Each mode's rate with the best mean over the seeds."""
    means = table.groupby(["mode", "rate"])["auc"].mean()
    return {mode: float(group.idxmax()[1]) for mode, group in means.groupby("mode")}
