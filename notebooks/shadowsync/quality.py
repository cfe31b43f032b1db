"""How good the models of ShadowSync's runs are, by the paper's two figures: NE of training examples, each predicted before it is
trained on, and NE of new ones.

The paper's train NE is of a whole pass, a hundred thousand times as long: there the first steps weigh nothing. Here they, in
which seeds differ most, would decide it, and is taken over the second half.

NE of new examples is that of the average of all trainers' copies, which the paper names as an alternative to the one copy that
it returns. A copy that was mixed some steps ago is not as good as it was then: how long ago decides more of a difference between
two protocols than all else. On four pilot seeds such a difference has a standard deviation of 12e-4 by one copy at the end, 9e-4
by its mean of ten evaluations, and 3e-4 by the average of all copies at the end. The one copy's NE is a second column.
"""

from collections.abc import Iterable, Sequence

import pandas as pd

from lib import Run
from notebooks import regime, study

TABLE_3 = {(protocol, trainers): tuple(row) for protocol, trainers, *row in study.paper_table("shadowsync", "table 3")}
"""Protocol and trainers -> how far train and eval NE are above those of 5 trainers, in per cent."""


ONE_COPY = "ne of one copy"
"""NE of new examples by the first trainer's copy."""
SERVERS_COPY = "ne of the servers' copy"


def figures(run: Run, **case) -> dict[str, float]:
    """NE of training examples over the second half of the pass; that of new ones at the end by the average of all copies, which
    counts; by the first trainer's copy, the mean of ten evaluations, which is all where there are no replicas; and at the end by
    the servers' copy."""
    late = run.history[run.history["samples"] > run.summary["samples"] / 2]
    found = {"train_ne": late["train_ne"].mean()} | study.quality_figures(run, ONE_COPY, "ne")
    found |= study.quality_figures(run, "ne", "ne")
    for name, end in (("ne", "ne_of_average"), (SERVERS_COPY, "ne_of_centre")):
        if end in run.summary:
            by_labels, expected = run.summary[end], run.summary.get(f"expected_{end}")  # None of real data
            found |= {name: by_labels} if expected is None else {name: expected, study.BY_LABELS(name): by_labels}
    return found | {"sync_gap": run.summary["sync_gap"], "eps": run.steady_qps}


def relative_histories(cases: Iterable[study.Case], runs: Iterable[Run], **base) -> pd.DataFrame:
    """NE of new examples in the course of a pass, over the `base`'s (protocol="s-easgd") where all else is the same."""
    cases = list(cases)
    found, axes = study.histories(cases, runs, "samples", "ne"), [*cases[0]]
    found["part"] = (found["samples"] / found.groupby(axes)["samples"].transform("last")).round(2)
    same = [axis for axis in axes if axis not in base]
    found["over the base's"] = found["ne"] / study.baseline(found, "ne", [*same, "part"], **base)
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
    """How far each protocol's NE with more trainers is above that with the fewest, in per cent, next to Table 3."""
    few, columns = models["trainers"].min(), {"train_ne": "train", "ne": "eval"}
    above = {
        column: models[name] / study.baseline(models, name, ["protocol", "seed"], trainers=few)
        for name, column in columns.items()
    }
    found = models[["protocol", "trainers"]].assign(**{column: 100 * (ratio - 1) for column, ratio in above.items()})
    means = found[found["trainers"] > few].groupby(["protocol", "trainers"], sort=False).mean()
    printed = pd.DataFrame(TABLE_3, index=["paper, train", "paper, eval"]).T.rename_axis(["protocol", "trainers"])
    return means.join(printed)


def claim_table(models: pd.DataFrame, one: str = "", others: Iterable[str] = ()) -> pd.DataFrame:
    """As claims read them: a subject for each protocol with each number of trainers; and for each of the `others` the `one` that
    is next to it once more, so that each pair is a case. Rises are above the fewest trainers', as shares."""
    pairs = [models[models["protocol"] == one].assign(protocol=f"{one} beside {other}") for other in others]
    found = pd.concat([models, *pairs], ignore_index=True)
    for name, rise in (("train_ne", "train rise"), ("ne", "rise")):
        few = study.baseline(found, name, ["protocol", "seed"], trainers=found["trainers"].min())
        found[rise] = found[name] / few - 1
    subject = found["protocol"] + " with " + found["trainers"].astype(str)
    return found.assign(subject=subject)[["subject", "seed", "train_ne", "ne", "train rise", "rise"]]


def regimes(models: pd.DataFrame, runs: Sequence[Run], base: str = "s-easgd") -> pd.DataFrame:
    """The regime of the `base` protocol's runs by trainers, next to the paper's. Predicting the mean click rate has an NE of
    1, and training brings what is below it."""
    ours = models[models["protocol"] == base]
    crews = base + ", " + ours["trainers"].astype(str) + " trainers"
    return regime.comparison(ours.assign(brings=1 - ours["ne"], crew=crews), runs, "shadowsync", "crew")


def differences(models: pd.DataFrame, base: str) -> pd.DataFrame:
    """The entropies of the others minus the `base` protocol's with the same trainers and seed: worlds differ by far more than
    protocols do."""
    found = study.differences(models, ["train_ne", "ne", ONE_COPY], ["trainers", "seed"], protocol=base)
    return found[found["protocol"] != base]


def lines(data: pd.DataFrame) -> pd.DataFrame:
    """For each protocol and seed: what a trainer of the largest crew keeps of the speed of one of the smallest; and where growth
    ends, the most examples per second in trainers that are as fast as in the smallest crew."""
    rows = []
    for (protocol, seed), group in data.sort_values("trainers").groupby(["protocol", "seed"], sort=False):
        trainers, eps = group["trainers"].to_numpy(), group["eps"].to_numpy()
        one = eps[0] / trainers[0]
        found = {"efficiency": eps[-1] / trainers[-1] / one, "bend": eps.max() / one}
        rows.append({"subject": protocol, "seed": seed, **found})
    return pd.DataFrame(rows)


def speed(run: Run, size: int) -> dict[str, float]:
    """Examples per second, and the sync gap: counted, and by the paper's formula (Sec. 4.1.1), steps over the copies of `size`
    bytes that the sync servers' traffic holds: of what they take alone, or of what they take and give. The paper does not say
    which it counts."""
    moved, steps = run.summary["bytes_by_kind"], run.summary["issued"]
    taken, given = (moved.get(kind, 0) for kind in ("mix dense", "mix answers"))
    ways = {"taken": taken, "taken and given": taken + given}
    found = {"eps": run.steady_qps, "gap": run.summary["sync_gap"]}
    return found | {way: steps * size / of if of else float("nan") for way, of in ways.items()}
