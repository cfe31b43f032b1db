"""A study: axes in, a table of runs out, then paired by seed.

    cases = study.grid(task=TASKS, protocol=("sync", "gba"), seed=claims.judging(5))
    data, runs = study.run_grid(job, cases, auc="auc", qps=study.pace)
    data["less sync's"] = data["auc"] - study.baseline(data, "auc", ["task", "seed"], protocol="sync")

A *case* is a dict, axis -> value: what `job` takes by name, and the columns by which the table knows the run.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from lib import Cluster, Run, Workload, paths, sweep
from lib.options.yaml_source import load
from lib.training.train import DEVICE

Case = Mapping[str, Any]
Key = TypeVar("Key")
pace = attrgetter("steady_qps")
"""Samples a second, a figure like others."""


def use_device(device: str) -> None:
    """Let all runs of this process in simulated time compute and evaluate on a device, also those of a sweep's processes."""
    os.environ[DEVICE] = device


def paper_table(paper: str, name: str) -> Any:
    """A table as the paper prints it, from `tables.yaml` beside the paper's notebooks."""
    return load(paths.notebooks() / paper / "tables.yaml")[name]


def grid(**axes: Iterable[Any]) -> list[Case]:
    """Every combination of the axes' values, those of the last axis next to each other."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def job(
    workload: Workload, protocol: Any, cluster: Cluster, seed: int, trace: bool = False, **options
) -> dict[str, Any]:
    """What `lib.sweep` takes for one run, without a trace unless it is needed; `options` are those of `lib.train`."""
    return {"workload": workload, "protocol": protocol, "cluster": cluster, "seed": seed, "trace": trace, **options}


def run(jobs: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Run]:
    """Each job's run, by what the job is known by."""
    return dict(zip(jobs, sweep(jobs.values()), strict=True))


def run_grid(job: Callable[..., Mapping[str, Any]], cases: Iterable[Case], *several, **figures) -> Any:
    """Run `job(**case)` for each case; return the table of the runs, as `table` makes it, and the runs."""
    cases = list(cases)
    runs = sweep([job(**case) for case in cases])
    return table(cases, runs, *several, **figures), runs


def table(
    cases: Iterable[Case],
    runs: Iterable[Run],
    *several: Callable[..., Case],
    **figures: str | Callable[[Run], Any],
) -> pd.DataFrame:
    """A row for each run: its case, its figures (names of its summary, or functions of it), and the columns that each of
    `several` returns for the run and its case."""
    rows = []
    for case, run in zip(cases, runs, strict=True):
        own = {name: run.summary[of] if isinstance(of, str) else of(run) for name, of in figures.items()}
        rows.append({**case, **own, **{name: value for each in several for name, value in each(run, **case).items()}})
    return pd.DataFrame(rows)


def climb(
    measured: Callable[[list[Case]], Sequence[float]],
    axes: Mapping[str, Sequence[float]],
    seeds: Iterable[int],
    most: int = 6,
    limits: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> pd.DataFrame:
    """The curve of what is tuned, a row for each setting and seed with its `value`, of which more is better: first the whole
    grid, then, `most` times at most, the untried neighbours of the best. An axis is extended past its ends, within its
    `limits`; one with a single value is not tuned. `inside`: no neighbour of the best is untried."""
    axes, seeds = {name: sorted(values) for name, values in axes.items()}, list(seeds)
    tried: dict[tuple[float, ...], list[float]] = {}
    wanted = [tuple(case.values()) for case in grid(**axes)]
    for _ in range(most + 1):
        cases = [dict(zip(axes, each, strict=True)) | {"seed": seed} for each in wanted for seed in seeds]
        values = np.reshape(measured(cases), (len(wanted), len(seeds))).tolist()
        tried |= dict(zip(wanted, values, strict=True))
        wanted = [each for each in _around(_best(tried), axes, limits) if each not in tried]
        if not wanted:
            break
    rows = [(*case, seed, x) for case, values in tried.items() for seed, x in zip(seeds, values, strict=True)]
    return pd.DataFrame(rows, columns=[*axes, "seed", "value"]).assign(inside=not wanted)


def _best(tried: Mapping[tuple[float, ...], Sequence[float]]) -> tuple[float, ...]:
    """The setting with the best mean; one that failed on a seed is worse than all others."""
    return max(tried, key=lambda case: np.nan_to_num(np.mean(tried[case]), nan=-np.inf))


def _around(
    best: tuple[float, ...], axes: dict[str, list[float]], limits: Mapping[str, tuple[float, float]]
) -> Iterator[tuple[float, ...]]:
    """The settings beside it on each axis, which is made longer where it ends there."""
    for position, (name, values) in enumerate(axes.items()):
        if len(values) < 2:
            continue
        least, most = limits.get(name, (-np.inf, np.inf))
        longer = [_next(values[::way]) for way in (1, -1) if values[::way][-1] == best[position]]
        values += [x for x in longer if least <= x <= most]
        values.sort()
        at = values.index(best[position])
        yield from (
            (*best[:position], x, *best[position + 1 :]) for x in values[max(at - 1, 0) : at + 2] if x != best[position]
        )


def _next(values: Sequence[float]) -> float:
    """What goes on after the last, as the one before it went on after its own: 0.03 after 0.001, 0.003 and 0.01."""
    *_, before, last = values
    third = values[-3] if len(values) > 2 else before * before / last
    return float(f"{before * last / third:.6g}")


def baseline(data: pd.DataFrame, column: str, same: Sequence[str], **base: Any) -> np.ndarray:
    """For each row, the column of the row that is the `base` (protocol="sync") and has the `same` values (task, seed)."""
    bases = data[(data[[*base]] == pd.Series(base)).all(axis=1)].set_index([*same])[column]
    keys = pd.MultiIndex.from_frame(data[[*same]]) if len(same) > 1 else data[same[0]]
    return bases.reindex(keys).to_numpy()


def differences(data: pd.DataFrame, columns: Sequence[str], same: Sequence[str], **base: Any) -> pd.DataFrame:
    """The data with the difference of each column from the row that is the `base` and has the `same` values, named after the
    base; nan where no such row exists."""
    whose = ", ".join(map(str, base.values()))
    apart = {f"{name} less {whose}'s": data[name] - baseline(data, name, same, **base) for name in columns}
    return data.assign(**apart)


def histories(cases: Iterable[Case], runs: Iterable[Run], *columns: str) -> pd.DataFrame:
    """The rows of the runs' histories that have all the columns, each with its run's place."""
    histories = (run.history.dropna(subset=[*columns])[[*columns]] for run in runs)
    return pd.concat([each.assign(**case) for case, each in zip(cases, histories, strict=True)], ignore_index=True)
