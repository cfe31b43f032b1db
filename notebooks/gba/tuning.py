"""How GBA's modes were tuned: each over the same learning rates, by its own quality, on seeds that nothing is judged on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from lib.results.run import Run
from lib.seeds import not_judging
from lib.store.optim import Adagrad, Adam
from lib.training.sweep import sweep
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
    seeds, size = not_judging(seeds, "rates are tried"), task.sizes[profile]
    until, tried = size.base + size.days, rates[Adam]
    of_rate = [replace(task, adam={"sync": rate}) for rate in tried]
    places = [each for each in of_rate for _ in seeds]
    starts = sweep([switching.base(each, profile, seed) for each in of_rate for seed in seeds])
    stays = sweep([switching.days(a, profile, "sync", start, until) for a, start in zip(places, starts, strict=True)])
    rows = [_row(task, "sync", each.adam["sync"], run) for each, run in zip(places, stays, strict=True)]
    found = best(pd.DataFrame(rows))["sync"]
    base = starts[tried.index(found) * len(seeds) :][: len(seeds)]
    kinds = {mode: Adagrad if mode == "async" else Adam for mode in MODES if mode != "sync"}
    places = [(mode, rate, start) for mode, kind in kinds.items() for rate in rates[kind] for start in base]
    own = replace(task, adam={"sync": found})
    jobs = [switching.days(own, profile, mode, at, until, **at_rate(kinds[mode](lr=rate))) for mode, rate, at in places]
    runs = sweep([job | {"on_nan": "skip"} for job in jobs])  # a rate may be too large to go on with
    rows += [_row(task, mode, rate, run) for (mode, rate, _), run in zip(places, runs, strict=True)]
    return pd.DataFrame(rows)


def best(table: pd.DataFrame) -> dict[str, float]:
    """Each mode's rate with the best mean over the seeds."""
    means = table.groupby(["mode", "rate"])["auc"].mean()
    return {mode: float(group.idxmax()[1]) for mode, group in means.groupby("mode")}


def _row(task: Task, mode: str, rate: float, run: Run) -> dict[str, object]:
    about = {"task": task.name, "mode": mode, "rate": rate, "seed": run.provenance["seed"]}
    return about | {"auc": switching.mean_auc(run)}
