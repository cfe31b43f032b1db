"""What averages of parameters after local steps of Adam lose on clicks, by what averages: groups, or all sixteen workers at once.

Adam divides a gradient by the root of its mean square. Of one worker's batch that is larger than of the mean gradient of
all, and so local steps are shorter at one rate. With plain SGD the average of parameters is the average of gradients.
"""

from collections.abc import Sequence

import pandas as pd

from lib import Run
from lib.protocols.all_reduce import AllReduce
from lib.protocols.dssync import DSSync
from notebooks import regime, study
from notebooks.dssync import quality

WORKERS = 16

RULES = {"BSP": AllReduce(), "one group": DSSync(size=WORKERS), "DS-Sync": DSSync()}
"""The mean gradient of all; the mean of all workers' parameters; those of groups of four."""

RATES, ENDS = (1.0, 3.0), (1 / 3, 9.0)
"""Over the workload's own, which all modes have alike; and what is beyond them, where one seed shows that the best is between."""


def cases(seeds: Sequence[int]) -> list[study.Case]:
    """Mode, rate and seed of each run: groups at the workload's own rate alone."""
    found = study.grid(mode=("BSP", "one group"), rate=RATES, seed=seeds) + study.grid(
        mode=["DS-Sync"], rate=RATES[:1], seed=seeds
    )
    return found + study.grid(mode=("BSP", "one group"), rate=ENDS, seed=seeds[:1])


def job(mode: str, rate: float, seed: int, **shape: int) -> dict:
    """As in Table 3, at another rate or by another rule."""
    return quality.job("clicks", "BSP", seed, rate=rate, workers=WORKERS, **shape) | {"protocol": RULES[mode]}


def run(places: list[study.Case], **shape: int) -> tuple[pd.DataFrame, list[Run]]:
    """Run the cases and return the rows of claims: the AUC, also minus that of BSP and of one group at the same rate and
    seed."""
    data, runs = study.run_grid(
        lambda **case: job(**case, **shape), places, quality="auc", best=lambda run: quality.best(run, "clicks")
    )
    for mode in ("BSP", "one group"):
        data = study.differences(data, ["quality", "best"], ["rate", "seed"], mode=mode)
    return data.assign(subject=data["mode"] + ", " + data["rate"].map("{:.2g}".format)), runs


def regimes(data: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """DS-Sync's regime at the workload's own rate next to the paper's; what training brings is the AUC over a half."""
    ours = data[(data["mode"] == "DS-Sync") & (data["rate"] == 1)]
    return regime.comparison(ours.assign(brings=ours["quality"] - 0.5, task=f"clicks, {WORKERS}"), runs, "dssync")
