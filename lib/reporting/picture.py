"""The picture that answers first: speed against quality on a busy cluster, one mark a protocol; and what it says, in words.

`notebooks/01_which_protocol.ipynb` writes its data. The index and the README show what is committed of it.
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

from lib.protocols import ALL
from lib.reporting.claims import interval
from lib.reporting.looks import colour
from lib.reporting.markup import Fragment, parts, rounded
from lib.reporting.plots import WIDTH, style
from lib.reporting.quantity import within

NOTEBOOK = "01_which_protocol"
NAME = f"{NOTEBOOK}/modes"
KEPT = 99.0
"""Per cent of what Sync learns: who keeps so much counts as no worse in the answer."""
PAIRED = ("speed", "quality")


def kept(folder: Path) -> pd.DataFrame | None:
    """The data that a folder of results holds; None where there is none."""
    path = folder / f"{NAME}.csv"
    return pd.read_csv(path) if path.exists() else None


def relative(data: pd.DataFrame) -> pd.DataFrame:
    """Each run beside Sync's of the same seed: `speed` over Sync's, and `quality`, the per cent that was kept of what Sync learns
    more than a model that does not train."""
    by = data.set_index(["seed", "protocol"])
    sync, frozen = (by.xs(name, level="protocol").reindex(data["seed"]) for name in ("sync", "frozen"))
    learnt = (data["auc"].to_numpy() - frozen["auc"].to_numpy()) / (sync["auc"] - frozen["auc"]).to_numpy()
    shown = data.assign(speed=data["qps"].to_numpy() / sync["qps"].to_numpy(), quality=100 * learnt)
    return shown[shown["protocol"] != "frozen"]


def summary(data: pd.DataFrame) -> pd.DataFrame:
    """A row for each protocol: mean, low and high of speed and quality; the fastest first."""
    rows = []
    for name, group in relative(data).groupby("protocol", sort=False):
        row: dict[str, Any] = {"protocol": name, "seeds": len(group)}
        for what in PAIRED:
            row |= dict(zip((what, f"{what}_low", f"{what}_high"), interval(group[what]), strict=True))
        rows.append(row)
    return pd.DataFrame(rows).sort_values("speed", ascending=False, kind="stable").reset_index(drop=True)


def picture(data: pd.DataFrame) -> Figure:
    """One mark a protocol, its intervals as faint lines, its name beside it; one mark for those that nobody could tell apart."""
    table = summary(data)
    places = table[[*PAIRED]].round({"speed": 2, "quality": 1}).apply(tuple, axis=1)
    marks = [table[places == place] for place in dict.fromkeys(places)]
    with style():
        fig = Figure(figsize=(WIDTH, 4.2), layout="constrained")
        ax = fig.subplots()
        for row in (mark.iloc[0] for mark in marks):
            tone = colour(row.protocol)[0]
            ax.plot([row.speed_low, row.speed_high], [row.quality] * 2, color=tone, linewidth=1, alpha=0.35)
            ax.plot([row.speed] * 2, [row.quality_low, row.quality_high], color=tone, linewidth=1, alpha=0.35)
            ax.plot(row.speed, row.quality, "o", color=tone, markersize=7)
        ax.set(xlabel="speed: samples per second, times Sync's", ylabel="quality: % of what Sync learns")
        ax.grid(True, axis="both")
        ax.margins(x=0.1, y=0.06)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
        fig.draw_without_rendering()
        taken = [ax.transData.transform(mark) for mark in table[[*PAIRED]].to_numpy()]
        boxes = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in taken]
        for mark in marks:
            names = sorted(mark["protocol"], key=list(ALL).index)
            first = mark.iloc[0]
            boxes.append(_named(ax, ", ".join(names), colour(first.protocol)[0], (first.speed, first.quality), boxes))
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
    """What the picture says, in three sentences."""
    table = summary(data).set_index("protocol")
    others = table.drop(index="sync")
    sound = others[others["quality"] >= KEPT]
    fastest, least, top = others.index[0], others["quality"].idxmin(), others["quality"].max()
    if best := next(iter(sound.index), ""):
        equal = sound.index[(sound[[*PAIRED]] == sound.loc[best, [*PAIRED]]).all(axis=1)]
        found = _found(table, best, "each" if len(equal) > 1 else "it")
        first = f"On a busy cluster use {' or '.join(sorted(equal, reverse=True))}: {found} of what sync learns."
    else:
        first = f"On a busy cluster sync keeps the most: no other protocol kept {KEPT:g} % of what it learns."
    most = "the most of all" if top <= 100 else f"as much as any but for {rounded(top - 100, 1)} %"
    second = f"Sync learns {most}, and waits for its slowest worker; where workers are equal, nobody waits for long."
    third = ""
    if fastest != best:
        third = f"Speed alone misleads, as with {fastest}: {_found(table, fastest)}. "
    elif least != best:
        third = f"Who mixes less learns less, as {least}: {_found(table, least)}. "
    seeds = f"95 % intervals over {table['seeds'].min()} seeds"
    how = f"Each protocol at its own best learning rate; {seeds}, virtual workers, synthetic clicks."
    return [first, second, f"{third}({how})"]


def _found(table: pd.DataFrame, name: str, who: str = "it") -> str:
    speed, quality = speed_and_quality(table, name)
    return f"{who} trained {speed} times as many samples per second as sync and kept {quality} %"


def speed_and_quality(table: pd.DataFrame, name: str) -> tuple[str, ...]:
    """As the picture has them, of a protocol in a `summary` that is indexed by it."""
    row = table.loc[name]
    return tuple(within(row[what], row[what] - row[f"{what}_low"]) for what in PAIRED)


def in_short(data: pd.DataFrame) -> Fragment:
    """The answer as the block that stands below a page's question."""
    return Fragment(parts().short((), (), (), answer(data)), "short")
