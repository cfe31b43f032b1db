"""Traces of real clusters, read strictly: what is missing or cannot be is an error with its file, row and column.

A file's form tells its format:
- `batch-times`: any job's, as comma-separated values with a header that has worker (a name or a number), time (seconds, when a
  step began or ended) and took (how long it was: seconds, unless the column's name ends with _ms, _us or _ns); steps of several
  workers, in any order. `columns` says which of another header's these are, and in which unit (`duration:ms`); without a time a
  worker's steps follow one another;
- `alibaba-pai`: mini-batch times of one training job's workers, as in alibaba/clusterdata,
  cluster-trace-gpu-v2020/mini-batch-time/data/job_*_norm.csv: worker, time (seconds), batch_time_norm (of any scale);
- `alibaba-usage`: machine_usage.csv of alibaba/clusterdata, cluster-trace-v2018, without a header: machine, time (seconds),
  CPU use in per cent, and six columns that are not used;
- `bytedance`: the durations of single operations in the format of ByteDance's straggler traces (Lin et al.,
  Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025), as parquet: rank, stage, step,
  optype, start_ts and duration (seconds), mb_id.

Rows are counted from 1; in a CSV file the first line is row 1, so that a row is the line that an editor shows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from data_prep.lines import first_line
from data_prep.source import packed
from lib.errors import BadOption, nearest

SECONDS_A_DAY = 86_400.0
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
MOST_OF_A_STEP = 1.5
"""Of the usual time from one step to the next: a step that takes longer is not in seconds."""
LEAST_FREE = 0.01
"""A machine whose CPU is all in use still gives a newcomer its time slices."""


class BadTrace(BadOption):
    """A trace that cannot be used."""

    def __init__(self, path: Path, problem: str, row: int | None = None, column: str | None = None):
        place = "".join([f", row {row}" if row is not None else "", f", column {column}" if column else ""])
        super().__init__(f"{path}{place}: {problem}")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What several workers took, sample by sample."""

    name: str
    """The file's name."""
    table: pd.DataFrame
    """worker (0, 1, ...), time (seconds), factor (how many times as long as on an undisturbed node), by worker and time."""
    step: float
    """Usual seconds between two samples of a worker."""
    daily: bool
    """Whether the factors follow the time of day."""
    took: float | None = None
    """Median seconds that a sample takes; None where the trace does not say it in seconds."""

    def seconds(self, steps: float, places: int = 1) -> float:
        """So many steps: to so many decimals, and in a trace of milliseconds to a tenth of a step or nearer."""
        return round(float(steps * self.step), max(places, 1 - math.floor(math.log10(self.step))))


def read_trace(path: str | Path, gap: float | None = None, columns: Mapping[str, str] | None = None) -> Trace:
    """The trace in that file; `columns`: worker, time, took -> its name there. A worker that says nothing for more than
    `gap` seconds is an error; None: 60 or six usual steps for the times of batches, an hour for machines; for operations, a
    micro-batch that is missing is a gap whatever `gap` says."""
    path = Path(path)
    if not path.is_file():
        raise BadTrace(path, "a folder; expected a file" if path.is_dir() else "there is no such file")
    if gap is not None and not 0 < gap < math.inf:
        raise BadOption(f"gap is {gap}; expected seconds, more than 0")
    return _batches(path, gap, columns) if columns else FORMATS[recognised(path)](path, gap)


def recognised(path: Path, columns: Mapping[str, str] | None = None) -> str:
    """The format that the file has, by how it begins."""
    if columns:
        return "batch-times"
    if kind := packed(path):
        raise BadTrace(path, f"this is {kind}; unpack it, and give the file that is in it")
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return "bytedance"
    cells = first_line(path).decode("utf-8", "replace").replace('"', "").strip().split(",")
    if "batch_time_norm" in cells:
        return "alibaba-pai"
    if "took" in cells:
        return "batch-times"
    if len(cells) == 9 and "worker" not in cells:
        return "alibaba-usage"
    raise BadTrace(
        path,
        f"no trace that is known here begins so: {','.join(cells)[:60]!r}; expected a header with worker, time and took; which "
        f"columns are they? {_likely(cells)}; or one of {', '.join(FORMATS)}, as data_prep/traces/formats.py describes them",
        row=1,
    )


ROLES = {
    "worker": ("worker", "rank", "node", "host", "machine", "trainer", "gpu", "device"),
    "time": ("time", "ts", "start", "begin", "when", "date"),
    "took": ("took", "dur", "elapsed", "step_time", "step_ms", "seconds", "latency", "ms"),
}
"""What a column of another header may be called, or have in its name."""


def _likely(cells: list[str]) -> str:
    """`--columns` with the header's likeliest names; a time that there is not may be left out."""
    found: dict[str, str] = {}
    for role in ("took", "worker", "time"):
        left = [cell for cell in cells if cell and cell not in found.values()]
        of_role = (cell for word in ROLES[role] for cell in left if word in cell.lower())
        found[role] = next(of_role, "" if role == "time" else "COLUMN")
    return "--columns " + ",".join(f"{role}={found[role]}" for role in ROLES if found[role])


