"""The picture that answers first: speed against quality on a shared cluster, one mark a protocol; and what it says, in words.

`notebooks/90_compare.ipynb` writes its data. The index and the README show what is committed of it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from reports import palette as looks
from reports.claims import interval
from reports.markup import Fragment, parts
from reports.plots import WIDTH, style
from reports.protocol_families import families, members
from reports.quantities import within

NOTEBOOK = "90_compare"
NAME = f"{NOTEBOOK}/shared_cluster"
KEPT = 99.0
"""Per cent of what Sync learns: who keeps so much, and is not measurably below it, counts as no worse in the answer."""
PAIRED = ("speed", "quality", "less")
DRAWN = PAIRED[:2]


def kept(folder: Path) -> pd.DataFrame | None:
    """The data that a folder of results holds; None where there is none."""
    path = folder / f"{NAME}.csv"
    return pd.read_csv(path) if path.exists() else None


def relative(data: pd.DataFrame) -> pd.DataFrame:
    """Each run beside Sync's of the same seed: `speed` over Sync's; `quality`, the per cent that was kept of what Sync learns
    more than a model that does not train; and `less`, its AUC less Sync's."""
    by = data.set_index(["seed", "protocol"])
    sync, frozen = (by.xs(name, level="protocol").reindex(data["seed"]) for name in ("sync", "frozen"))
    learnt = (data["auc"].to_numpy() - frozen["auc"].to_numpy()) / (sync["auc"] - frozen["auc"]).to_numpy()
    speed, less = (data["qps"].to_numpy() / sync["qps"].to_numpy(), data["auc"].to_numpy() - sync["auc"].to_numpy())
    shown = data.assign(speed=speed, quality=100 * learnt, less=less)
    return shown[shown["protocol"] != "frozen"]


def summary(data: pd.DataFrame) -> pd.DataFrame:
    """A row for each protocol: mean, low and high of speed, quality and AUC less Sync's; the fastest first."""
    rows = []
    for name, group in relative(data).groupby("protocol", sort=False):
        row: dict[str, Any] = {"protocol": name, "seeds": len(group)}
        for what in PAIRED:
            row |= dict(zip((what, f"{what}_low", f"{what}_high"), interval(group[what]), strict=True))
        rows.append(row)
    return pd.DataFrame(rows).sort_values("speed", ascending=False, kind="stable").reset_index(drop=True)


def alike(data: pd.DataFrame) -> dict[str, list[str]]:
    """By the first of them in the families' order, the others whose every run is equal to its: one rule, in this setting."""
    order, found = members(), {}
    runs = {name: group.set_index("seed")[["qps", "auc"]] for name, group in data.groupby("protocol", sort=False)}
    for name in sorted(runs, key=lambda name: order.index(name) if name in order else len(order)):
        twin = next((first for first in found if runs[first].equals(runs[name])), None)
        found.setdefault(twin or name, []).extend([name] if twin else [])
    return found


def tone(name: str) -> str:
    """The colour of a protocol's family; a combination has that of its rows' rule."""
    first = name.split("+")[0]
    found = (each["colour"] for each in families() if first in each["members"])
    return getattr(looks, next(found).upper()) if first in members() else looks.colour(name)[0]


def legend(fig: Figure, names: Iterable[str]) -> None:
    """Below a figure, the families of those that it shows."""
    firsts = {name.split("+")[0] for name in names}
    for each in families():
        if not firsts.isdisjoint(each["members"]):
            fig.axes[0].plot([], [], "o", color=getattr(looks, each["colour"].upper()), label=each["family"])
    fig.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def picture(data: pd.DataFrame) -> Figure:
    """One mark a protocol in its family's colour, its intervals as faint lines, its name beside it; one mark for those that
    nobody could tell apart."""
    table, order = summary(data), members()
    places = table[[*DRAWN]].round({"speed": 2, "quality": 1}).apply(tuple, axis=1)
    marks = [table[places == place] for place in dict.fromkeys(places)]
    with style():
        fig = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        ax = fig.subplots()
        for row in (mark.iloc[0] for mark in marks):
            look = {"color": tone(row.protocol)}
            ax.plot([row.speed_low, row.speed_high], [row.quality] * 2, **look, linewidth=1, alpha=0.35)
            ax.plot([row.speed] * 2, [row.quality_low, row.quality_high], **look, linewidth=1, alpha=0.35)
            ax.plot(row.speed, row.quality, "o", **look, markersize=7)
        ax.set(xlabel="speed: samples per second, times Sync's", ylabel="quality: % of what Sync learns")
        ax.grid(True, axis="both")
        ax.margins(x=0.1, y=0.06)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
        legend(fig, table["protocol"])
        called = []
        for mark in marks:
            first, *more = sorted(
                mark["protocol"], key=lambda name: (name not in order, name in order and order.index(name))
            )
            called.append(f"{first} and {len(more)} more" if len(more) > 1 else ", ".join([first, *more]))
        at = [(mark.iloc[0].speed, mark.iloc[0].quality) for mark in marks]
        name_marks(ax, called, at, [tone(mark.iloc[0].protocol) for mark in marks])
    return fig


