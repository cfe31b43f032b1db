"""What an average costs where nodes share a way out: GPUs behind a machine's one interface, or racks with a narrow uplink.

Four times four nodes in rank order, in units of D / B of a machine's interface, or of a node's link and its rack's uplink.
"""

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from lib import Rule, Run, Uplink
from lib.protocols.all_reduce import AllReduce
from lib.protocols.dssync import DSSync
from notebooks import study
from notebooks.dssync import vector

UNIT, STEP, STEPS, EACH = 0.04, 1e-3, 4, 4
"""Seconds of D / B and of a step; steps of a run, in which each of two groupings comes twice; nodes behind an uplink."""

RULES: dict[str, Rule] = {"bsp": AllReduce(), "ds-sync": DSSync(), "ds-sync, crews": DSSync(crew=EACH)}

FORMULA = {
    "flat": {"bsp": 15 / 8, "ds-sync": 3 / 2, "ds-sync, crews": 7 / 4},
    "machines": {"bsp": 15 / 8, "ds-sync": (0 + 6) / 2, "ds-sync, crews": 7 / 4},
    "racks": {"bsp": 15 / 8, "ds-sync": (3 / 2 + 6) / 2, "ds-sync, crews": 7 / 4},
}
"""A ring of N carries 2 (N - 1) / N over each uplink that it crosses; four of equal remainder cross it at the same time."""


def costs(seeds: Iterable[int]) -> tuple[pd.DataFrame, list[Run]]:
    """Each rule's cost on each network, over its formula, and its gain over BSP's."""

    def job(network: str, protocol: str, seed: int) -> dict:
        own = vector.cluster(16, UNIT / (1e4 if network == "machines" else 1), latency=1e-6)
        ways = [[f"worker{rank}" for rank in range(first, first + EACH)] for first in range(0, 16, EACH)]
        uplinks = [Uplink(nodes=tuple(nodes), bandwidth=4 * vector.PARAMETERS / UNIT) for nodes in ways]
        there = replace(own, uplinks=() if network == "flat" else tuple(uplinks))
        return vector.job(RULES[protocol], there, seed, seconds=STEP, steps=STEPS)

    cases = study.grid(network=FORMULA, protocol=RULES, seed=seeds)
    found, runs = study.run_grid(job, cases, cost=lambda run: (run.summary["virtual_seconds"] / STEPS - STEP) / UNIT)
    found["over formula"] = [each.cost / FORMULA[each.network][each.protocol] for each in found.itertuples()]
    found["gain"] = study.baseline(found, "cost", ["network", "seed"], protocol="bsp") / found["cost"]
    return found.assign(subject=found["protocol"] + " on " + found["network"]), runs
