"""The picture that answers first: speed against quality on a busy cluster, one mark a protocol; and what it says, in words.

`notebooks/90_compare.ipynb` writes its data. The index and the README show what is committed of it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from lib.reporting import looks
from lib.reporting.claims import interval
from lib.reporting.families import families, members
from lib.reporting.markup import Fragment, parts
from lib.reporting.plots import WIDTH, style
from lib.reporting.quantity import within

NOTEBOOK = "90_compare"
NAME = f"{NOTEBOOK}/shared_day"
KEPT = 99.0
"""Per cent of what Sync learns: who keeps so much counts as no worse in the answer."""
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


def picture(data: pd.DataFrame) -> Figure:
    """One mark a protocol in its family's colour, its intervals as faint lines, its name beside it; one mark for those that
    nobody could tell apart."""
    table, order = summary(data), members()
    tones = {name: getattr(looks, each["colour"].upper()) for each in families() for name in each["members"]}
    tones = {name: tones.get(name, looks.colour(name)[0]) for name in table["protocol"]}
    places = table[[*DRAWN]].round({"speed": 2, "quality": 1}).apply(tuple, axis=1)
    marks = [table[places == place] for place in dict.fromkeys(places)]
    with style():
        fig = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        ax = fig.subplots()
        for row in (mark.iloc[0] for mark in marks):
            tone = tones[row.protocol]
            ax.plot([row.speed_low, row.speed_high], [row.quality] * 2, color=tone, linewidth=1, alpha=0.35)
            ax.plot([row.speed] * 2, [row.quality_low, row.quality_high], color=tone, linewidth=1, alpha=0.35)
            ax.plot(row.speed, row.quality, "o", color=tone, markersize=7)
        ax.set(xlabel="speed: samples per second, times Sync's", ylabel="quality: % of what Sync learns")
        ax.grid(True, axis="both")
        ax.margins(x=0.1, y=0.06)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
        for each in families():
            if not {*each["members"]}.isdisjoint(table["protocol"]):
                ax.plot([], [], "o", color=getattr(looks, each["colour"].upper()), label=each["family"])
        fig.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        fig.draw_without_rendering()
        taken = [ax.transData.transform(mark) for mark in table[[*DRAWN]].to_numpy()]
        boxes = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in taken]
        for mark in marks:
            names = sorted(mark["protocol"], key=lambda name: order.index(name) if name in order else len(order))
            first = mark.iloc[0]
            boxes.append(_named(ax, ", ".join(names), tones[first.protocol], (first.speed, first.quality), boxes))
    return fig


def _named(ax: Axes, name: str, tone: str, mark: tuple[float, float], boxes: list[Bbox]) -> Bbox:
    """Write a name beside its mark, where nothing else stands yet; where it stands."""
    halo = [withStroke(linewidth=3, foreground="white")]
    look = {"textcoords": "offset points", "va": "center", "fontsize": 9, "color": tone, "path_effects": halo}
    for right, up in ((7, 7), (-7, 7), (7, -8), (-7, -8), (7, 19), (-7, 19), (7, -20), (-7, -20), (7, -32), (-7, -32)):
        text = ax.annotate(name, mark, (right, up), ha="left" if right > 0 else "right", **look)
        box = text.get_window_extent()
        if not any(box.overlaps(other) for other in boxes) and ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1:
            return box
        text.remove()
    return ax.annotate(name, mark, (7, 31), ha="left", **look).get_window_extent()


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
    sound, more = others[others["quality"] >= KEPT], others.index[others["less_low"] > 0]
    fastest, least = others.index[0], others["quality"].idxmin()
    if best := next(iter(sound.index), ""):
        same = f" ({', '.join(twins[best])}: the same runs here)" if twins[best] else ""
        first = f"On a busy cluster use {best}{same}: {_found(table, best, ' of what sync learns')}."
    else:
        first = f"On a busy cluster sync keeps the most: no other protocol kept {KEPT:g} % of what it learns."
    shown = "No protocol is shown to learn more than sync, which"
    if len(more):
        shown = f"Shown to learn more than sync: {', '.join(more)}. Sync"
    second = f"{shown} waits for its slowest worker; where workers are equal, nobody waits for long."
    third = ""
    if fastest != best:
        third = f"Speed alone misleads, as with {fastest}: {_found(table, fastest)}. "
    elif least != best:
        third = f"Who mixes less learns less, as {least}: {_found(table, least)}. "
    how = (
        f"100 % is what sync learns, 0 % an untrained model, whose AUC is {untrained:.2f}; differences are paired by seed. Each "
        "protocol at the best of a few learning rates, which one seed of its own chose; 95 % intervals over "
        f"{table['seeds'].min()} seeds, virtual workers, synthetic clicks."
    )
    return [first, second, f"{third}({how})"]


def _found(table: pd.DataFrame, name: str, of: str = "") -> str:
    speed, quality, less = told(table, name)
    return f"it trained {speed} times as many samples per second as sync and kept {quality} %{of} (AUC less sync's: {less})"


def told(table: pd.DataFrame, name: str) -> tuple[str, ...]:
    """Speed, quality and AUC less Sync's of a protocol in a `summary` that is indexed by it."""
    row = table.loc[name]
    return tuple(within(row[what], row[what] - row[f"{what}_low"]) for what in PAIRED)


def in_short(data: pd.DataFrame) -> Fragment:
    """The answer as the block that stands below a page's question."""
    return Fragment(parts().short((), (), (), answer(data)), "short")
