"""A study: axes in, a table of runs out, then paired by seed.

    cases = study.grid(task=TASKS, protocol=("sync", "gba"), seed=claims.judging(5))
    data, runs = study.run_grid(job, cases, auc="auc", qps=study.pace)
    data["less sync's"] = data["auc"] - study.baseline(data, "auc", ["task", "seed"], protocol="sync")

A *case* is a dict, axis -> value: what `job` takes by name, and the columns by which the table knows the run.

A run's *quality* is the mean of a metric over the ten evaluations of the last fifth of its pass (`marks`), since the last steps
move a model to and fro. Where the true probabilities are known, the metric is its expectation under them: labels of 20,000
samples have more noise than most differences between protocols. The same figure by labels stands next to it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from lib import Cluster, Run, Workload, paths, sweep
from lib.options.yaml_source import load
from lib.training.train import DEVICE
from reports.claims import interval
from reports.claims.stored_verdicts import QUALITIES

Case = Mapping[str, Any]
Key = TypeVar("Key")
pace = attrgetter("steady_qps")
"""Samples a second, a figure like others."""
EARLY = 0.81
"""Share of a pass within which an evaluation belongs to the first four fifths, after which it may come a step late."""
PAGE = {"profile": "", "data": ""}
"""What the page of this process was asked for: `use`, and `setting.use`."""
SMOKE_SAMPLES = 2_000
"""On so many samples a run is evaluated at smoke, at most."""
BY_LABELS = "{} by labels".format
"""The column of a quality that is computed from labels, next to its expectation under the truth."""


def marks(parts: int = 1) -> tuple[float, ...]:
    """Where a run is evaluated whose quality counts (`evaluations`): ten times in the last fifth of the pass, and before it after
    each of so many equal parts of the pass; at smoke, which judges nothing, twice and after at most three parts."""
    late, parts = (2, min(parts, 3)) if PAGE["profile"] == "smoke" else (10, parts)
    early = (n / parts for n in range(1, parts) if n / parts <= 0.8)
    return (*early, *(round(0.8 + n / late / 5, 2) for n in range(1, late + 1)))


def quality(run: Run, metric: str) -> float:
    """A run's quality, under the true probabilities where they are known."""
    return run.quality(run.history_column(metric))


def course(run: Run, metric: str) -> pd.Series:
    """The metric at each evaluation, under the true probabilities where they are known."""
    return run.history[run.history_column(metric)].dropna()


def use(profile: str, device: str = "cpu") -> None:
    """Let all jobs that are made from here on in this process be evaluated as often as the profile needs it (`marks`), and all
    runs in simulated time compute and evaluate on a device, also those of a sweep's processes."""
    PAGE["profile"], os.environ[DEVICE] = profile, device


def paper_table(paper: str, name: str) -> Any:
    """A table as the paper prints it, from `tables.yaml` next to the paper's notebooks."""
    return load(paths.notebooks() / paper / "tables.yaml")[name]


def grid(**axes: Iterable[Any]) -> list[Case]:
    """Every combination of the axes' values, those of the last axis next to each other."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def job(
    workload: Workload, protocol: Any, cluster: Cluster, seed: int, trace: bool = False, **options
) -> dict[str, Any]:
    """What `lib.sweep` takes for one run, without a trace unless it is needed; `options` are those of `lib.train`. Where these do
    not say when it is evaluated, its quality can be taken."""
    if PAGE["profile"] == "smoke" and getattr(workload, "evaluation_samples", 0) > SMOKE_SAMPLES:
        workload = replace(workload, evaluation_samples=SMOKE_SAMPLES)
    judged = {"evaluations": marks()} if options.get("gradients", True) else {}
    own = {"workload": workload, "protocol": protocol, "cluster": cluster, "seed": seed, "trace": trace}
    return own | judged | options


def timing(job: Mapping[str, Any]) -> dict[str, Any]:
    """The same run of its messages and seconds alone, without a model that could be evaluated."""
    return {name: option for name, option in job.items() if name != "evaluations"} | {"gradients": False}


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
    """A row for each run: its case, its figures (qualities and other names of its summary, or functions of it), and the columns
    that each of `several` returns for the run and its case. A quality under the true probabilities has the one by labels next
    to it."""
    rows = []
    for case, run in zip(cases, runs, strict=True):
        row = dict(case)
        for name, of in figures.items():
            if of in QUALITIES:
                row |= quality_figures(run, name, of)
            else:
                row[name] = run.summary[of] if isinstance(of, str) else of(run)
        rows.append({**row, **{name: value for each in several for name, value in each(run, **case).items()}})
    return pd.DataFrame(rows)


def quality_figures(run: Run, name: str, metric: str) -> dict[str, float]:
    """The quality under that name; if it is under the true probabilities, also the one by labels."""
    labels = {} if run.history_column(metric) == metric else {BY_LABELS(name): run.quality(metric)}
    return {name: quality(run, metric), **labels}


def by_labels(data: pd.DataFrame, name: str = "auc") -> str:
    """Compare a table's quality by labels with its expectation under the truth: a sentence with the mean of the difference over
    the seeds and its 95 % interval. The runs of a seed share their labels, so a seed counts once."""
    if BY_LABELS(name) not in data:
        return ""
    each = (data[BY_LABELS(name)] - data[name]).groupby(data["seed"]).mean()
    mean, low, high = interval(each)
    words = "more than its noise explains" if abs(mean) > high - low else "within its noise"  # four standard errors
    return f"By labels it differs from this expectation by {mean:+.2g} [{low:+.2g}, {high:+.2g}], {words}."


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
    """The settings next to it on each axis, which is made longer where it ends there."""
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
    """The rows of the runs' histories that have all the columns, each with its run's place; metrics are under the true
    probabilities where these are known, and by labels next to that."""
    parts = []
    for case, run in zip(cases, runs, strict=True):
        found = run.history[[run.history_column(column) for column in columns]].set_axis([*columns], axis=1).dropna()
        labels = {BY_LABELS(name): run.history[name] for name in columns if run.history_column(name) != name}
        parts.append(found.assign(**labels, **case))
    return pd.concat(parts, ignore_index=True)
