"""Predictions of the map of `02_regime`: its laws in settings drawn at random, and the papers'; and what more training leaves.

A protocol's cost in a metric is the reader's own to measure. How it falls with the updates is read off the published map, whose
ways have rates that are tuned at each length. No family is asked for by name: the ways bracket what is left of a loss.
"""

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib import Run, paths
from lib.options.yaml_source import load
from notebooks import asynchrony, law, study
from notebooks.advisor.comparison import Comparison
from reports.markup import rounded

UNKNOWN = "not known here"
LAW = "a5dd321b85242ca3ba26726f91a63df31df48a0d"
"""The commit that last changed what a law is; it alone draws the settings, so that no person chooses them."""


def settings(commit: str, lengths: Sequence[int], count: int = 3) -> list[study.Case]:
    """So many settings of unlike families, inside the range that laws are fitted on, by the commit alone."""
    chance = random.Random(commit)
    families = sorted({way.family for way in asynchrony.TO_DRAW.values()})
    drawn = []
    for family in chance.sample(families, count):
        way = chance.choice([name for name, way in asynchrony.TO_DRAW.items() if way.family == family])
        updates = lengths[0] * (min(asynchrony.BRIEF, lengths[-2]) / lengths[0]) ** chance.random()
        drawn.append({"way": way, "updates": round(updates), "rate": round(3 ** chance.uniform(-1, 1), 3)})
    return drawn


def check(
    drawn: Sequence[study.Case],
    laws: Mapping[str, law.Law],
    control: pd.DataFrame,
    rates: asynchrony.Rates,
    seeds: Sequence[int],
) -> tuple[pd.DataFrame, list[Run]]:
    """What the laws and the control predict for the drawn settings, and what is measured there, at the rates of the nearest
    tuned length."""
    tables, made = [], []
    for case in drawn:
        way, updates, rate = case["way"], case["updates"], case["rate"]
        near = min((length for name, length in rates if name == "sync"), key=lambda at: abs(math.log(at / updates)))
        wanted = asynchrony.pairs([way], [updates], seeds, [rate])
        data, runs = asynchrony.measure(wanted, {("sync", updates): rates["sync", near]})
        cells = law.cells(data[data["way"] == way])
        tables.append(law.predict(laws, cells, law.smaller_updates(cells, control)))
        made += runs
    return pd.concat(tables, ignore_index=True), made


def paper_settings(laws: Mapping[str, law.Law], longest: int) -> pd.DataFrame:
    """The papers' settings, each with the prediction of its family's law and the paper's figure."""

    def predicted(case: Mapping) -> float | str:
        known = {name: case.get(name) or math.nan for name in law.RANGE}
        mine = laws.get(case["family"])
        if mine is None or case.get("larger", math.nan) != 1 or not mine.knows(longest, **known):
            return UNKNOWN
        return float(mine.cost(pd.DataFrame([case]), np.zeros(1))[0])

    rows = load(paths.notebooks() / "settings.yaml")
    return pd.DataFrame(rows).assign(predicted=[predicted(case) for case in rows])


def published_map() -> pd.DataFrame:
    return pd.read_csv(paths.reference() / "02_regime" / "map.csv")


def remaining_share(cells: pd.DataFrame, here: float, there: float) -> tuple[float, float] | None:
    """The least and the most of a loss after `here` updates that is left after `there`, over those ways of the map that lose
    measurably, between their lengths along straight lines in the logarithms. None where fewer than two reach as far."""
    shares = []
    for _, curve in cells[cells["low"] > 0].sort_values("updates").groupby("way"):
        if curve["updates"].iloc[0] <= here <= there <= curve["updates"].iloc[-1]:
            lost = np.interp(np.log([here, there]), *np.log(curve[["updates", "cost"]].to_numpy(float)).T)
            shares.append(float(np.exp(lost[1] - lost[0])))
    return (min(shares), max(shares)) if len(shares) > 1 else None


def extrapolate(found: Comparison, here: float, there: float, share: tuple[float, float] | None) -> pd.DataFrame:
    """For each protocol the difference in the metric from the first, in thousandths: as it was measured after `here` updates, and
    within what it is expected after `there`, where such a share of it is left."""
    rows = {}
    for row in found.summary().to_dict("records"):
        ends = [1e3 * row[name] for name in ("difference", "difference, low", "difference, high")]
        mean, low, high = (rounded(end, 2) for end in ends)
        reach = share and [
            rounded(of(end * part for part in share), 2) for of, end in zip((min, max), ends[1:], strict=True)
        ]
        rows[row["protocol"]] = {
            f"after {here:,.0f} updates": f"{mean} [{low}, {high}]",
            f"after {there:,.0f}": " to ".join(reach) if reach else UNKNOWN,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("protocol")
