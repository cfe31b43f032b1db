"""What workers do when: timing runs of every protocol on a small simulated cluster, drawn as one path for each kind of work."""

from typing import Any

import pandas as pd

import lib
from lib.protocols import ALL

MACHINE = lib.Node(flops=4e8)
"""A gradient takes a millisecond, ten times as long as a message."""
WIDTH, SECONDS = 1000, 0.016
"""The drawing's width, and the time that it shows."""
SCALE = WIDTH / SECONDS
ROW = 22
WORK = {"compute": "compute", "pull": "send", "push": "send", "mix": "mix", "validate": "mix"}
WORK |= dict.fromkeys(("read", "transfer", "update", "write"), "send")
"""What a node does -> the kind that is drawn; the rest is waiting."""
STAGES = ("read", "transfer", "validate", "compute", "update", "push", "write")
"""The rows of a protocol of one device."""
WATCHED = ("sync", "async", "gba", "s-easgd", "hybrid", "oac")
SLOWDOWNS = (1.0, 1.5, 2.0, 3.0, 4.0)


def record() -> dict[str, Any]:
    """A timeline of each protocol with four workers, one of them at half speed; and of some with six, of which two are slower."""
    levels = {f"{slow:g}": {name: timeline(name, 6, 2, slow) for name in WATCHED} for slow in SLOWDOWNS}
    return {"protocols": {name: timeline(name, 4, 1, 2.0) for name in ALL if name != "frozen"}, "watched": levels}


def timeline(name: str, workers: int, slow: int, factor: float) -> dict[str, Any]:
    """The names of rows, a path for each kind of work, and when batches ended and updates were applied."""
    device = ALL[name].family == "pipeline"
    cluster = {} if device else {"workers": workers, "speeds": [1.0] * (workers - slow) + [1 / factor] * slow}
    cluster = lib.VirtualCluster(worker=MACHINE, **cluster)
    whole = lib.train("clicks-light", name, cluster, samples=64 * workers * 24, gradients=False, save=False).trace
    trace = whole.assign(end=whole["end"].clip(upper=SECONDS))
    trace = trace[trace["end"] > trace["start"]]
    if device:
        names = [stage for stage in STAGES if stage in set(trace["kind"])]
        place = trace["kind"].map({stage: row for row, stage in enumerate(names)})
    else:
        names = [f"worker {rank + 1}" + ", slower" * (factor > 1 and rank >= workers - slow) for rank in range(workers)]
        place = trace["node"].map({f"worker{rank}": rank for rank in range(workers)})
    drawn = trace.assign(row=place, work=trace["kind"].map(WORK)).dropna(subset=["row", "work"])
    paths = {
        kind: "".join(map(_bar, spans["row"], spans["start"] * SCALE, spans["end"] * SCALE))
        for kind, spans in drawn.groupby("work")
    }
    applied = whole["node"].astype(str).str.startswith("server") & whole["kind"].eq("apply")
    batches, updates = (_moments(whole[rows]) for rows in (whole["kind"] == "compute", applied))
    return {"rows": names, "paths": paths, "batches": batches, "updates": updates}


def _bar(row: float, start: float, end: float) -> str:
    return f"M{start:.0f} {row * ROW + ROW / 2:.0f}h{max(end - start, 1):.0f}"


def _moments(spans: pd.DataFrame) -> list[int]:
    return sorted(round(end * SCALE) for end in spans["end"] if end < SECONDS)
