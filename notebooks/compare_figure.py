"""The figure and the sentences of the front page: speed against quality on a shared cluster, one mark a protocol.

`notebooks/90_compare.ipynb` saves the data. `python -m reports.publish` writes figure and sentences from the committed data, for
README and index.
"""

import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from lib.protocols import ALL
from reports import palette
from reports.claims import interval
from reports.families import families, members, protocols
from reports.plots import WIDTH, style
from reports.quantities import plus_minus

NAME = "90_compare/shared_cluster"
"""The notebook's figure whose data this is."""
CONDITIONS = "90_compare/conditions"
"""The notebook's data of all conditions."""
FIDELITY = "94_fidelity/throughput"
"""Measured and predicted throughputs."""
APART = 0.05
"""A protocol whose speed differs from Sync's by less is neither faster nor slower: simulated time is no better than that."""
SHARE = 99.0
"""Per cent of what Sync learns: a protocol with so much, and not measurably below Sync, is as good in the answer."""
PAIRED = ("speed", "quality", "less")
"""Columns that are compared with Sync's run of the same seed."""
SIDES = [(right, up) for up in (7, -8, 19, -20, 31, -32, 43, -44, 55, -56) for right in (7, -7)]
"""Points from a mark to its name, the nearest first."""


def read(folder: Path) -> pd.DataFrame | None:
    """The data in a folder of results; None where it has none."""
    path = folder / f"{NAME}.csv"
    return pd.read_csv(path) if path.exists() else None


def relative(data: pd.DataFrame) -> pd.DataFrame:
    """Each run compared with Sync's of the same seed.

    `speed` is a multiple of Sync's. `quality` is the per cent of what Sync learns, that is of its AUC above a model that does not
    train. `less` is the difference from Sync's AUC.
    """
    runs = data.set_index(["seed", "protocol"])
    sync, frozen = (runs.xs(name, level="protocol").reindex(data["seed"]) for name in ("sync", "frozen"))
    learnt = (data["auc"].to_numpy() - frozen["auc"].to_numpy()) / (sync["auc"] - frozen["auc"]).to_numpy()
    speed, less = (data["qps"].to_numpy() / sync["qps"].to_numpy(), data["auc"].to_numpy() - sync["auc"].to_numpy())
    compared = data.assign(speed=speed, quality=100 * learnt, less=less)
    return compared[compared["protocol"] != "frozen"]


def summary(data: pd.DataFrame) -> pd.DataFrame:
    """A row for each protocol: mean, low and high of each of `PAIRED`; the fastest first."""
    rows = []
    for name, group in relative(data).groupby("protocol", sort=False):
        row: dict[str, Any] = {"protocol": name, "seeds": len(group)}
        for column in PAIRED:
            row |= dict(zip((column, f"{column}_low", f"{column}_high"), interval(group[column]), strict=True))
        rows.append(row)
    return pd.DataFrame(rows).sort_values("speed", ascending=False, kind="stable").reset_index(drop=True)


def identical(data: pd.DataFrame) -> dict[str, list[str]]:
    """First of several protocols, in the families' order -> the others whose every run equals its run."""
    found: dict[str, list[str]] = {}
    runs = {name: group.set_index("seed")[["qps", "auc"]] for name, group in data.groupby("protocol", sort=False)}
    for name in in_order(runs):
        twin = next((first for first in found if runs[first].equals(runs[name])), None)
        found.setdefault(twin or name, []).extend([name] if twin else [])
    return found


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the families' order, unknown ones last."""
    order = members()
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def legend(fig: Figure, names: Iterable[str]) -> None:
    """Add the families of these protocols below a figure."""
    firsts = {name.split("+")[0] for name in names}
    for each in families():
        if not firsts.isdisjoint(each["members"]):
            fig.axes[0].plot([], [], "o", color=palette.colour(each["members"][0])[0], label=each["family"])
    fig.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def figure(data: pd.DataFrame) -> Figure:
    """Draw one mark a protocol in its family's colour, with faint lines for its intervals and its name next to it.

    Protocols that would be drawn at the same place have one mark.
    """
    table = summary(data)
    places = table[["speed", "quality"]].round({"speed": 2, "quality": 1}).apply(tuple, axis=1)
    groups = [table[places == place] for place in dict.fromkeys(places)]
    firsts = [group.iloc[0] for group in groups]
    with style():
        fig = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        ax = fig.subplots()
        for row in firsts:
            look = {"color": palette.colour(row.protocol)[0]}
            ax.plot([row.speed_low, row.speed_high], [row.quality] * 2, **look, linewidth=1, alpha=0.35)
            ax.plot([row.speed] * 2, [row.quality_low, row.quality_high], **look, linewidth=1, alpha=0.35)
            ax.plot(row.speed, row.quality, "o", **look, markersize=7)
        ax.set(xlabel="speed: samples per second, as a multiple of Sync's", ylabel="quality: % of what Sync learns")
        ax.grid(True, axis="both")
        ax.margins(x=0.1, y=0.06)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
        legend(fig, table["protocol"])
        names = []
        for group in groups:
            first, *more = in_order(group["protocol"])
            names.append(f"{first} and {len(more)} more" if len(more) > 1 else ", ".join([first, *more]))
        name_marks(
            ax, names, [(row.speed, row.quality) for row in firsts], [palette.colour(row.protocol)[0] for row in firsts]
        )
    return fig


