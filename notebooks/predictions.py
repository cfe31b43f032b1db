"""What laws say of settings that nobody chose for them: drawn ones, and the papers'."""

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib import Run, paths
from lib.options.document import load
from notebooks import asynchrony, law, study

UNKNOWN = "not known here"
LAW = "a5dd321b85242ca3ba26726f91a63df31df48a0d"
"""The commit that last changed what a law is; it alone draws the settings, so that nobody chooses them."""


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
    """What laws and the control's cells foretell of the settings, and what then is measured, at the rates of the nearest length
    that has been tuned."""
    tables, made = [], []
    for case in drawn:
        way, updates, rate = case["way"], case["updates"], case["rate"]
        near = min((length for name, length in rates if name == "sync"), key=lambda at: abs(math.log(at / updates)))
        wanted = asynchrony.pairs([way], [updates], seeds, [rate])
        data, runs = asynchrony.measure(wanted, {("sync", updates): rates["sync", near]})
        there = law.cells(data[data["way"] == way])
        tables.append(law.predict(laws, there, law.smaller_updates(there, control)))
        made += runs
    return pd.concat(tables, ignore_index=True), made


def paper_settings(laws: Mapping[str, law.Law], longest: int) -> pd.DataFrame:
    """The papers' settings, each with what the law of its family foretells there and what the paper has."""

    def predicted(case: Mapping) -> float | str:
        known = {name: case.get(name) or math.nan for name in law.RANGE}
        mine = laws.get(case["family"])
        if mine is None or case.get("larger", math.nan) != 1 or not mine.knows(longest, **known):
            return UNKNOWN
        return float(mine.cost(pd.DataFrame([case]), np.zeros(1))[0])

    rows = load(paths.notebooks() / "settings.yaml").data
    return pd.DataFrame(rows).assign(foretold=[predicted(case) for case in rows])
