"""The regime of runs that are judged, next to the paper's: how long, how large, how fast, how old.

    here = [regime.cells(run, [base], workload, brings=auc - frozen) for run, base in ...]
    plots.table(regime.table({"criteo": here}, regime.printed("gba")), regime.CAPTION)
    plots.table(regime.of(data, runs, "persia"), regime.CAPTION)  # of runs that begin from nothing

A paper's own figures lie next to its claims (`regime.yaml`), under the same names: column -> cell -> number.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import pandas as pd

from lib import Run, Workload, paths, protocols, workloads
from lib.options.yaml_source import load
from lib.tasks.workload import dense_parameters
from reports.claims import differs
from reports.markup import number

CELLS = {
    "parameters": "dense parameters",
    "operations": "operations of a training step for each sample",
    "workers": "workers",
    "batch": "samples of a worker's batch",
    "samples": "samples of a pass",
    "epochs": "passes over the data",
    "falls": "falls of the learning rate",
    "fall": "what each multiplies the rate by",
    "decay": "weight decay",
    "updates before": "updates before the judged stretch",
    "updates judged": "updates in it",
    "global batch": "samples of a global batch",
    "samples per id": "samples, until the stretch ends, for each id",
    "rows in most batches": "share of the rows that are in most of ten global batches",
    "rate of dense": "learning rate of the dense parameters",
    "rate of rows": "learning rate of the rows",
    "age in versions": "age of gradients in versions",
    "oldest in versions": "the oldest in versions",
    "age in tokens": "age of gradients in tokens",
    "oldest in tokens": "the oldest in tokens",
    "brings": "what training brings: best less frozen",
    "gap": "steps between mixes",
    "conflicts": "rows that were read too early, of all",
}
"""The columns of a regime, in the order of a table; a run has what its protocol has."""
CAPTION = "The regime, the mean over the runs next to the paper's; an arrow marks what is more than four times from it."
MOST = 400_000
"""Samples whose ids are counted, at most."""
FIGURES = {
    "age in versions": "staleness_mean",
    "oldest in versions": "staleness_max",
    "age in tokens": "data_staleness_mean",
    "oldest in tokens": "data_staleness_max",
    "gap": "sync_gap",
}
OPTIMISERS = {"dense": "dense_optimizer", "rows": "row_optimizer"}


def cells(run: Run, before: Sequence[Run] = (), workload: Workload | None = None, brings: float | None = None) -> dict:
    """The regime of a run. `before` are the runs that led to it; ids are counted in the workload's stream."""
    phase, summary = _phase(run), run.summary
    batch = _batches(phase) * phase["batch_size"]
    found = {"workers": phase["workers"], "batch": phase["batch_size"]}
    if falls := len(run.provenance["workload"].get("lr_milestones", ())):
        found["falls"] = falls
    found |= {"updates before": sum(map(_updates, before)), "updates judged": _updates(run), "global batch": batch}
    if workload is not None:
        found["parameters"] = dense_parameters(workload)
    if workload is not None and workload.tables():
        samples = summary["samples"] + sum(each.summary["samples"] for each in before)
        found |= ids(workload, run.provenance["seed"], batch, samples)
    found |= {f"rate of {of}": phase[optimiser]["lr"] for of, optimiser in OPTIMISERS.items()}
    found |= {
        cell: float(summary[name]) for cell, name in FIGURES.items() if math.isfinite(summary.get(name, math.nan))
    }
    if summary.get("rows_read"):
        found["conflicts"] = summary["rows_validated_away"] / summary["rows_read"]
    return found | ({} if brings is None else {"brings": brings})


def _phase(run: Run) -> dict:
    """The run's last phase, with what it takes over from the run; one that has no phases is one."""
    provenance, rule = run.provenance, run.provenance["protocol"]
    phase = rule["phases"][-1] if "phases" in rule else {"protocol": rule}
    whole = {"workers": provenance["cluster"]["workers"], "batch_size": provenance["workload"]["batch_size"]}
    whole |= {name: provenance["workload"][name] for name in OPTIMISERS.values()}
    return whole | {name: value for name, value in phase.items() if value is not None}


def _batches(phase: Mapping) -> int:
    """Batches of an update, or of a step of all workers."""
    rule = phase["protocol"]
    return protocols.get(**rule.get("dense", rule)).batches_a_step(phase["workers"])


def _updates(run: Run) -> float:
    """Computed batches over those of an update."""
    return run.summary["issued"] / _batches(_phase(run))


def ids(workload: Workload, seed: int, batch: int, samples: int) -> dict[str, float]:
    """Samples for each distinct id, among the first `MOST` at most, and what share of ten batches' rows is in more than five."""
    counted = min(samples, MOST)
    stream = (workload.draw(seed, first, min(batch, samples - first), 0).ids for first in range(0, counted, batch))
    ten = list(islice(stream, 10))
    met = [np.unique(np.concatenate([each[table] for each in ten]), return_counts=True)[1] for table in ten[0]]
    seen = {table: np.unique(np.concatenate([each[table] for each in ten])) for table in ten[0]}
    for each in stream:
        seen = {table: np.union1d(known, each[table]) for table, known in seen.items()}
    share = float((np.concatenate(met) > len(ten) / 2).mean())
    return {"samples per id": counted / sum(map(len, seen.values())), "rows in most batches": share}


def paper_regime(paper: str) -> dict[str, dict[str, float]]:
    """A paper's regime: column -> cell -> figure."""
    return load(paths.notebooks() / paper / "regime.yaml")


def table(ours: Mapping[str, Iterable[Mapping[str, float]]], paper: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """A row for each cell, and for each column ours, the mean of its runs, next to the paper's, where it prints any; what strays
    is marked."""
    means = {column: pd.DataFrame(list(runs)).mean() for column, runs in ours.items()}
    shown = [cell for cell in CELLS if any(cell in {**mean, **paper.get(name, {})} for name, mean in means.items())]
    columns = {}
    for name, mean in means.items():
        theirs = paper.get(name, {})
        columns[name, "here"] = [mark(mean.get(cell), theirs.get(cell)) for cell in shown]
        if any(cell in theirs for cell in shown):
            columns[name, "paper"] = [number(theirs.get(cell)) for cell in shown]
    rows = pd.Index([CELLS[cell] for cell in shown], name="regime")
    return pd.DataFrame(columns, index=rows)


def comparison(data: pd.DataFrame, runs: Sequence[Run], paper: str, column: str = "task") -> pd.DataFrame:
    """The table of a page's rows, each of the run at its place in its index: a column for each value of `column`, whose ids are
    counted in its first run. What training brings is the rows' own `brings`."""
    found: dict[str, list[dict]] = {}
    for row, name, brings in data[[column, "brings"]].itertuples(name=None):
        counted = None if name in found else _workload(runs[row].provenance["workload"])
        found.setdefault(name, []).append(cells(runs[row], (), counted, brings))
    return table(found, paper_regime(paper))


def _workload(described: Mapping) -> Workload:
    """The workload of a run: of real data without the options of synthetic data."""
    idle = workloads.ALL[described["name"]].synthetic_only if described.get("data") else ()
    return workloads.get(**{option: value for option, value in described.items() if option not in idle})


def mark(here: float | None, there: float | None) -> str:
    """Our figure, with an arrow and the ratio if it is far from the paper's."""
    if here is None or not math.isfinite(here) or there is None or not differs(here, there):
        return number(here)
    times = max(here, there) / min(here, there) if here and there else math.inf
    return f"{number(here)} {'▲' if here > there else '▼'} {number(times)}×"
