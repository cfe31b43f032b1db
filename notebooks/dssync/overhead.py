"""How long an iteration takes: in the paper's Table 4, and in timing runs of its models on its cluster.

What a step computes follows from Table 4's seconds of BSP with four nodes, less a chunked ring of four; everything else is
predicted from it: DS-Sync with four nodes, and both with sixteen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from lib.protocols.all_reduce import AllReduce
from lib.protocols.baselines import Async
from lib.protocols.dssync import DSSync
from lib.protocols.rule import Rule
from lib.results.run import Run
from notebooks import clusters, study
from notebooks.dssync import vector

NODES = (4, 16)

RULES: Mapping[str, Rule] = {"bsp": AllReduce(), "ds-sync": DSSync(), "asp": Async()}

STEPS = 12
"""Of a worker in a run."""

SIGMA = 0.02
"""Of the logarithm of a step's time, an estimate: GPUs of one kind on a quiet cluster."""

PARAMETERS = {
    "CIFAR-10": 36.5e6,  # WRN-26-10
    "CIFAR-100": 36.5e6,
    "ImageNet": 68.9e6,  # WRN-50-2
    "SQuAD": 335e6,  # BERT-large
    "Criteo": 10e6,  # an estimate: the smallest of them all, by Sec. 4.3
}
"""Of one copy of each of the paper's models."""

TABLE_4 = {
    ("CIFAR-10", 4): (6566, 4011.83, 2940, 1414.14),
    ("CIFAR-10", 16): (1833, 1704.69, 780, 514.8),
    ("CIFAR-100", 4): (12740, 7822.36, 11466, 5515.15),
    ("CIFAR-100", 16): (1417, 1105.26, 806, 394.94),
    ("ImageNet", 4): (341664, 301005, 341664, 198165),
    ("SQuAD", 4): (7400, 18278, 7400, 15096),
    ("SQuAD", 16): (2050, 7974.5, 1950, 4797),
    ("Criteo", 4): (5000, 20266, 5000, 19300),
    ("Criteo", 16): (2260, 7137.56, 1980, 6676.3),
}
"""Model and nodes -> BSP's iterations and wall seconds until it has converged, then DS-Sync's."""

COMPUTE = (0.44, 0.44, 0.55, 0.86, 4.01)
"""Seconds of a step of each model, in this order: Table 4's of BSP with four nodes less 3 / 2 of D / B."""


def unit(model: str, gbit: float = 10.0) -> float:
    """D / B: seconds in which a link of the paper's carries the model's parameters once."""
    return 4 * PARAMETERS[model] / (gbit * clusters.GBIT)


def job(model: str, rule: Rule, nodes: int, seed: int, gbit: float = 10.0, **options: Any) -> dict[str, Any]:
    """Links take as long for our vector as the paper's for the model's."""
    compute = dict(zip(PARAMETERS, COMPUTE, strict=True))[model]
    there = vector.cluster(nodes, unit(model, gbit), **{"sigma": SIGMA, **options})
    return vector.job(rule, there, seed, seconds=compute, steps=STEPS)


def iterations(
    models: Iterable[str], seeds: Iterable[int], rules: Iterable[str] = RULES, **options: Any
) -> tuple[pd.DataFrame, list[Run]]:
    """Seconds of an iteration and BSP's over them, for each model, number of nodes, rule and seed; and the runs."""
    found, runs = study.swept(
        lambda model, nodes, protocol, seed: job(model, RULES[protocol], nodes, seed, **options),
        study.grid(model=models, nodes=NODES, protocol=rules, seed=seeds),
        seconds=lambda run: run.summary["virtual_seconds"] / STEPS,
    )
    found["speed-up"] = study.beside(found, "seconds", ["model", "nodes", "seed"], protocol="bsp") / found["seconds"]
    return found.assign(subject=found["protocol"] + ", " + found["model"] + ", " + found["nodes"].astype(str)), runs


def printed() -> pd.DataFrame:
    """Table 4's seconds of an iteration, what DS-Sync saves of them in units of D / B, and how many times as long BSP's takes;
    beside what chunked rings and hops of the whole vector save."""
    rows = pd.DataFrame(TABLE_4).T.to_numpy().T
    data = pd.DataFrame([*TABLE_4], columns=["model", "nodes"])
    data["bsp"], data["ds-sync"] = rows[1] / rows[0], rows[3] / rows[2]
    data["speed-up"], units = data["bsp"] / data["ds-sync"], data["model"].map(unit)
    data["saved, in D / B"] = (data["bsp"] - data["ds-sync"]) / units
    data["by chunks"] = data["nodes"].map({4: 0.5, 16: 0.375})
    data["by hops"] = data["nodes"].map({4: 4, 16: 24})
    return data.assign(**{"bsp's hops alone, seconds": (2 * data["nodes"] - 1) * units})


def explained(models: Iterable[str], seeds: Iterable[int], tried: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """DS-Sync's speed-up under other collectives and more unlike steps, by model and nodes."""
    parts = []
    for told, options in tried.items():
        found, _ = iterations(models, seeds, ("bsp", "ds-sync"), **options)
        ours = found[found["protocol"] == "ds-sync"]
        parts.append(ours.groupby(["model", "nodes"], sort=False)["speed-up"].mean().rename(told))
    return pd.concat(parts, axis=1)