def name_marks(
    ax: Axes, names: Sequence[str], marks: Sequence[tuple[float, float]], tones: Sequence[str], size: float = 9
) -> None:
    """Write names next to the first marks, clear of all marks and other names; a thin line leads to a name far away."""
    ax.figure.draw_without_rendering()
    boxes = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in ax.transData.transform(marks)]
    for name, mark, colour in zip(names, marks, tones, strict=False):
        boxes.append(_name_mark(ax, name, colour, mark, boxes, size))


def _name_mark(ax: Axes, name: str, colour: str, mark: tuple[float, float], boxes: list[Bbox], size: float) -> Bbox:
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
    raise AssertionError("the last place is always taken")


def svg(fig: Figure) -> str:
    """The figure as text, with letters as outlines; equal figures are equal texts."""
    buffer = io.StringIO()
    with style(), mpl.rc_context({"svg.fonttype": "path"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def answer(data: pd.DataFrame) -> list[str]:
    """What the figure shows, in three sentences at most; protocols with identical runs are named together."""
    twins = identical(data)
    table = summary(data).set_index("protocol")
    table = table[table.index.isin([*twins])]
    others = table.drop(index="sync")
    sound = others[(others["quality"] >= SHARE) & (others["less_high"] >= 0)]
    higher = others.index[others["less_low"] > 0]
    fastest = others.index[0]
    if best := next(iter(sound.index), ""):
        same = f" In this test {', '.join(twins[best])} is identical; {best} is more careful."
        same = same if twins[best] else ""
        first = f"On a simulated shared cluster, use {best}: {_found(table, best)}.{same}"
    else:
        lost = f"AUC, or more than {100 - SHARE:g} % of what sync learns"
        first = f"On a simulated shared cluster, use sync: every other protocol loses {lost}."
    second = "No protocol reaches a measurably higher AUC than sync there."
    if len(higher):
        second = f"A measurably higher AUC than sync's there: {', '.join(higher)}."
    third = f"Speed alone misleads: with {fastest}, {_found(table, fastest)}." if fastest != best else ""
    return [each for each in (first, second, third) if each]


def _found(table: pd.DataFrame, name: str) -> str:
    """Speed and quality of a protocol compared with Sync's."""
    row = table.loc[name]
    half = row["less"] - row["less_low"]
    auc = f"AUC is {plus_minus(abs(row['less']), half)} {'lower' if row['less'] < 0 else 'higher'}"
    if row["less_low"] <= 0 <= row["less_high"]:
        auc = f"AUC is the same within noise ({plus_minus(row['less'], half)})"
    return f"training is {row['speed']:.2f} ± {row['speed'] - row['speed_low']:.2f}× as fast as with sync, and {auc}"


def fidelity(folder: Path) -> str:
    """How far simulated throughput was from that of real runs, by the data in a folder of results; empty where it has none."""
    path = folder / f"{FIDELITY}.csv"
    if not path.exists():
        return ""
    data = pd.read_csv(path)
    error = 100 * data["error"].abs()
    worst = data.loc[error.idxmax()]
    where = {"local": "threads", "ray": "Ray"}[worst["cluster"]]
    return (
        f"On one machine, simulated throughput was {error.median():.1f} % from that of real runs in the median (threads and "
        f"Ray, 2 to 4 workers), and {error.max():.1f} % at worst ({where}, {worst['workers']} workers, {worst['protocol']})."
    )


def front(data: pd.DataFrame, conditions: pd.DataFrame | None = None, fidelity: str = "") -> dict[str, Any]:
    """The answer for README and front page, how it was measured, with links as [text](page), and every condition's numbers."""
    number = data["protocol"].nunique() - 1  # without the frozen model
    words, untrained = protocols(), data.loc[data["protocol"] == "frozen", "auc"].mean()
    counts = {"measured": number, "all": len(members()), "except": _unmeasured({*data["protocol"]})}
    about = [words["measured"].format(**counts), *([words["same"]] if "bsp" in identical(data).get("gba", ()) else [])]
    method = (
        "Each protocol used the best of a few learning rates, tuned on a separate seed with equally fast workers. Differences "
        f"are paired by seed; intervals are 95 % over {data['seed'].nunique()} seeds. Untrained, the AUC is {untrained:.2f}."
    )
    measured = {} if conditions is None else measurements(conditions)
    about[0] = f"{about[0]} {fidelity}".strip()
    return {"answer": answer(data), "about": [*about, method, words["depends_on"]], "measured": measured}


def _unmeasured(names: Collection[str]) -> str:
    """How many protocols were not measured, as a clause."""
    families = [ALL[name].family for name in members() if name not in names]
    newer = len(families) - families.count("pipeline")
    parts = [f"{newer} newer ones"] * bool(newer) + ["the single-device ones"] * ("pipeline" in families)
    return f" (not yet {' and '.join(parts)})" if newer else f" (all but {parts[0]})" if parts else ""


def read_conditions(folder: Path) -> pd.DataFrame | None:
    """The runs of all conditions in a folder of results; None where it has none."""
    path = folder / f"{CONDITIONS}.csv"
    return pd.read_csv(path) if path.exists() else None


def paired(data: pd.DataFrame) -> pd.DataFrame:
    """Each run compared with Sync's of the same condition and seed: `speed`, a multiple, and `auc`, a difference."""
    sync = data[data["protocol"] == "sync"].set_index(["condition", "seed"])
    same = sync.loc[pd.MultiIndex.from_frame(data[["condition", "seed"]])]
    speed = data["samples/s"].to_numpy() / same["samples/s"].to_numpy()
    auc = data["metric"].to_numpy() - same["metric"].to_numpy()
    return data.assign(speed=speed, auc=auc)[data["protocol"] != "frozen"]


def measurements(data: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """Condition -> protocol -> speed as a multiple of Sync's with its interval, and AUC minus Sync's with its interval."""
    found: dict[str, dict[str, list[float]]] = {}
    for (condition, name), group in paired(data).groupby(["condition", "protocol"], sort=False):
        numbers = [round(x, 5) + 0.0 for column in ("speed", "auc") for x in interval(group[column])]
        found.setdefault(condition, {})[name] = numbers
    return found


def advice(data: pd.DataFrame, names: Iterable[str]) -> tuple[str, str, str]:
    """Where these protocols train faster than Sync, where all of them are slower, and what they lose: the conditions with the
    speed of the fastest, as a multiple of Sync's, and the range of AUC minus Sync's."""
    mine = paired(data)
    mine = mine[mine["protocol"].isin([*names]) & (mine["protocol"] != "sync")]
    if mine.empty:
        return "–", "–", "–"
    means = mine.groupby(["condition", "protocol"], sort=False)[["speed", "auc"]].mean()
    best = means["speed"].groupby(level="condition", sort=False).max()
    faster, slower = best[best > 1 + APART].sort_values(ascending=False), best[best < 1 - APART].sort_values()
    places = [
        ", ".join(f"{name} ({speed:.1f}×)" for name, speed in part.items()) or "none" for part in (faster, slower)
    ]
    ends = dict.fromkeys(f"{x:.4f}".replace("-", "−") for x in (means["auc"].min() + 0.0, means["auc"].max() + 0.0))
    return places[0], places[1], " to ".join(ends)
