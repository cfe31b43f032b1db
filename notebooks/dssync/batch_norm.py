"""What decides whether DS-Sync is above BSP on images: running statistics, the best evaluation in place of the last, or chance.

A run with running statistics trains the same parameters as one without, to the bit, whatever a mix makes of them: they are looked
at in evaluations alone. So each way of evaluating is set next to the others on the same training.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from lib import Run
from lib.protocols.all_reduce import AllReduce
from lib.protocols.dssync import DSSync
from notebooks import study
from notebooks.dssync import quality

RECOMPUTED = "settled"
"""No running statistics: an evaluation takes the moments of training batches at the parameters that it judges."""

WAYS = (RECOMPUTED, "naive", "pooled", "none")
"""The others are what an average makes of running statistics; BSP's may leave them each worker's own or average them, as the
released code does."""


def cases(seeds: Sequence[int]) -> list[study.Case]:
    """Mode, way and seed of each run."""
    bsp = study.grid(mode=["BSP"], way=(RECOMPUTED, "naive", "none"), seed=seeds)
    return bsp + study.grid(mode=["DS-Sync"], way=WAYS, seed=seeds)


def job(mode: str, way: str, seed: int, **shape) -> dict:
    """As in the tables of accuracy, whose run it is where there are no running statistics."""
    base = quality.job("images", mode, seed, **shape)
    if way == RECOMPUTED:
        return base
    base["workload"] = replace(base["workload"], norm="running")
    return base | {"protocol": (DSSync if mode == "DS-Sync" else AllReduce)(statistics=way)}


def claim_table(found: Sequence[study.Case], runs: Sequence[Run]) -> pd.DataFrame:
    """What claims read: accuracy, and how far it is above that of BSP's run with the same seed, evaluated the same way."""
    data = study.table(found, runs, best=lambda run: quality.best(run, "images"), quality="accuracy")
    data["train loss"] = [run.summary["train_loss"] for run in runs]
    data["read"] = data["way"].replace("pooled", "naive")  # of which BSP has a run
    for name in ("best", "quality"):
        data[f"{name} over BSP"] = data[name] - study.baseline(data, name, ["read", "seed"], mode="BSP")
    data["by the best"] = data["best over BSP"] - data["quality over BSP"]
    return data.assign(subject=data["mode"] + ", " + data["way"])


def histories(found: Sequence[study.Case], runs: Sequence[Run]) -> pd.DataFrame:
    """Accuracy by samples, a panel for each way; BSP's averaged statistics stand next to pooled ones."""
    curves = quality.histories([{"task": "images", **case} for case in found], runs)
    averaged = curves[(curves["protocol"] == "BSP") & (curves["way"] == "naive")]
    return pd.concat([curves, averaged.assign(way="pooled")]).assign(all="")


def spread(data: pd.DataFrame) -> pd.DataFrame:
    """From run to run: the deviation of the accuracy, and how far means of five runs of equal modes are apart, two times
    in three."""
    deviation = data.groupby(["mode", "way"], sort=False)["quality"].std(ddof=1)
    return pd.DataFrame({"deviation": deviation, "five runs": deviation * (2 / 5) ** 0.5})
