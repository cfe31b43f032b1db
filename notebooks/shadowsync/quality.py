"""How good the models of ShadowSync's runs are, by the paper's two figures: NE of training examples, each predicted before it is
trained on, and NE of new ones.

Both are taken over the second half of a pass. The paper's passes are a hundred thousand times as long: there the first steps
weigh nothing, and the end is calm. Here the first steps, in which seeds differ most, would decide the one figure, and the last
few, which move a model's NE by half a per cent to and fro, the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from lib.results.run import Run

TABLE_3 = {
    ("s-easgd", 10): (0.084, 0.062),
    ("s-easgd", 20): (0.230, 0.177),
    ("fr-easgd (5)", 10): (0.099, 0.093),
    ("fr-easgd (5)", 20): (0.249, 0.333),
    ("fr-easgd (30)", 10): (0.096, 0.112),
    ("fr-easgd (30)", 20): (0.210, 0.250),
}
"""Protocol and trainers -> how far train and eval NE are above those of 5 trainers, in per cent."""


def half(run: Run) -> dict[str, float]:
    """Both figures, NE of new examples by trainer 1's copy; and at the end by this copy, the average of all, and the servers'."""
    late = run.history[run.history["samples"] > run.summary["samples"] / 2]
    found = {"train_ne": late["train_ne"].mean(), "ne": late["ne"].mean(), "ne_of_first": run.summary["ne"]}
    ends = ("ne_of_average", "ne_of_centre", "sync_gap")
    return found | {name: run.summary.get(name) for name in ends} | {"eps": run.steady_qps}


def halves(places: Sequence[tuple], names: Sequence[str], runs: Iterable[Run]) -> pd.DataFrame:
    """A row for each run, with what tells it from the others."""
    return pd.DataFrame(places, columns=list(names)).join(pd.DataFrame([half(run) for run in runs]))


def course(places: Sequence[tuple[str, int]], runs: Iterable[Run], base: str = "s-easgd") -> pd.DataFrame:
    """NE of new examples in the course of a pass, of each protocol over the `base`'s with the same seed at the same place."""
    parts = []
    for (protocol, seed), run in zip(places, runs, strict=True):
        found = run.history.dropna(subset=["ne"])[["samples", "ne"]].reset_index(drop=True)
        part = (found["samples"] / found["samples"].iloc[-1]).round(2)
        parts.append(found.assign(protocol=protocol, seed=seed, evaluation=found.index, part=part))
    both = pd.concat(parts, ignore_index=True)
    beside = both.merge(both[both["protocol"] == base], on=["seed", "evaluation"], suffixes=("", " of base"))
    beside["over the base's"] = beside["ne"] / beside["ne of base"]
    return beside[["protocol", "seed", "part", "ne", "over the base's"]]


def rises(models: pd.DataFrame) -> pd.DataFrame:
    """How far each protocol's NE with more trainers is above that with the fewest, in per cent, beside Table 3."""
    few = models["trainers"].min()
    base = models[models["trainers"] == few].set_index(["protocol", "seed"])[["train_ne", "ne"]]
    above = models[models["trainers"] > few].set_index(["protocol", "seed", "trainers"])[["train_ne", "ne"]]
    found = 100 * (above / base.reindex(above.index.droplevel("trainers")).to_numpy() - 1)
    means = found.groupby(["protocol", "trainers"], sort=False).mean()
    printed = pd.DataFrame(TABLE_3, index=["paper, train", "paper, eval"]).T.rename_axis(["protocol", "trainers"])
    return means.rename(columns={"train_ne": "train", "ne": "eval"}).join(printed)


def subjects(models: pd.DataFrame) -> pd.DataFrame:
    """As claims read them: a subject for each protocol with each number of trainers."""
    subject = models["protocol"] + " with " + models["trainers"].astype(str)
    return models.assign(subject=subject)[["subject", "seed", "train_ne", "ne"]]


def less(models: pd.DataFrame, base: str) -> pd.DataFrame:
    """Both entropies less the `base` protocol's with the same trainers and seed: worlds differ by far more than protocols do."""
    keys, names = ["trainers", "seed"], ["train_ne", "ne"]
    there = models[models["protocol"] == base].set_index(keys)[names]
    mine = models.set_index(keys)
    found = (mine[names] - there.reindex(mine.index)).add_suffix(f" less {base}'s")
    return found.assign(protocol=mine["protocol"]).reset_index()
