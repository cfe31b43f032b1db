"""What is tuned: each mode on each task goes through its own settings until the best is inside, and is then run there.

    curve = grid_search.curve(job, auc, {"dense": RATES, "rows": RATES}, claims.tuning(2), task=TASKS, protocol=MODES)
    one, own = (grid_search.at_best(job, curve, "sync", alike) for alike in (MODES, ()))  # all at sync's best, each at its own

A curve has a row for each setting and seed: the settings' columns, `seed`, `value`, `inside`, then whose it is.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from lib import sweep
from notebooks import study

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
    """Whose -> the settings with the best mean over the seeds, that mean, and whether all beside them were tried."""
    at = curve.columns.get_loc("seed")
    axes, whose = [*curve.columns[:at]], [*curve.columns[at + 3 :]]
    means = curve.groupby([*whose, *axes], sort=False)[["value", "inside"]].mean().reset_index(axes)
    found = means.groupby(whose, sort=False)[means.columns].apply(lambda t: t.nlargest(1, "value").iloc[0])
    return found.astype({"inside": bool})


def at_best(job: Job, curve: pd.DataFrame, base: str, alike: Container[str] = ()) -> Job:
    """The job of a case at its task and mode's best settings; modes that are `alike` have the base's, and what was not tuned
    has none."""
    found = best(curve)
    settings = found.drop(columns=["value", "inside"]).T.to_dict()

    def best_job(**case: Any) -> dict[str, Any]:
        task, mode = (case[name] for name in found.index.names)
        return job(**case, **settings.get((task, base if mode in alike else mode), {}))

    return best_job