SIDES = [(right, up) for up in (7, -8, 19, -20, 31, -32, 43, -44, 55, -56) for right in (7, -7)]
"""Points from a mark to its name, the nearest first."""


def name_marks(
    ax: Axes, names: Sequence[str], marks: Sequence[tuple[float, float]], tones: Sequence[str], size: float = 9
) -> None:
    """Names beside the first of so many marks, where neither a mark nor another name stands; a thin line to those far away."""
    ax.figure.draw_without_rendering()
    boxes = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in ax.transData.transform(marks)]
    for name, mark, colour in zip(names, marks, tones, strict=False):
        boxes.append(_named(ax, name, colour, mark, boxes, size))


def _named(ax: Axes, name: str, colour: str, mark: tuple[float, float], boxes: list[Bbox], size: float) -> Bbox:
    halo = [withStroke(linewidth=3, foreground="white")]
    look = {"textcoords": "offset points", "va": "center", "fontsize": size, "color": colour, "path_effects": halo}
    line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
    for place, (right, up) in enumerate(SIDES):
        text = ax.annotate(name, mark, (right, up), ha="left" if right > 0 else "right", **look)
        box = text.get_window_extent()
        inside = all(ax.bbox.contains(*corner) for corner in box.corners())
        free = inside and not any(box.overlaps(other) for other in boxes)
        if free or place == len(SIDES) - 1:
            if abs(up) > 8:
                ax.annotate("", mark, (right, up), textcoords="offset points", arrowprops=line)
            return box
        text.remove()
    raise AssertionError("the last place is taken in any case")


def svg(fig: Figure) -> str:
    """The figure as text that is the same whenever it is drawn, its letters as outlines."""
    buffer = io.StringIO()
    with style(), mpl.rc_context({"svg.fonttype": "path"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def answer(data: pd.DataFrame) -> list[str]:
    """What the picture says, in three sentences; those whose runs are the same are told as one."""
    twins, untrained = alike(data), data.loc[data["protocol"] == "frozen", "auc"].mean()
    table = summary(data).set_index("protocol")
    table = table[table.index.isin([*twins])]
    others = table.drop(index="sync")
    sound = others[(others["quality"] >= KEPT) & (others["less_high"] >= 0)]
    more = others.index[others["less_low"] > 0]
    fastest, least = others.index[0], others["quality"].idxmin()
    if best := next(iter(sound.index), ""):
        same = f" ({', '.join(twins[best])}: the same runs here)" if twins[best] else ""
        first = f"On a shared cluster use {best}{same}: {_found(table, best, ' of what sync learns')}."
    else:
        first = f"On a shared cluster use sync: all others lose measurably, or more than {100 - KEPT:g} % of what it learns."
    shown = "There no protocol is shown to learn more than sync."
    if len(more):
        shown = f"Shown to learn more there than sync: {', '.join(more)}."
    second = f"{shown} Sync waits for its slowest worker, which costs it little where workers are equal."
    third = ""
    if fastest != best:
        if best and told(table, fastest)[0] == told(table, best)[0]:
            third = f"Speed alone misleads: {fastest} was as fast, and {_kept(table, fastest)}. "
        else:
            third = f"Speed alone misleads, as with {fastest}: {_found(table, fastest)}. "
    elif least != best:
        third = f"Who mixes less learns less, as {least}: {_found(table, least)}. "
    how = (
        f"100 % is what sync learns, 0 % an untrained model, whose AUC is {untrained:.2f}; differences are paired by seed. Each "
        "protocol at the best of a few learning rates, which one seed of its own chose where workers are equal; 95 % intervals "
        f"over {table['seeds'].min()} seeds, virtual workers, synthetic clicks."
    )
    return [first, second, f"{third}({how})"]


def _found(table: pd.DataFrame, name: str, of: str = "") -> str:
    return f"it trained {told(table, name)[0]} times as many samples per second as sync and {_kept(table, name, of)}"


def _kept(table: pd.DataFrame, name: str, of: str = "") -> str:
    _, quality, less = told(table, name)
    return f"kept {quality} %{of} (AUC less sync's: {less})"


def told(table: pd.DataFrame, name: str) -> tuple[str, ...]:
    """Speed, quality and AUC less Sync's of a protocol in a `summary` that is indexed by it."""
    row = table.loc[name]
    return tuple(within(row[what], row[what] - row[f"{what}_low"]) for what in PAIRED)


def in_short(data: pd.DataFrame) -> Fragment:
    """The answer as the block that stands below a page's question."""
    return Fragment(parts().short((), (), (), answer(data)), "short")
