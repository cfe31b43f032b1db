"""How long an iteration takes: in the paper's Table 4, and in timing runs of its models on its cluster.

What a step computes follows from Table 4's seconds of BSP with four nodes, less a chunked ring of four; everything else is
predicted from it: DS-Sync with four nodes, and both with sixteen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

import lib
from lib.protocols.all_reduce import AllReduce
from lib.protocols.baselines import Async
from lib.protocols.dssync import DSSync
from lib.protocols.rule import Rule
from notebooks import clusters
from notebooks.dssync import vector

NODES = (4, 16)

RULES: Mapping[str, Rule] = {"bsp": AllReduce(), "ds-sync": DSSync(), "asp": Async()}

STEPS = 12
"""Of a worker in a run."""

SIGMA = 0.02
"""Of the logarithm of a step's time, an estimate: GPUs of one kind on a quiet cluster."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """One of the paper's models, and its rows of Table 4."""

    parameters: float
    """Of one copy."""
    seconds: Mapping[tuple[str, int], float]
    """Rule and nodes -> seconds of an iteration: wall time over converged iterations."""

    @property
    def unit(self) -> float:
        """D / B: seconds in which a link of the paper's carries the parameters once."""
        return 4 * self.parameters / (10 * clusters.GBIT)


def _rows(four: tuple, sixteen: tuple = ()) -> dict[tuple[str, int], float]:
    """BSP's iterations and wall time, then DS-Sync's, with four nodes and with sixteen."""
    found = {}
    for nodes, row in zip(NODES, (four, sixteen), strict=True):
        for rule, (iterations, seconds) in zip(("bsp", "ds-sync"), row, strict=False):
            found[rule, nodes] = seconds / iterations
    return found


MODELS: Mapping[str, Model] = {
    "CIFAR-10": Model(
        parameters=36.5e6,  # WRN-26-10
        seconds=_rows(((6566, 4011.83), (2940, 1414.14)), ((1833, 1704.69), (780, 514.8))),
    ),
    "CIFAR-100": Model(
        parameters=36.5e6, seconds=_rows(((12740, 7822.36), (11466, 5515.15)), ((1417, 1105.26), (806, 394.94)))
    ),
    "ImageNet": Model(parameters=68.9e6, seconds=_rows(((341664, 301005), (341664, 198165)))),  # WRN-50-2
    "SQuAD": Model(
        parameters=335e6,  # BERT-large
        seconds=_rows(((7400, 18278), (7400, 15096)), ((2050, 7974.5), (1950, 4797))),
    ),
    "Criteo": Model(
        parameters=10e6,  # an estimate: the smallest of them all, by Sec. 4.3
        seconds=_rows(((5000, 20266), (5000, 19300)), ((2260, 7137.56), (1980, 6676.3))),
    ),
}

COMPUTE = (0.44, 0.44, 0.55, 0.86, 4.01)
"""Seconds of a step of each model, in this order: Table 4's of BSP with four nodes less 3 / 2 of D / B."""


def job(name: str, rule: Rule, nodes: int, seed: int, **options: Any) -> dict[str, Any]:
    """Links take as long for our vector as the paper's for the model's."""
    compute = dict(zip(MODELS, COMPUTE, strict=True))[name]
    there = vector.cluster(nodes, MODELS[name].unit, **{"sigma": SIGMA, **options})
    return vector.job(rule, there, seed, seconds=compute, steps=STEPS)


def iterations(names: Iterable[str], seeds: Iterable[int], rules: Mapping[str, Rule] = RULES, **options: Any):
    """Seconds of an iteration and BSP's over them, for each model, number of nodes, rule and seed; and the runs."""
    places = [(name, nodes, rule, seed) for name in names for nodes in NODES for rule in rules for seed in seeds]
    runs = lib.sweep([job(name, rules[rule], nodes, seed, **options) for name, nodes, rule, seed in places])
    found = pd.DataFrame(places, columns=["model", "nodes", "protocol", "seed"])
    found["seconds"] = [run.summary["virtual_seconds"] / STEPS for run in runs]
    keys = ["model", "nodes", "seed"]
    base = found.loc[found["protocol"] == "bsp", [*keys, "seconds"]].rename(columns={"seconds": "of bsp"})
    found = found.merge(base, on=keys)
    found["speed-up"] = found.pop("of bsp") / found["seconds"]
    found["subject"] = found["protocol"] + ", " + found["model"] + ", " + found["nodes"].astype(str)
    return found, runs


def printed() -> pd.DataFrame:
    """Table 4's seconds of an iteration, what DS-Sync saves of them in units of D / B, and how many times as long BSP's takes;
    beside what chunked rings and hops of the whole vector save."""
    rows = []
    for name, model in MODELS.items():
        for nodes, (chunks, hops) in {4: (0.5, 4), 16: (0.375, 24)}.items():
            if ("bsp", nodes) not in model.seconds:
                continue
            bsp, ds = model.seconds["bsp", nodes], model.seconds["ds-sync", nodes]
            rows.append(
                {
                    "model": name,
                    "nodes": nodes,
                    "bsp": bsp,
                    "ds-sync": ds,
                    "speed-up": bsp / ds,
                    "saved, in D / B": (bsp - ds) / model.unit,
                    "by chunks": chunks,
                    "by hops": hops,
                    "bsp's hops alone, seconds": (2 * nodes - 1) * model.unit,
                }
            )
    return pd.DataFrame(rows)


def explained(names: Iterable[str], seeds: Iterable[int], tried: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """DS-Sync's speed-up under other collectives and more unlike steps, by model and nodes."""
    wanted = {rule: RULES[rule] for rule in ("bsp", "ds-sync")}
    parts = []
    for told, options in tried.items():
        found, _ = iterations(names, seeds, wanted, **options)
        ours = found[found["protocol"] == "ds-sync"]
        parts.append(ours.groupby(["model", "nodes"], sort=False)["speed-up"].mean().rename(told))
    return pd.concat(parts, axis=1)
