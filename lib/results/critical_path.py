"""What a run's length is made of: the chain of activities, backwards from the last, each of which the next one waited for.

The trace tells who did what when, not who waited for whom, so the cause of a wait is taken to be what ended last before the
wait did: behind a barrier that is the slowest worker's push, at a busy server the gradient applied before. A chain found so
is right where waits end the moment their cause does, as they do in virtual time.
"""

from __future__ import annotations

import pandas as pd

PASSIVE = ("wait",)
"""Kinds of spans that only wait for something."""


def critical_path(trace: pd.DataFrame, slack: float = 1e-3) -> pd.DataFrame:
    """The chain, in order of time: node, kind, start, end, and `idle`, the gap before the next link of it.

    Two spans of a node belong together when the gap between them is at most `slack` of the run's length.
    """
    spans = trace[(trace["end"] > trace["start"]) & ~trace["kind"].isin(PASSIVE)].sort_values("end", kind="stable")
    if spans.empty:
        return spans.assign(idle=[])[["node", "kind", "start", "end", "idle"]]
    slack *= trace["end"].max() - trace["start"].min()
    ends = spans["end"].to_numpy()
    own = dict(list(spans.groupby("node")))
    link, chain = spans.iloc[-1], []
    while link is not None:
        chain.append(link)
        link = _before(link, spans, ends, own[link["node"]], slack)
    path = pd.DataFrame(reversed(chain))[["node", "kind", "start", "end"]].reset_index(drop=True)
    path["idle"] = (path["start"].shift(-1) - path["end"]).clip(lower=0.0)
    return path


def breakdown(path: pd.DataFrame) -> pd.Series:
    """Share of the chain's length by kind, largest first; "idle" is what no span explains."""
    if path.empty:
        return pd.Series(dtype=float)
    # Where a span began before the one that it waited for had ended, its own share starts there.
    begins = path["start"].clip(lower=path["end"].shift(1).fillna(path["start"].iloc[0]))
    spent = (path["end"] - begins).clip(lower=0.0).groupby(path["kind"]).sum()
    spent["idle"] = path["idle"].sum()
    return (spent / (path["end"].iloc[-1] - path["start"].iloc[0])).sort_values(ascending=False)


def _before(link: pd.Series, spans: pd.DataFrame, ends, own: pd.DataFrame, slack: float) -> pd.Series | None:
    """What a span waited for: what its node did just before, or else what ended last anywhere before it started."""
    before = own["end"].searchsorted(link["start"], side="right") - 1
    if before >= 0 and link["start"] - own["end"].iloc[before] <= slack and own.index[before] != link.name:
        return own.iloc[before]
    anywhere = ends.searchsorted(link["start"], side="right") - 1
    while anywhere >= 0 and spans.index[anywhere] == link.name:
        anywhere -= 1
    return spans.iloc[anywhere] if anywhere >= 0 else None
