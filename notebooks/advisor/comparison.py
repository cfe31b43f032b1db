"""What a comparison of protocols found: as a table, in a sentence or two, as a figure."""

import math
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reports import plots
from reports.claims.statistics import interval
from reports.markup import rounded
from reports.palette import colour
from reports.quantities import UNITS, decimals

Priority = Literal["time", "quality"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of each protocol; all are compared with the first."""

    runs: pd.DataFrame
    """A row for each protocol, seed and multiple of the rates: `metric`, `seconds` to the goal (nan: never there), samples a
    second, bytes a sample, the mean age of a gradient, and the digest of all parameters. `best` is the protocol's multiple."""
    metric: str
    """What `metric` is."""
    goal: float
    """The quality that is timed: this share of what the first learns beyond an untrained model, on each seed."""

    @property
    def first(self) -> str:
        return self.runs["protocol"].iloc[0]

    @property
    def unit(self) -> str:
        return UNITS.get(self.metric, self.metric)

    def paired(self, own: bool = True) -> pd.DataFrame:
        """A row for each protocol and seed, at rates of its own or at the workload's: `difference` in the metric from the first,
        and `time`, the seconds to the goal over the first's."""
        runs = self.runs[self.runs["rate"] == (self.runs["best"] if own else 1.0)]
        first = runs[runs["protocol"] == self.first].set_index("seed").loc[runs["seed"]]
        difference, time = runs["metric"] - first["metric"].to_numpy(), runs["seconds"] / first["seconds"].to_numpy()
        return runs.assign(difference=difference, time=time)

    def summary(self) -> pd.DataFrame:
        """A row for each protocol, the fastest to the goal first; protocols whose runs are identical share a row."""
        own, same = self.paired(), self.paired(own=False).groupby("protocol")["difference"]
        digests = own.groupby("protocol", sort=False)["digest"].agg(tuple)
        rows = []
        for names in digests.groupby(digests, sort=False).groups.values():
            mine = own[own["protocol"] == names[0]]
            figures = {"time": mine["time"], "difference": mine["difference"], "at one rate": same.get_group(names[0])}
            row: dict = {"protocol": " = ".join(names), "rate": mine["best"].iloc[0]}
            for name, values in figures.items():
                row |= dict(zip((name, f"{name}, low", f"{name}, high"), interval(values), strict=True))
            rows.append(row | mine[["samples/s", "bytes/sample", "age"]].mean().to_dict())
        return pd.DataFrame(rows).sort_values("time", kind="stable").reset_index(drop=True)

    def table(self) -> pd.DataFrame:
        """The summary as a person reads it."""
        table = self.summary()

        def cells(name: str, factor: float) -> list[str]:
            ends = table[[name, f"{name}, low", f"{name}, high"]].itertuples(index=False)
            return [_interval(*(factor * x for x in each)) for each in ends]

        shown = {
            "protocol": table["protocol"],
            "best rate": [f"{rate:.3g}×" for rate in table["rate"]],
            f"time vs {self.first}": cells("time", 1),
            f"{self.unit} − {self.first}'s, 10⁻³": cells("difference", 1e3),
            "at one rate": cells("at one rate", 1e3),
        }
        rest = {"samples/s": "samples/s", "B/sample": "bytes/sample", "age": "age"}
        return pd.DataFrame(shown | {name: table[column].map(_short) for name, column in rest.items()})

    def choice(self, priority: Priority = "time") -> str:
        """The fastest to the goal on average; for quality, the fastest of those that do not end measurably below the first.
        `verdict` says whether it is measurably faster than the first."""
        table = self.summary()
        if priority == "quality":
            table = table[(table["difference, high"] >= 0) | self._mine(table)]
        return table["protocol"].iloc[0].split(" = ")[0]

    def verdict(self) -> str:
        """Say which protocol reaches the goal first and what that costs in the end, and which others lose."""
        table, first = self.summary(), self.first
        share = f"{100 * self.goal:g} % of what {first} learns"
        best = table.iloc[0]
        if best["time, high"] < 1:
            time = _interval(*best[_ENDS["time"]])
            sentences = [
                f"{best['protocol']} is the first to reach {share}, in {time} of {first}'s time, and {self._ends(best)}."
            ]
        else:
            sentences = [f"No protocol reaches {share} measurably faster than {first}."]
            best = table[self._mine(table)].iloc[0]
        others = table[table["protocol"] != best["protocol"]]
        near = others[others["time, low"] <= best["time, high"]]
        level = near["difference, high"] >= 0
        for words, rows in (("and not lower at the end", near[level]), ("and lower at the end", near[~level])):
            if len(rows):
                sentences.append(f"Equally fast within the intervals, {words}: {', '.join(rows['protocol'])}.")
        if lost := [*others.loc[others["difference, high"] < 0, "protocol"]]:
            sentences.append(f"Measurably below {first} at the end: {', '.join(lost)}.")
        if never := [*table.loc[~np.isfinite(table["time"]), "protocol"]]:
            sentences.append(f"Below the goal on some seed: {', '.join(never)}.")
        return " ".join(sentences)

    def _mine(self, table: pd.DataFrame) -> pd.Series:
        """Which row is the first's."""
        return table["protocol"].str.split(" = ").map(lambda names: self.first in names)

    def _ends(self, row: pd.Series) -> str:
        mean, low, high = row[_ENDS["difference"]]
        if low <= 0 <= high:
            return f"its final {self.unit} is the same within {_interval(1e3 * mean, 1e3 * low, 1e3 * high)} × 10⁻³"
        size = sorted(abs(1e3 * x) for x in (low, high))
        change = f"{_interval(abs(1e3 * mean), *size)} × 10⁻³ {'lower' if high < 0 else 'higher'}"
        return f"its final {self.unit} is {change} than {self.first}'s"

    def figure(self) -> Figure:
        """Time to the goal against the difference in the metric, a mark a protocol with the intervals of both."""
        table = self.summary()
        with plots.style():
            fig = Figure(figsize=(plots.WIDTH, 3.6), layout="constrained")
            ax = fig.subplots()
            reached = table[np.isfinite(table["time"])]
            for (_, row), mark in zip(reached.iterrows(), cycle(plots.MARKS), strict=False):
                (x, *wide), (y, *tall) = row[_ENDS["time"]], 1e3 * row[_ENDS["difference"]].astype(float)
                reach = ([[abs(end - at)] for end in ends] for at, ends in ((y, tall), (x, wide)))
                look = {"color": colour(row["protocol"])[0], "markersize": 7, "linewidth": 1}
                ax.errorbar(x, y, *reach, fmt=mark, label=row["protocol"], **look)
            ax.axhline(0, color=plots.BLACK, linewidth=0.8)
            ax.set_xlabel(f"time to {100 * self.goal:g} % of what {self.first} learns, {self.first}'s = 1")
            ax.set_ylabel(f"{self.unit} − {self.first}'s, 10⁻³")
            ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return fig


_ENDS = {name: [name, f"{name}, low", f"{name}, high"] for name in ("time", "difference")}


def _interval(mean: float, low: float, high: float) -> str:
    if not math.isfinite(mean):
        return "never"
    digits = decimals([mean], mean - low)
    ends = [rounded(x, digits) for x in (mean, low, high)]
    return f"{ends[0]} [{ends[1]}, {ends[2]}]" if low < high else ends[0]


def _short(x: float) -> str:
    return f"{x / 1e6:.3g}M" if x >= 1e6 else rounded(x, decimals([x]))
