"""The regime's pictures: what each way loses over the updates, and where it collapses."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from notebooks import law
from reports import plots

PER_MILLE = 1e3
APART = 1.05
"""Of one length's marks, so that their intervals are seen."""


def losses(there: pd.DataFrame) -> Figure:
    """A panel for each family: each way's cost over the updates at Sync's rates as marks, the laws' predictions as lines."""
    families = list(dict.fromkeys(there["family"]))
    with plots.style():
        fig = Figure(figsize=(plots.WIDTH, 2.6 * len(families)), layout="constrained")
        for ax, family in zip(fig.subplots(len(families), 1, sharex=True, squeeze=False)[:, 0], families, strict=True):
            ways = list(dict.fromkeys(there.loc[there["family"] == family, "way"]))
            for rank, (way, tone) in enumerate(zip(ways, sns.color_palette("colorblind", len(ways)), strict=True)):
                mine = there[there["way"] == way].sort_values("updates")
                aside = mine["updates"] * APART ** (rank - (len(ways) - 1) / 2)
                cost, ends = PER_MILLE * mine["cost"], PER_MILLE * abs(mine[["low", "high"]].T - mine["cost"])
                ax.errorbar(aside, cost, ends, color=tone, marker="o", linestyle="", label=way)
                ax.plot(aside, PER_MILLE * mine["predicted"], color=tone)
            ax.axhline(0, color=plots.BLACK, linewidth=0.8)
            ax.axhline(PER_MILLE * law.COLLAPSE, color=plots.BLACK, linewidth=0.8, linestyle=":")
            ax.set_xscale("log")
            ax.set_yscale("symlog", linthresh=1)
            ax.set_title(family, loc="left", fontsize=10, pad=3)
            ax.set_ylabel("AUC lost, 10^-3")
            ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        ax.set_xlabel("updates of Sync")
    return fig


def collapse(there: pd.DataFrame) -> Figure:
    """Where each way begins to collapse over its gradients' age, and where one curvature would, as a line through Sync's mark."""
    sync = there.loc[there["way"] == "sync", "begins"].iloc[0]
    old = np.geomspace(0.02, 1)
    with plots.style():
        fig = Figure(figsize=(plots.WIDTH, 3.2), layout="constrained")
        ax = fig.subplots()
        ax.plot(
            old, [sync * law.stable(share) / law.stable(0) for share in old], color=plots.BLACK, label="one curvature"
        )
        for way, tone in zip(there["way"], sns.color_palette("colorblind", len(there)), strict=True):
            mine = there[there["way"] == way]
            ax.plot(mine["age"].clip(lower=old[0]), mine["begins"], color=tone, marker="o", linestyle="", label=way)
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="age of gradients, in the way's own updates",
            ylabel="rate, of Sync's best",
        )
        ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig
