"""What is tuned: each mode on each task goes through its own settings until the best is inside, and is then run there.

    curve = grid_search.curve(job, auc, {"dense": RATES, "rows": RATES}, claims.tuning(2), task=TASKS, protocol=MODES)
    grid_search.show_budget(curve, NAME)  # quality against the number of settings tried, of every mode
    one, own = (grid_search.at_best(job, curve, "sync", alike) for alike in (MODES, ()))  # all at sync's best, each at its own

A curve has a row for each setting and seed, in the order in which they were tried: the settings' columns, `seed`, `value`,
`inside`, then whose it is: the mode last.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from lib import sweep
from notebooks import study
from reports import plots
from reports.markup import Fragment

Job = Callable[..., dict[str, Any]]


def curve(
    job: Job,
    figure: Callable[..., float],
    axes: Mapping[str, Sequence[float]],
    seeds: Iterable[int],
    most: int = 6,
    limits: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    **whose: Iterable[Any],
) -> pd.DataFrame:
    """The curves of all combinations of `whose`, such as tasks and modes. A larger figure of a run is better; each grid is
    extended at most `most` times, within the axes' `limits`."""
    parts = []
    for each in study.grid(**whose):

        def measured(cases: list[study.Case], each: study.Case = each) -> list[float]:
            jobs = [job(**each, **case) | {"on_nan": "skip"} for case in cases]  # a rate may be too large for a mode
            return [figure(run, **each) for run in sweep(jobs)]

        parts.append(study.climb(measured, axes, seeds, most, limits).assign(**each))
    return pd.concat(parts, ignore_index=True)


def best(curve: pd.DataFrame) -> pd.DataFrame:
    """Whose -> the settings with the best mean over the seeds, that mean, and whether all neighbours of them were tried."""
    means, whose = _means(curve)
    found = means.groupby(whose, sort=False)[means.columns].apply(lambda t: t.nlargest(1, "value").iloc[0])
    return found.astype({"inside": bool})


def _means(curve: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Each setting's mean over the seeds, by whose it is, and the columns that say whose; nan where it failed on a seed."""
    at = curve.columns.get_loc("seed")
    axes, whose = [*curve.columns[:at]], [*curve.columns[at + 3 :]]
    groups = curve.groupby([*whose, *axes], sort=False)[["value", "inside"]]
    return groups.agg(lambda of: of.mean(skipna=False)).reset_index(axes), whose


def budget(curve: pd.DataFrame) -> pd.DataFrame:
    """The best mean value so far after each setting that was tried: columns of whose it is, `tried` and `value`."""
    means, whose = _means(curve)
    groups = means.groupby(whose, sort=False)["value"]
    tried = means.assign(tried=groups.cumcount() + 1, value=groups.cummax())
    return tried[["tried", "value"]].reset_index()


def edges(curve: pd.DataFrame) -> list[str]:
    """Whose best setting lies at the edge of what was tried, so that a better one may lie outside."""
    found = best(curve)["inside"]
    return [", ".join(map(str, case if isinstance(case, tuple) else (case,))) for case in found.index[~found]]


def show_budget(curve: pd.DataFrame, name: str) -> Fragment:
    """Draw the best value so far against the number of settings tried, with a panel for each task and a line for each mode, and
    say which budget all modes had and whether each best is inside its grid."""
    course, whose = budget(curve), _means(curve)[1]
    *tasks, mode = whose
    drawn = course.assign(all="", protocol=course[mode].astype(str))
    drawn["task"] = drawn[tasks].astype(str).agg(", ".join, axis=1) if tasks else ""
    least = course.groupby(whose)["tried"].max().min()
    outside = edges(curve)
    caption = f"Best value so far against settings tried, on tuning seeds. Every mode tried at least {least} settings. "
    caption += f"Best at the edge of its grid: {'; '.join(outside)}." if outside else "Each best is inside its grid."
    fig = plots.panels(drawn, x="tried", y="value", row="task", column="all", unit="settings tried")
    alt = f"Line charts, one a task: the best value of each mode rises with the settings tried, of which all have {least}."
    return plots.show(fig, course, name=f"{name}/budget", caption=caption, alt=alt)


def at_best(job: Job, curve: pd.DataFrame, base: str, alike: Container[str] = ()) -> Job:
    """The job of a case at its task and mode's best settings; modes that are `alike` have the base's, and what was not tuned
    has none."""
    found = best(curve)
    settings = found.drop(columns=["value", "inside"]).T.to_dict()

    def best_job(**case: Any) -> dict[str, Any]:
        task, mode = (case[name] for name in found.index.names)
        return job(**case, **settings.get((task, base if mode in alike else mode), {}))

    return best_job
