"""How far rounding alone moves a run's quality, for the caption of a table of differences.

    caption += noise_floor.note(data, "persia")

`python -m notebooks.bench.noise_floor` measures it and writes the table next to this file.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd

from notebooks import study

TABLE = Path(__file__).with_suffix(".csv")


def floor(task: str) -> dict[str, float]:
    """Each protocol's spread, pooled over the seeds; nothing where it was not measured."""
    if not TABLE.exists():
        return {}
    kept = pd.read_csv(TABLE).query("task == @task")
    return kept.groupby("protocol", sort=False)["spread"].agg(lambda of: math.sqrt(np.mean(np.square(of)))).to_dict()


def note(data: pd.DataFrame, task: str, name: str = "auc") -> str:
    """For the caption of a table of differences in a quality: how the quality by labels agrees with it, and its floor."""
    sentences = [study.by_labels(data, name)]
    if spread := floor(task):
        each = ", ".join(f"{size:.1g} ({protocol})" for protocol, size in spread.items())
        sentences.append(f"Starts that differ by rounding alone move it by a standard deviation of {each}.")
    return "".join(f" {each}" for each in sentences if each)
