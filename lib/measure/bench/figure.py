"""What was measured over what is demanded, one line a comparison: right of the line at 1 a demand is met."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lib.reporting.plots import BLUE, GREY, VERMILLION, WIDTH, style

COLOURS = {"yes": BLUE, "no": VERMILLION, "machine busy": GREY}
MARKS = "osD^v"


def headroom(table: pd.DataFrame) -> Figure:
    """Of the benchmark `store`; a mark's form is a size of tables, and a bar goes from the least ratio to the greatest."""
    table = table.dropna(subset=["measured"]).reset_index(drop=True)
    names = [_name(row) for row in table.itertuples()]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    sizes = list(dict.fromkeys(zip(table["rows"], table["dim"], strict=True)))
    marks = {size: MARKS[min(number, len(MARKS) - 1)] for number, size in enumerate(sizes)}
    with style():
        fig = Figure(figsize=(WIDTH, 0.21 * len(places) + 1.2), layout="constrained")
        ax = fig.subplots()
        ax.axvline(1, color="black", linewidth=1)
        for name, row in zip(names, table.to_dict("records"), strict=True):
            over = row["measured"] / row["demanded"]
            spread = [row.get(end) for end in ("least", "greatest")]
            x = over if row["relation"] == ">=" else 1 / over
            colour, y = COLOURS[row["holds"]], places[name]
            if row["relation"] == ">=" and pd.notna(spread).all():
                ax.plot([end / row["demanded"] for end in spread], [y, y], color=colour, linewidth=1.2, alpha=0.6)
            ax.plot(x, y, marks[row["rows"], row["dim"]], color=colour, markersize=4.5)
        ax.set_yticks(range(len(places)), list(places), fontsize=8)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.invert_yaxis()
        ax.set_xlabel("measured / demanded", fontsize=9)
        handles = [Line2D([], [], color=tone, marker="o", linestyle="", label=what) for what, tone in COLOURS.items()]
        handles += [
            Line2D([], [], color="black", marker=mark, linestyle="", label=f"{rows / 1e6:g} M × {dim:g}")
            for (rows, dim), mark in marks.items()
        ]
        fig.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=8)
    return fig


def _name(row) -> str:
    if pd.isna(row.ids):
        return f"{row.what}" + (f" against {row.peer}" if pd.notna(row.peer) else "")
    lru = " LRU" if "LRU" in row.what else ""
    return f"{row.peer}: {row.optimizer}{lru}, {row.ids}, {row.threads:.0f} thread{'s' * (row.threads > 1)}"