def _batches(path: Path, gap: float | None, columns: Mapping[str, str] | None = None) -> Trace:
    return _times(path, "took", gap, columns or {})


def _pai(path: Path, gap: float | None) -> Trace:
    return _times(path, "batch_time_norm", gap)


def _times(path: Path, took: str, gap: float | None, columns: Mapping[str, str] = MappingProxyType({})) -> Trace:
    raw = _csv(path, None)
    if strange := columns.keys() - {*ROLES}:
        raise BadOption(f"--columns names {min(strange)!r}; expected worker=..., time=... and took=...")
    name, unit = _unit(columns.get("took", took), raw)
    columns = {**columns, "took": name} if columns else columns
    for role, name in columns.items():
        if name not in raw:
            raise BadTrace(path, f"no column {name!r} for {role}; {nearest(name, raw.columns)}", row=1)
    raw = raw[[*columns.values()]].set_axis([*columns], axis=1) if columns else raw
    if columns and "time" not in columns:
        _has(path, raw, ["worker", took])
        seconds = unit * _column(path, raw, took, 2, positive=True)
        raw = raw.assign(time=seconds.groupby(raw["worker"]).cumsum())
    _has(path, raw, ["worker", "time", took])
    nameless = np.flatnonzero((raw["worker"] == "").to_numpy())
    if nameless.size:
        raise BadTrace(path, "no worker is named", int(nameless[0]) + 2, "worker")
    names = pd.to_numeric(raw["worker"], errors="coerce")  # 10 comes after 9 where all are numbers
    table = pd.DataFrame(
        {
            "worker": pd.factorize(raw["worker"] if names.isna().any() else names, sort=True)[0],
            "time": _column(path, raw, "time", 2),
            "took": _column(path, raw, took, 2, positive=True),
        }
    )
    step = table.sort_values(["worker", "time"]).groupby("worker")["time"].diff().median()
    table = _in_order(path, table, gap or np.fmax(60.0, 6 * step), "time", 2)
    median = float(table.groupby("worker")["took"].median().median())
    # A step that is longer than the time from one to the next is in another unit.
    known = took == "took" and unit * median <= MOST_OF_A_STEP * step
    trace = _trace(path, table.assign(factor=table["took"] / median))
    return replace(trace, took=unit * median) if known else trace


def _unit(name: str, raw: pd.DataFrame) -> tuple[str, float]:
    """A column of times without its unit, and the unit's seconds: `duration:ms`, or `step_ms`."""
    column, _, unit = name.rpartition(":")
    if column and name not in raw:
        if unit not in UNITS:
            raise BadOption(f"--columns: took={name} ends with {unit!r}; expected one of {', '.join(UNITS)}")
        return column, UNITS[unit]
    return name, UNITS.get(name.rpartition("_")[2], 1.0)


def _usage(path: Path, gap: float | None) -> Trace:
    raw = _csv(path, ["machine", "time", "cpu", "memory", "mem_gps", "mkpi", "net_in", "net_out", "disk"])
    cpu = _column(path, raw, "cpu", 1)
    wrong = np.flatnonzero((cpu > 100).to_numpy())
    if wrong.size:
        raise BadTrace(path, f"a CPU use of {cpu.iloc[wrong[0]]:g} per cent", wrong[0] + 1, "cpu (3rd)")
    table = pd.DataFrame(
        {
            "worker": pd.factorize(raw["machine"], sort=True)[0],
            "time": _column(path, raw, "time", 1),
            "factor": 1 / np.maximum(1 - cpu / 100, LEAST_FREE),
        }
    )
    trace = _trace(path, _in_order(path, table, gap or 3_600.0, "time (2nd)", 1), daily=True, step=600.0)
    empty = np.setdiff1d(np.arange(24), hours(trace.table["time"]))
    if empty.size:
        raise BadTrace(path, f"no sample between {empty[0]}:00 and {empty[0] + 1}:00 of any day", column="time (2nd)")
    return trace


