"""How good the models of ShadowSync's runs are, by the paper's two figures: NE of training examples, each predicted before it is
trained on, and NE of new ones.

Both are taken over the second half of a pass. The paper's passes are a hundred thousand times as long: there the first steps
weigh nothing, and the end is calm. Here the first steps, in which seeds differ most, would decide the one figure, and the last
few, which move a model's NE by half a per cent to and fro, the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from lib.results.run import Run
from notebooks import paired, regime, study

TABLE_3 = {
    ("s-easgd", 10): (0.084, 0.062),
    ("s-easgd", 20): (0.230, 0.177),
    ("fr-easgd (5)", 10): (0.099, 0.093),
    ("fr-easgd (5)", 20): (0.249, 0.333),
    ("fr-easgd (30)", 10): (0.096, 0.112),
    ("fr-easgd (30)", 20): (0.210, 0.250),
}
"""Protocol and trainers -> how far train and eval NE are above those of 5 trainers, in per cent."""


def half(run: Run, **place: Any) -> dict[str, float]:
    """Both figures, NE of new examples by trainer 1's copy; and at the end by this copy, the average of all, and the servers'.
    What stays as it was is evaluated once."""
    late, end = run.history[run.history["samples"] > run.summary["samples"] / 2], run.summary["ne"]
    new = late["ne"].mean() if late["ne"].notna().any() else end
    found = {"train_ne": late["train_ne"].mean(), "ne": new, "ne_of_first": end}
    ends = ("ne_of_average", "ne_of_centre", "sync_gap")
    return found | {name: run.summary.get(name) for name in ends} | {"eps": run.steady_qps}


def course(places: Iterable[study.Place], runs: Iterable[Run], **base: Any) -> pd.DataFrame:
    """NE of new examples in the course of a pass, over the `base`'s (protocol="s-easgd") where all else is the same."""
    places = list(places)
    found, axes = study.courses(places, runs, "samples", "ne"), [*places[0]]
    found["part"] = (found["samples"] / found.groupby(axes)["samples"].transform("last")).round(2)
    same = [axis for axis in axes if axis not in base]
    found["over the base's"] = found["ne"] / study.beside(found, "ne", [*same, "part"], **base)
    return found.drop(columns="samples")


def trend(
    course: pd.DataFrame, by: str | Sequence[str], parts: Sequence[float] = (0.25, 0.5, 0.75, 1.0)
) -> pd.DataFrame:
    """Where what a base is better by leads: per cent of NE above the base's, by part of the pass, a column each."""
    wide = course[course["part"].isin(parts)].pivot_table(
        index=by, columns="part", values="over the base's", sort=False
    )
    return (100 * (wide - 1)).round(3)


def rises(models: pd.DataFrame) -> pd.DataFrame:
    """How far each protocol's NE with more trainers is above that with the fewest, in per cent, beside Table 3."""
    few, columns = models["trainers"].min(), {"train_ne": "train", "ne": "eval"}
    above = {
        told: models[name] / study.beside(models, name, ["protocol", "seed"], trainers=few)
        for name, told in columns.items()
    }
    found = models[["protocol", "trainers"]].assign(**{told: 100 * (ratio - 1) for told, ratio in above.items()})
    means = found[found["trainers"] > few].groupby(["protocol", "trainers"], sort=False).mean()
    printed = pd.DataFrame(TABLE_3, index=["paper, train", "paper, eval"]).T.rename_axis(["protocol", "trainers"])
    return means.join(printed)


def subjects(models: pd.DataFrame, among: Mapping[str, Iterable[str]] = MappingProxyType({})) -> pd.DataFrame:
    """As claims read them: a subject for each protocol with each number of trainers; and, by a name of its own, the lowest of
    each entropy `among` some protocols with the same trainers and seed."""
    parts, entropies = [models], ["train_ne", "ne"]
    for name, members in among.items():
        lowest = (
            models[models["protocol"].isin([*members])].groupby(["trainers", "seed"])[entropies].min().reset_index()
        )
        parts.append(lowest.assign(protocol=name))
    found = pd.concat(parts, ignore_index=True)
    subject = found["protocol"] + " with " + found["trainers"].astype(str)
    return found.assign(subject=subject)[["subject", "seed", *entropies]]


def regimes(models: pd.DataFrame, runs: Sequence[Run], base: str = "s-easgd") -> pd.DataFrame:
    """The regime of the `base` protocol's runs by trainers, beside the paper's; who knows the mean click rate alone has an NE of
    1, and training brings what is below it."""
    ours = models[models["protocol"] == base]
    crews = base + ", " + ours["trainers"].astype(str) + " trainers"
    return regime.of(ours.assign(brings=1 - ours["ne"], crew=crews), runs, "shadowsync", "crew")


def less(models: pd.DataFrame, base: str) -> pd.DataFrame:
    """Both entropies of the others less the `base` protocol's with the same trainers and seed: worlds differ by far more than
    protocols do."""
    found = paired.less(models, ["train_ne", "ne"], ["trainers", "seed"], protocol=base)
    return found[found["protocol"] != base]
