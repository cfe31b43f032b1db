"""Histories of pipelines as tables, ours and anybody's: a line for each row that a batch read, computed or wrote.

| column | what it holds |
|---|---|
| `kind` | `read` (from the store), `compute` (on the device) or `write` (to the store) |
| `batch` | whose; -1 with `read`: the whole store at the end, which may be left out |
| `table`, `id` | of which row |
| `version` | the timestamp that was found, computed from or written; -1: never updated |
| `order` | of two reads or writes of a row the first has the smaller number, and so of two computations; -1: an interrupted call had not come to the row. Without this column lines stand in order |
| `value` | a hash of what was found, computed from or written: the same for the same bytes |
| `made` | with `compute`: the hash of what it made. Without this column and `value`, which go together, versions are believed |
| `stamp` | with `compute`: the timestamp of what it made |
| `safe` | with `compute`, optional: updates up to this timestamp may have left the device's cache before |
| `began`, `ended` | optional: the store's calls number their beginnings and ends as they come; ended -1: interrupted, it may have written or not |
| `stage` | optional: the part of a run; each is judged by itself |

All but `kind` and `table` are whole numbers of 64 bits; what only some kinds have may be empty with others.
"""  # noqa: E501 - a table has no line breaks

from functools import partial
from operator import index
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd

from lib import BadOption
from lib.drivers.record import END, Access
from lib.results.outcome import ACCESS_ARRAYS as ARRAYS
from lib.results.outcome import ACCESS_CALLS as OF_CALLS

OF_COMPUTES, OF_STORE = ("made", "stamp", "safe"), ("began", "ended")
NEEDED = {"kind", "batch", "table", "id", "version", "stamp"}
DEFAULTS = {"stage": 0, "safe": -1, "began": 0, "ended": 0}
KNOWN = {*OF_CALLS, *ARRAYS, "stage"}
KINDS = get_args(get_type_hints(Access)["kind"])


def load(path: str | Path) -> dict[int, list[Access]]:
    """The accesses of each stage in a file."""
    return stages(_read(Path(path)), path)


def stages(lines: pd.DataFrame, path: str | Path) -> dict[int, list[Access]]:
    """The accesses of each stage in a table; `path` names it where something is wrong."""
    needed = NEEDED | ({"value", "made"} if {"value", "made"} & {*lines} else set())
    for name in [*sorted(needed - {*lines}), *sorted({*lines} - KNOWN)]:
        what = "is missing" if name in KNOWN else "is none that a history has"
        raise BadOption(f"{path}: column {name!r} {what}; there may be {', '.join(sorted(KNOWN))}")
    if lines.empty:
        raise BadOption(f"{path}: a header, and no access after it; there is nothing to judge")
    if not (right := lines["kind"].isin(KINDS)).all():
        raise _wrong(path, lines, "kind", int(np.argmin(right)), f"is none of {', '.join(KINDS)}")
    device = (lines["kind"] == "compute").to_numpy()
    numbers = {"order": np.arange(len(lines)), **DEFAULTS}
    for name in lines.columns.drop(["kind", "table"]):
        matters = device if name in OF_COMPUTES else ~device if name in OF_STORE else np.full(len(lines), True)
        numbers[name] = _whole(path, lines, name, matters)
    whole = pd.DataFrame({"kind": lines["kind"], "table": lines["table"].astype(str), **numbers})
    placed = whole.assign(device=device)[(whole["order"] >= 0) & (whole["batch"] != END)]
    if (twice := placed.duplicated(["stage", "device", "table", "id", "order"])).any():
        raise _wrong(path, lines, "order", int(twice.idxmax()), "is another access's to this row, too")
    found: dict[int, list[Access]] = {}
    for (stage, *call), part in whole.groupby(["stage", *OF_CALLS], sort=False):
        columns = [name for name in ARRAYS if name in part and (name != "made" or call[0] == "compute")]
        arrays = {ARRAYS[name]: part[name].to_numpy() for name in columns}
        found.setdefault(stage, []).append(Access(**dict(zip(OF_CALLS, call, strict=True)), **arrays))
    return found


def _read(path: Path) -> pd.DataFrame:
    readers = {".csv": partial(pd.read_csv, dtype=str, keep_default_na=False), ".parquet": pd.read_parquet}
    if path.suffix not in readers:
        raise BadOption(f"{path}: a history is a file that ends in {' or '.join(readers)}")
    try:
        return readers[path.suffix](path).reset_index(drop=True)
    except (OSError, ValueError) as error:
        raise BadOption(f"{path} is no history that can be read: {error}") from error


def _whole(path: str | Path, lines: pd.DataFrame, name: str, matters: np.ndarray) -> np.ndarray:
    """The column's numbers, where they matter."""
    numbers = np.full(len(lines), DEFAULTS.get(name, -1))
    for at, cell in enumerate(lines[name]):
        try:
            if matters[at]:
                numbers[at] = int(cell) if isinstance(cell, str) else index(cell)
        except (ValueError, TypeError, OverflowError):
            raise _wrong(path, lines, name, at, "is no whole number of 64 bits") from None
    return numbers


def _wrong(path: str | Path, lines: pd.DataFrame, name: str, at: int, why: str) -> BadOption:
    return BadOption(f"{path}: row {at + 1}, column {name!r}: {lines[name].iloc[at]!r} {why}")