def _bytedance(path: Path, gap: float | None) -> Trace:
    """One sample is a micro-batch: its forward and its backward pass. Stages do different work, so a rank is measured
    against the median rank of its stage."""
    try:
        raw = pd.read_parquet(path).reset_index(drop=True)
    except (OSError, ValueError) as error:
        raise BadTrace(path, f"not a parquet file: {error}") from error
    _has(path, raw, ["rank", "stage", "step", "optype", "start_ts", "duration", "mb_id"])
    for name in ("rank", "stage", "step", "start_ts", "duration", "mb_id"):
        raw[name] = _column(path, raw, name, 1, least=-1.0 if name == "mb_id" else 0.0)
    chosen = raw[raw["optype"].isin(["forward-compute", "backward-compute"])]
    if chosen.empty:
        raise BadTrace(path, "no forward-compute and backward-compute", column="optype")
    idle = chosen.index[chosen["duration"] <= 0]
    if len(idle):
        raise BadTrace(path, "a pass that takes no time", int(idle[0]) + 1, "duration")
    whole = (
        chosen.reset_index(names="row")
        .groupby(["rank", "step", "mb_id"])
        .agg(
            stage=("stage", "first"),
            start=("start_ts", "min"),
            took=("duration", "sum"),
            passes=("optype", "size"),
            kinds=("optype", "nunique"),
            row=("row", "first"),
        )
    )
    whole = whole.reset_index()
    odd = whole[(whole["passes"] != 2) | (whole["kinds"] != 2)]
    if len(odd):
        rank, step, batch, passes, row = odd.iloc[0][["rank", "step", "mb_id", "passes", "row"]].astype(int)
        what = f"a gap: micro-batch {batch} of rank {rank}, step {step}, has not one forward and one backward pass"
        raise BadTrace(path, f"{what} but {passes} in all", row + 1, "optype")
    counts = whole.groupby(["rank", "step"]).size().unstack(fill_value=0).stack()
    if counts.nunique() > 1:
        rank, step = counts.idxmin()
        problem = f"a gap: rank {rank:g} has {counts.min()} micro-batches in step {step:g}, others have {counts.max()}"
        own = raw.index[(raw["step"] == step) & ((raw["rank"] == rank) | (counts.min() == 0))]
        raise BadTrace(path, problem, int(own[-1]) + 1, "mb_id")
    # start_ts begins anew with each step, and only some steps were recorded: they are put where they were.
    long = (chosen["start_ts"] + chosen["duration"]).groupby(chosen["step"]).max().median()
    typical = whole.groupby(["stage", "rank"])["took"].median().groupby("stage").median()
    table = pd.DataFrame(
        {
            "worker": pd.factorize(whole["rank"], sort=True)[0],
            "time": whole["step"] * long + whole["start"],
            "factor": whole["took"] / whole["stage"].map(typical),
        }
    )
    trace = _trace(path, table.sort_values(["worker", "time"], ignore_index=True))
    return replace(trace, took=float(typical.median()))


FORMATS: dict[str, Callable[[Path, float | None], Trace]] = {
    "batch-times": _batches,
    "alibaba-pai": _pai,
    "alibaba-usage": _usage,
    "bytedance": _bytedance,
}


def hours(times: pd.Series) -> np.ndarray:
    """The hour of the day, 0 to 23."""
    return (times.to_numpy() % SECONDS_A_DAY // 3600).astype(int)


def _csv(path: Path, names: list[str] | None) -> pd.DataFrame:
    """All cells as text, so that nothing is taken for a number that is none."""
    try:
        raw = pd.read_csv(path, names=names, dtype=str, keep_default_na=False, skip_blank_lines=False, index_col=False)
    except (OSError, ValueError) as error:  # pandas' parser errors name the line
        raise BadTrace(path, f"not a table of comma-separated values: {' '.join(str(error).split())}") from error
    if raw.empty:
        raise BadTrace(path, "no rows")
    return raw


def _has(path: Path, raw: pd.DataFrame, needed: list[str]) -> None:
    for name in needed:
        if name not in raw:
            raise BadTrace(path, f"the column is missing; found {', '.join(map(repr, raw.columns))}", column=name)


def _column(
    path: Path, raw: pd.DataFrame, name: str, first: int, positive: bool = False, least: float = 0.0
) -> pd.Series:
    """The column's numbers; `first` is the row of the first."""
    shown = {"time": "time (2nd)", "cpu": "cpu (3rd)"}.get(name, name) if "machine" in raw else name
    numbers = pd.to_numeric(raw[name], errors="coerce").astype(float)
    too_small = numbers <= 0 if positive else numbers < least
    for wrong, what in (
        (~np.isfinite(numbers), "a finite number"),
        (too_small, "a positive number" if positive else f"{least:g} or more"),
    ):
        places = np.flatnonzero(wrong.to_numpy())
        if places.size:
            found = raw[name].iloc[places[0]]
            raise BadTrace(path, f"expected {what}, found {found!r}", int(places[0]) + first, shown)
    return numbers


def _in_order(path: Path, table: pd.DataFrame, gap: float, column: str, first: int) -> pd.DataFrame:
    """By worker and time; a silence that is too long is an error at the row that ends it."""
    table = table.assign(row=np.arange(first, first + len(table))).sort_values(["worker", "time"], kind="stable")
    silence = table.groupby("worker")["time"].diff()
    if (silence > gap).any():
        row = table.loc[silence.idxmax(), "row"]
        count = int((silence > gap).sum())
        raise BadTrace(
            path,
            f"a gap of {silence.max():.12g} seconds before it, and {count - 1} more of over {gap:g}; "
            f"a gap of {math.ceil(silence.max())} accepts them (--gap {math.ceil(silence.max())})",
            int(row),
            column,
        )
    return table.drop(columns="row").reset_index(drop=True)


def _trace(path: Path, table: pd.DataFrame, daily: bool = False, step: float | None = None) -> Trace:
    table = table[["worker", "time", "factor"]].astype({"worker": int})
    if step is None:
        step = float(table.groupby("worker")["time"].diff().median())
    if not step > 0:
        raise BadTrace(path, "no worker has two samples at different times, so nothing is known of its course")
    return Trace(name=path.name, table=table, step=step, daily=daily)
