"""Figures in one style, with a caption, alternative text and their numbers; the notebooks find tables and cards here too."""

import base64
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from pandas.api.types import is_numeric_dtype

from lib import paths
from lib.errors import BadOption, unknown
from lib.results.run import Run
from reports.claims.dependencies import flatten
from reports.markup import TEMPLATES, Fragment, parts
from reports.notebook_output import claims, found, intervals, provenance_card, settings, table, verdicts  # noqa: F401, where notebooks find them
from reports.palette import BLACK, DASHES, DOTTED, GREY, KINDS, MARKS, SOLID, colour, colours, shades  # noqa: F401
from reports.quantities import label
from reports.runner import repeat  # noqa: F401

Table = pd.DataFrame | None
POINTS = {"linestyle": "", "marker": "o"}
HOLLOW = POINTS | {"markersize": 8, "markerfacecolor": "none", "markeredgecolor": BLACK}
"""The marks of the paper's values."""
WIDTH = 6.4
"""Inches: the width of a report's column, at which letters can be read on a phone."""


@contextmanager
def style() -> Iterator[None]:
    """Draw in the one style: seaborn's ticks, and `lockstep.mplstyle`."""
    ours = mpl.rc_context(fname=TEMPLATES / "lockstep.mplstyle")
    with sns.axes_style("ticks"), sns.plotting_context("notebook", font_scale=0.85), ours:
        yield


def clock(runs: Mapping[str, Iterable[Run]] | Iterable[Run]) -> str:
    """`virtual` or `wall`: the one clock of these runs."""
    clocks = sorted({run.summary["clock"] for run in flatten(runs)})
    if len(clocks) != 1:
        raise BadOption(f"runs of {' and '.join(clocks) or 'no'} clock: virtual and wall seconds are never mixed")
    return clocks[0]


def histories(runs: Mapping[str, Iterable[Run]]) -> pd.DataFrame:
    """The runs' histories as one table: protocol (the key), seed, and the histories' columns."""
    clock(runs)
    each = [(name, run) for name, group in runs.items() for run in flatten(group) if len(run.history)]
    frames = (run.history.assign(protocol=name, seed=int(run.provenance["seed"])) for name, run in each)
    frame = pd.concat(frames, ignore_index=True)
    return frame[["protocol", "seed", *frame.columns.drop(["protocol", "seed"])]]


def traces(runs: Mapping[str, Run], workers: int = 6, until: float | None = None) -> pd.DataFrame:
    """The first few workers' spans up to a moment, as one table: protocol, node, kind, start, end, batch."""
    clock(runs)
    frames = []
    for name, run in runs.items():
        trace = run.trace[run.trace["node"].astype(str).str.startswith("worker")]
        nodes = sorted(trace["node"].astype(str).unique(), key=_natural)[:workers]
        trace = trace[trace["node"].isin(nodes) & (trace["end"] > trace["start"])]
        if until is not None:
            trace = trace[trace["start"] < until].assign(end=lambda t: t["end"].clip(upper=until))
        frames.append(trace.assign(protocol=name))
    return pd.concat(frames, ignore_index=True)[["protocol", "node", "kind", "start", "end", "batch"]]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def curves(
    data: pd.DataFrame, x: str = "time", y: str = "auc", seconds: str = "virtual", predicted: Table = None
) -> Figure:
    """Draw one thin line for every seed of a protocol, so that the spread is seen.

    With `predicted`, its means are the lines, and the measured data are marks.
    """
    for column in (x, y, "protocol"):
        if column not in data.columns:
            raise unknown("column", column, data.columns)
    data = data.dropna(subset=[x, y])
    with style():
        fig = Figure(figsize=(WIDTH, 3.7), layout="constrained")
        ax = fig.subplots()
        looks = _looks("protocol", data, predicted)
        units = "seed" if "seed" in data else None
        handles = _lines(
            ax, data, x, y, "protocol", looks, predicted is not None, estimator=None, units=units, alpha=0.85
        )
        handles |= _references(ax, x, y, "protocol", looks, None, predicted)
        ax.set(xlabel=label(x, seconds), ylabel=label(y, seconds))
        ax.ticklabel_format(axis="y", useOffset=False)
        ax.legend(handles.values(), handles, loc="best", handlelength=3)
    return fig


