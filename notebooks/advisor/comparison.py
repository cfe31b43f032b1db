"""The result of a comparison of protocols: as a table, in a few sentences, as a figure."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from notebooks import compare_figure
from reports import plots
from reports.claims.statistics import interval
from reports.markup import rounded
from reports.palette import colour
from reports.quantities import UNITS, decimals

CLOCK = 0.03
"""The error of simulated time at its best (`94_fidelity`): smaller differences in time mean nothing."""


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

    @property
    def target(self) -> str:
        """The goal in words."""
        return f"{100 * self.goal:g} % of what {self.first} learns"

    def paired(self, own: bool = True) -> pd.DataFrame:
        """A row for each protocol and seed, at rates of its own or at the workload's: `difference` in the metric from the first,
        and `time`, the seconds to the goal over the first's."""
        runs = self.runs[self.runs["rate"] == (self.runs["best"] if own else 1.0)]
        first = runs[runs["protocol"] == self.first].set_index("seed").reindex(runs["seed"])
        difference, time = runs["metric"] - first["metric"].to_numpy(), runs["seconds"] / first["seconds"].to_numpy()
        return runs.assign(difference=difference, time=time)

    def summary(self) -> pd.DataFrame:
        """A row for each protocol, the fastest to the goal first. Protocols whose runs are identical share a row: the first of
        the comparison leads its own, else the one that `protocols.yaml` lists first, which is the most careful."""
        own, same = self.paired(), self.paired(own=False)
        digests = own.groupby("protocol", sort=False)["digest"].agg(tuple)
        rows = []
        for group in digests.groupby(digests, sort=False).groups.values():
            names = sorted(compare_figure.in_order(group), key=lambda name: name != self.first)
            mine = own[own["protocol"] == names[0]]
            at_one = same.loc[same["protocol"] == names[0], "difference"]
            figures = {"time": mine["time"], "difference": mine["difference"]}
            figures |= {"at one rate": at_one} if len(at_one) else {}
            row: dict = {"protocol": " = ".join(names), "rate": mine["best"].iloc[0]}
            for name, values in figures.items():
                row |= with_interval(name, values)
            rows.append(row | mine[["samples/s", "bytes/sample", "age"]].mean().to_dict())
        return pd.DataFrame(rows).sort_values("time", kind="stable").reset_index(drop=True)

    def table(self) -> pd.DataFrame:
        """The summary as a person reads it."""
        table = self.summary()
        cells = partial(interval_texts, table)
        shown = {
            "protocol": table["protocol"],
            "best rate": [f"{rate:.3g}×" for rate in table["rate"]],
            f"time vs {self.first}": cells("time", 1),
            f"{self.unit} − {self.first}'s, 10⁻³": cells("difference", 1e3),
        }
        if "at one rate" in table:
            shown["at one rate"] = cells("at one rate", 1e3)
        rest = {"samples/s": "samples/s", "B/sample": "bytes/sample", "age": "age"}
        return pd.DataFrame(shown | {name: table[column].map(_short) for name, column in rest.items()})

    def without_loss(self) -> pd.Series:
        """The summary's row of the fastest protocol that does not end measurably below the first; the first's own if no other
        is faster on average."""
        table = self.summary()
        return table[~(table["difference, high"] < 0) | self._mine(table)].iloc[0]

    def fastest(self) -> pd.Series:
        """The summary's row of the protocol that is the fastest to the goal on average, whatever it loses in the end."""
        return self.summary().iloc[0]

    def choice(self) -> str:
        """The fastest protocol without a measurable loss."""
        return _leader(self.without_loss())

    def answer(self) -> list[str]:
        """The fastest without a measurable loss, and the fastest at any price. Where none is measurably faster than the first, it
        says so before it names the fastest on average."""
        sound, fast, table = self.without_loss(), self.fastest(), self.summary()
        first = f"Fastest to {self.target} without a measurable loss: {self.sentence(sound)}"
        faster = (table["time, high"] < 1) & ~(table["difference, high"] < 0)
        if not (faster.any() or _leader(sound) == self.first):
            none = f"Keep {self.first}: without a measurable loss, none is measurably faster to {self.target}."
            first = f"{none} Fastest on average: {self.sentence(sound)}"
        if sound["protocol"] == fast["protocol"]:
            return [first, "Fastest at any price: the same."]
        return [first, f"Fastest at any price: {self.sentence(fast)}"]

    def sentence(self, row: pd.Series) -> str:
        """A row of the summary in a sentence."""
        name, *same = row["protocol"].split(" = ")
        twins = f" ({', '.join(same)} {'gives' if len(same) == 1 else 'give'} identical runs)" if same else ""
        if self.first == name:
            return f"{name}{twins}; no other protocol is both faster on average and without a loss."
        mean, low, high = row[_ENDS["time"]]
        unsure = "" if high < 1 else ", which is not measurably faster"
        return f"{name}{twins}, in {_interval(mean, low, high)} of {self.first}'s time{unsure}; {self._ends(row)}."

    def verdict(self) -> str:
        """The answer, and how the other protocols compare with it."""
        table, sound = self.summary(), self.without_loss()
        sentences = self.answer()
        others = table[~table["protocol"].isin([sound["protocol"], self.fastest()["protocol"]])]
        near = others[(others["time, low"] <= sound["time, high"]) & (others["difference, high"] >= 0)]
        if len(near):
            sentences.append(f"As fast within the intervals, without a measurable loss: {', '.join(near['protocol'])}.")
        if lost := [*others.loc[others["difference, high"] < 0, "protocol"]]:
            sentences.append(f"Measurably below {self.first} at the end: {', '.join(lost)}.")
        if never := [*table.loc[~np.isfinite(table["time"]), "protocol"]]:
            sentences.append(f"Below the goal on some seed: {', '.join(never)}.")
        return " ".join(sentences)

    def _mine(self, table: pd.DataFrame) -> pd.Series:
        """Which row is the first's."""
        return table["protocol"].map(_leader) == self.first

    def _ends(self, row: pd.Series) -> str:
        mean, low, high = row[_ENDS["difference"]]
        if low <= 0 <= high:
            found = _interval(1e3 * mean, 1e3 * low, 1e3 * high)
            return f"no difference in the final {self.unit} was measured ({found} × 10⁻³)"
        size = sorted(abs(1e3 * x) for x in (low, high))
        change = f"{_interval(abs(1e3 * mean), *size)} × 10⁻³ {'lower' if high < 0 else 'higher'}"
        return f"its final {self.unit} is {change} than {self.first}'s"

    def figure(self) -> Figure:
        """Time to the goal against the difference in the metric, a mark a protocol with the intervals of both. A ring marks the
        first, the fastest without a measurable loss, and the fastest at any price."""
        table = self.summary()
        table = table[np.isfinite(table["time"])]
        chosen = {
            self.first: "what you have",
            self.choice(): "fastest without a measurable loss",
            _leader(self.fastest()): "fastest at any price",
        }
        with plots.style():
            fig = Figure(figsize=(plots.WIDTH, 4.0), layout="constrained")
            ax = fig.subplots()
            marks, tones, names = [], [], []
            for _, row in table.iterrows():
                (x, *wide), (y, *tall) = row[_ENDS["time"]], 1e3 * row[_ENDS["difference"]].astype(float)
                reach = ([[abs(end - at)] for end in ends] for at, ends in ((y, tall), (x, wide)))
                name = _leader(row)
                ring = {"markeredgecolor": plots.BLACK, "markeredgewidth": 1.5} if name in chosen else {}
                ax.errorbar(x, y, *reach, fmt="o", color=colour(name)[0], markersize=8, linewidth=1, **ring)
                marks.append((x, y))
                tones.append(colour(name)[0])
                names.append(f"{row['protocol']}: {chosen[name]}" if name in chosen else row["protocol"])
            ax.axhline(0, color=plots.BLACK, linewidth=0.8)
            ax.set_xlabel(f"time to {self.target}, {self.first}'s = 1 (left is faster)")
            ax.set_ylabel(f"{self.unit} − {self.first}'s, 10⁻³")
            ax.margins(x=0.25, y=0.2)
            compare_figure.name_marks(ax, names, marks, tones, size=8)
        return fig


def with_interval(name: str, values: pd.Series) -> dict[str, float]:
    """The mean of the values under a name, and the ends of its interval."""
    return dict(zip((name, f"{name}, low", f"{name}, high"), interval(values), strict=True))


def interval_texts(table: pd.DataFrame, name: str, factor: float) -> list[str]:
    """A column with its interval as a person reads it, times a factor."""
    ends = table[[name, f"{name}, low", f"{name}, high"]].itertuples(index=False)
    return [_interval(*(factor * x for x in each)) for each in ends]


_ENDS = {name: [name, f"{name}, low", f"{name}, high"] for name in ("time", "difference")}


def _leader(row: pd.Series | str) -> str:
    """The protocol whose name stands for a row."""
    return (row if isinstance(row, str) else row["protocol"]).split(" = ")[0]


def _interval(mean: float, low: float, high: float) -> str:
    if not math.isfinite(mean):
        return "never"
    digits = decimals([mean], mean - low)
    ends = [rounded(x, digits) for x in (mean, low, high)]
    return f"{ends[0]} [{ends[1]}, {ends[2]}]" if low < high else ends[0]


def _short(x: float) -> str:
    return f"{x / 1e6:.3g}M" if x >= 1e6 else rounded(x, decimals([x]))
