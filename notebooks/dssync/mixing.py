"""How fast averages in small groups reach the average of all workers: by matrices, and in runs that confirm them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from lib import Batch, Run, VirtualCluster
from lib.options.checked import Count
from lib.protocols.dssync import DSSync
from notebooks import study
from notebooks.dssync.matrices import mixing_matrix, residual, spectral_gap, steps_to_average
from notebooks.toys import Toy


class PushModel(torch.nn.Module):
    """Every step of SGD(lr=1) adds its batch's push."""

    def __init__(self, size: int):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(size))

    def forward(self, batch: Batch, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return batch.features["push"] @ self.weights

    def loss(self, batch: Batch, scores: torch.Tensor) -> torch.Tensor:
        return -scores.sum()


@dataclass(frozen=True, kw_only=True)
class Push(Toy):
    """Worker i's first batch adds 1 to coordinate i, and no other batch does anything: a replica is then a row of the product of
    the rounds' matrices."""

    name: ClassVar[str] = "push"

    workers: Count
    """Workers, and parameters."""

    def model(self, seed: int) -> PushModel:
        return PushModel(self.workers)

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        push = np.zeros((1, self.workers), np.float32)
        if index < self.workers:
            push[0, index] = 1
        return Batch.of(index=index, raw={}, size=1, features={"push": push})

    def evaluate(
        self, model: PushModel, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """`distance` of worker 0's replica from the average of all first pushes, over that of a replica that never mixed."""
        return {"distance": _distance(model.weights.detach().numpy())}


def job(rule: DSSync, workers: int, seed: int, steps: int) -> dict:
    """A run of so many steps, among workers of unlike speeds."""
    task, cluster = Push(workers=workers, samples=steps * workers), VirtualCluster(workers=workers, slowdown=0.5)
    return study.job(task, rule, cluster, seed, trace=True)


def weights(rule: DSSync, workers: int, steps: int) -> np.ndarray:
    """The weights of the workers' first updates in worker 0's replica after so many steps, by the matrices."""
    product = np.eye(workers)
    for round in range(steps):
        product = mixing_matrix(rule, round, workers) @ product
    return product[0]


def predicted_distance(rule: DSSync, workers: int, steps: int) -> float:
    """What `Push` calls distance, by the matrices."""
    return _distance(weights(rule, workers, steps))


def run(cases: Mapping[str, tuple[DSSync, int]], seeds: Iterable[int]) -> tuple[pd.DataFrame, list[Run]]:
    """A run of each case, a rule and a number of workers, until it is to be at the average, or for four steps: how far it is from
    it and should be, and the rule's gap."""
    steps = {name: steps_to_average(rule, workers) or 4 for name, (rule, workers) in cases.items()}
    predictions = {name: predicted_distance(*case, steps[name]) for name, case in cases.items()}
    gaps = {name: spectral_gap(rule, workers) for name, (rule, workers) in cases.items()}
    places = study.grid(subject=cases, seed=seeds)
    data, runs = study.run_grid(
        lambda subject, seed: job(*cases[subject], seed, steps[subject]), places, distance="distance"
    )
    data = data.assign(
        **{name: data["subject"].map(of) for name, of in (("steps", steps), ("predicted", predictions), ("gap", gaps))}
    )
    return data.assign(off=(data["distance"] - data["predicted"]).abs()), runs


def schedules(worlds: Iterable[int], rule: DSSync) -> pd.DataFrame:
    """For each number of workers its groups' sizes, how soon they mix, and the hops of a round of rings next to all-reduce's."""
    found = []
    for workers in worlds:
        rounds = [rule.groups(round, workers) for round in range(2)]
        own = {"groups": ", then ".join(dict.fromkeys(map(_counted, rounds)))}
        own["steps to the average"], own["gap"] = steps_to_average(rule, workers), spectral_gap(rule, workers)
        own |= {f"left after {when}": residual(rule, many, workers) for many, when in ((2, "two rounds"), (4, "four"))}
        own["hops"] = sum(2 * max(map(len, groups)) - 1 for groups in rounds) / 2
        found.append({"workers": workers, **own, "hops of all-reduce": 2 * workers - 1})
    return pd.DataFrame(found)


def disagreements(rules: Mapping[str, DSSync], worlds: Iterable[int], rounds: int) -> pd.DataFrame:
    """What is left of a disagreement, at worst, after each round."""
    data = pd.DataFrame(study.grid(protocol=rules, workers=worlds, round=range(rounds + 1)))
    data["left"] = [residual(rules[at.protocol], at.round, at.workers) for at in data.itertuples()]
    return data.astype({"workers": str})


def _distance(row: np.ndarray) -> float:
    """The distance from the average over that of a replica that never mixed: 1 - 1/W, and W - 1 times -1/W."""
    return float(np.linalg.norm(row - 1 / row.size) / np.sqrt(1 - 1 / row.size)) if row.size > 1 else 0.0


def _counted(groups: tuple[tuple[int, ...], ...]) -> str:
    sizes = sorted(map(len, groups), reverse=True)
    return " + ".join(f"{sizes.count(size)} of {size}" for size in dict.fromkeys(sizes))