def panels(
    data: pd.DataFrame,
    x: str,
    y: str,
    row: str,
    column: str,
    hue: str = "protocol",
    unit: str = "",
    paper: Table = None,
    predicted: Table = None,
) -> Figure:
    """Draw a panel for each pair of `row` and `column`: the mean over seeds as a line, the seeds' range behind it.

    The panels of a row share the y axis. `paper`, with the same columns, is drawn as hollow marks, `predicted` as in `curves`.
    """
    rows, columns = list(dict.fromkeys(data[row])), list(dict.fromkeys(data[column]))
    with style():
        fig = Figure(figsize=(WIDTH, 2.1 * len(rows) + 0.7), layout="constrained")
        grid = fig.subplots(len(rows), len(columns), sharey="row", squeeze=False)
        handles: dict[str, Any] = {}
        looks = _apart(_looks(hue, data, predicted, paper))
        for (i, this), (j, that) in product(enumerate(rows), enumerate(columns)):
            ax, tables = grid[i, j], (data, paper, predicted)
            here = [each if each is None else each[(each[row] == this) & (each[column] == that)] for each in tables]
            measured, *references = here
            handles |= _lines(ax, measured, x, y, hue, looks, predicted is not None, marker=".", errorbar=("pi", 100))
            handles |= _references(ax, x, y, hue, looks, *references)
            ax.set_title(", ".join(filter(None, (this, that))), loc="left", fontsize=10, pad=3)
            ax.set_ylabel(label(y) if j == 0 else "")
            ax.set_xlabel(unit or label(x) if i == len(rows) - 1 else "")
            ax.ticklabel_format(axis="y", useOffset=False)
            if is_numeric_dtype(data[x]):
                ax.xaxis.get_major_locator().set_params(integer=True)
        ncols = min(5, len(handles), 114 // (max(map(len, handles)) + 10))
        fig.legend(handles.values(), handles, loc="outside upper center", ncols=ncols, handlelength=3, fontsize=9)
    return fig


def _looks(hue: str, *tables: Table) -> dict[str, Any]:
    """The colour and dashes of each name in a column of these tables."""
    names = dict.fromkeys(str(name) for each in tables if each is not None for name in each[hue])
    return {name: colour(name) for name in names} if hue == "protocol" else colours(names)


def _apart(looks: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with other dashes where two names, as a protocol's variants, share colour and dashes."""
    taken: dict[str, Any] = {}
    for name, (tone, dashes) in looks.items():
        free = (each for each in (dashes, *DASHES) if (tone, each) not in taken.values())
        taken[name] = tone, next(free, dashes)
    return taken


def _lines(
    ax: Axes, data: pd.DataFrame, x: str, y: str, hue: str, looks: Mapping[str, Any], marks: bool, **options: Any
) -> dict[str, Line2D]:
    """Draw a line for each name, with seaborn, or marks with bars alone; return the legend's texts with their lines."""
    if data.empty:  # a panel of pairs that were not measured
        return {}
    data = data.assign(**{hue: data[hue].astype(str)})
    names = [*dict.fromkeys(data[hue])]
    tones = {name: looks[name][0] for name in names}
    dashes = {name: "" if looks[name][1] == SOLID else looks[name][1][1] for name in names}
    look = {"style": hue, "dashes": dashes, "err_kws": {"alpha": 0.15, "linewidth": 0}}
    if marks:
        look = POINTS | {"err_style": "bars", "err_kws": {"linewidth": 1}}
    sns.lineplot(
        data, x=x, y=y, hue=hue, palette=tones, legend=False, ax=ax, markersize=5, markeredgewidth=0, **options | look
    )
    shown = {"marker": options.get("marker", ""), "markersize": 5, "alpha": options.get("alpha", 1)}
    lines = {name: {"linestyle": looks[name][1]} | shown | (POINTS if marks else {}) for name in names}
    return {name: Line2D([], [], color=tones[name], **line) for name, line in lines.items()}


def _references(
    ax: Axes, x: str, y: str, hue: str, looks: Mapping[str, Any], paper: Table, predicted: Table
) -> dict[str, Line2D]:
    """Draw the paper's values as hollow marks and predictions as lines; return the legend's texts with their marks."""
    legend: dict[str, dict[str, Any]] = {}
    if predicted is not None:
        for name, group in predicted.groupby(hue, sort=False):
            tone, dashes = looks[str(name)]
            line = group.groupby(x)[y].mean()
            alone = {"marker": "_", "markersize": 16} if len(line) == 1 else {}
            ax.plot(line.index, line, color=tone, linestyle=dashes, **alone)
        legend |= {"measured": POINTS | {"color": BLACK}, "predicted": {"color": BLACK}}
    if paper is not None:
        for name, group in paper.groupby(hue, sort=False):
            ax.plot(group[x], group[y], zorder=4, **HOLLOW | {"markeredgecolor": looks[str(name)][0]})
        legend["the paper"] = HOLLOW
    return {text: Line2D([], [], **mark) for text, mark in legend.items()}


def gantt(data: pd.DataFrame, seconds: str = "virtual") -> Figure:
    """Draw a Gantt chart of a table as `traces` makes it: a panel for every protocol, a row for every worker."""
    names = list(dict.fromkeys(data["protocol"]))
    lines = sum(data[data["protocol"] == name]["node"].nunique() for name in names)
    with style():
        fig = Figure(figsize=(WIDTH, 0.215 * lines + 0.42 * len(names) + 0.9), layout="constrained")
        axes: Sequence[Any] = fig.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        for ax, name in zip(axes, names, strict=True):
            panel = data[data["protocol"] == name]
            nodes = sorted(panel["node"].astype(str).unique(), key=_natural)
            for kind, spans in panel.groupby("kind"):
                rows = spans["node"].astype(str).map(nodes.index)
                bars = [  # one collection for all rows: this chart follows sliders
                    ((start, row - 0.4), (start, row + 0.4), (end, row + 0.4), (end, row - 0.4))
                    for row, start, end in zip(rows, spans["start"], spans["end"], strict=True)
                ]
                ax.add_collection(PolyCollection(bars, color=KINDS.get(str(kind), GREY), linewidth=0))
            ax.autoscale_view()
            ax.set_yticks(range(len(nodes)), [re.sub(r"(\D)(\d+)$", r"\1 \2", node) for node in nodes], fontsize=9)
            ax.set_title(str(name), loc="left", fontsize=10, pad=3)
            ax.invert_yaxis()
            ax.grid(False)
        axes[-1].set_xlabel(label("time", seconds))
        shown = [kind for kind in KINDS if kind in set(data["kind"])]
        handles = [Patch(color=KINDS[kind], label=kind) for kind in shown]
        fig.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9, handlelength=1.2)
    return fig


def png(fig: Figure) -> bytes:
    """The figure as PNG without software, version or date, so that equal figures are equal bytes."""
    buffer = io.BytesIO()
    with style():
        fig.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def show(fig: Figure, data: pd.DataFrame, *, name: str, caption: str, alt: str) -> Fragment:
    """Save the figure with its CSV, and return it as HTML; `name` is the notebook's and the figure's, joined by '/'."""
    if not re.fullmatch(r"([\w-][\w.-]*/){1,2}[\w-][\w.-]*", name):
        raise BadOption(f"figure name {name!r}: write the notebook's name and the figure's: 00_quickstart/auc")
    for what, text in (("caption", caption), ("alternative text", alt)):
        if not text.strip():
            raise BadOption(f"figure {name!r}: the {what} is empty; say what the figure shows")
    picture, numbers = png(fig), data.to_csv(index=False, lineterminator="\n", float_format="%.9g")
    paths.write_bytes_atomic(paths.results() / f"{name}.png", picture)
    paths.write_text_atomic(paths.results() / f"{name}.csv", numbers)
    short = name.rpartition("/")[2]
    link = "/".join(name.split("/")[-2:]) + ".csv"  # the page and its numbers lie in one folder
    if not os.environ.get(paths.STAGE):  # in JupyterLab, which may serve another folder than that of the results
        link = f"data:text/csv;base64,{base64.b64encode(numbers.encode()).decode()}"
    html = parts().figure(short, base64.b64encode(picture).decode(), alt, caption, link)
    return Fragment(html)
