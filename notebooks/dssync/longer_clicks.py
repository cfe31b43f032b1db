"""Whether what DS-Sync loses on clicks is a matter of length, of the rate or of groups: python -m notebooks.dssync.longer_clicks

Four workers as in Table 2, for a quarter of its steps and for all; at BSP's best rate and at DS-Sync's; in
groups of two, and in one group of all, which averages parameters as well and has nothing of groups. On seeds kept for first
looks: it explains verdicts and reaches none. The runs, some 20 minutes of two cores, are kept next to this file as a table.
"""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lib import Run, paths, seeds
from lib.protocols.all_reduce import AllReduce
from lib.protocols.dssync import DSSync
from lib.protocols.hop import HopBS
from lib.results.provenance import commit
from notebooks import study
from notebooks.dssync import quality

RULES = {"BSP": AllReduce(), "SSP": HopBS(), "DS-Sync": DSSync(), "one group": DSSync(size=quality.WORKERS)}
BEST, OWN = 1 / 9, 1 / 3
"""BSP's and SSP's best rates over the workload's own, and DS-Sync's, on seeds kept for trials."""
TIMES = {1: 250 // 4, 4: 250}
"""Times a quarter of the paper's length -> steps of images, of which clicks have 20x as many: 1,240, and the paper's
5,000, as the page has them."""
TABLE = Path(__file__).with_suffix(".csv")


def cases(seeds: Iterable[int], times: Iterable[int] = TIMES) -> list[study.Case]:
    """At BSP's rate all four; at its own DS-Sync in groups, and on the shorter length in one."""
    seeds, times = list(seeds), list(times)
    found = study.grid(times=times, mode=RULES, rate=[BEST], seed=seeds)
    found += study.grid(times=times, mode=["DS-Sync"], rate=[OWN], seed=seeds)
    return found + study.grid(times=times[:1], mode=["one group"], rate=[OWN], seed=seeds)


def job(times: int, mode: str, rate: float, seed: int, evaluations: int = 10) -> dict:
    base = quality.job("clicks", "BSP", seed, steps=TIMES[times], evaluations=evaluations, rate=rate)
    return base | {"protocol": RULES[mode]}


def figures(run: Run, **case) -> dict[str, float]:
    """The best AUC of a run's evaluations, and their mean: how high its curve runs."""
    return {"best": quality.best(run, "clicks"), "course": float(run.history["auc"].dropna().mean())}


def differences(data: pd.DataFrame) -> pd.DataFrame:
    """Add each run's difference from BSP and from SSP of the same length and seed."""
    for mode in ("BSP", "SSP"):
        data = study.differences(data, ["best", "course"], ["times", "seed"], mode=mode)
    return data


if __name__ == "__main__":
    data, _ = study.run_grid(job, cases(seeds.PILOT[:5]), figures)
    paths.write_text_atomic(TABLE, data.assign(commit=commit()).to_csv(index=False, lineterminator="\n"))
    shown = differences(data).drop(columns="seed").groupby(["times", "mode", "rate"], sort=False).mean()
    print(shown.round(5).to_string())
