"""What was measured over what is demanded, one line a comparison: right of the line at 1 a demand is met."""

import pandas as pd
from matplotlib.figure import Figure

from reports.palette import BLUE, GREY, VERMILLION
from reports.plots import WIDTH, style

COLOURS = {"yes": BLUE, "no": VERMILLION, "machine busy": GREY}
MARKS = "osD^v"


def headroom(table: pd.DataFrame) -> Figure:
    """Of the benchmark `store`; a mark's form is a size of tables, and a bar goes from the least ratio to the greatest."""
    table = table.dropna(subset=["measured"])
    names = [_name(row) for row in table.itertuples()]
    lines = {name: line for line, name in enumerate(dict.fromkeys(names))}
    table = table.assign(place=[lines[name] for name in names], colour=table["holds"].map(COLOURS))
    with style():
        fig = Figure(figsize=(WIDTH, 0.21 * len(lines) + 1.2), layout="constrained")
        ax = fig.subplots()
        ax.axvline(1, color="black", linewidth=1)
        ends = (table[end] / table["demanded"] for end in ("least", "greatest"))
        ax.hlines(table["place"], *ends, colors=table["colour"], linewidth=1.2, alpha=0.6)
        for verdict, colour in COLOURS.items():
            ax.scatter([], [], color=colour, label=verdict)
        for number, ((rows, dim), sized) in enumerate(table.groupby(["rows", "dim"], sort=False)):
            mark, label = MARKS[min(number, len(MARKS) - 1)], f"{rows / 1e6:g} M × {dim:g}"
            ax.scatter(sized["headroom"], sized["place"], c=sized["colour"], marker=mark, s=20, zorder=3)
            ax.scatter([], [], color="black", marker=mark, label=label)
        ax.set_yticks(range(len(lines)), list(lines), fontsize=8)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.invert_yaxis()
        ax.set_xlabel("measured / demanded", fontsize=9)
        fig.legend(loc="outside upper center", ncols=4, fontsize=8)
    return fig


def _name(row) -> str:
    if pd.isna(row.ids):
        return f"{row.what}" + (f" against {row.peer}" if pd.notna(row.peer) else "")
    lru = " LRU" if "LRU" in row.what else ""
    return f"{row.peer}: {row.optimizer}{lru}, {row.ids}, {row.threads:.0f} thread{'s' * (row.threads > 1)}"
