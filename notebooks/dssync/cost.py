"""What it costs to average a vector of D bytes over links of B bytes a second, in units of D / B: by Table 1 and simulated.

The paper counts hops of the whole vector, one after the other. NCCL and gloo cut the vector into as many chunks as there are
members, so that all links work at the same time; then a ring takes 2 (W - 1) / W and hardly more for a larger W.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib import Rule, Run, Uplink
from lib.cluster.collectives import Transfer, ring, schedule_transfers
from lib.cluster.spec import idle_interface
from lib.protocols.all_reduce import AllReduce
from lib.protocols.dssync import DSSync
from notebooks import study
from notebooks.dssync import vector

WORLDS = (4, 9, 16, 64)

UNIT = 0.04
"""Seconds of D / B: 50 MB on 10 Gbit/s."""

STEP, STEPS = 1e-3, 4
"""Seconds of a worker's step, and how many it makes: each of two groupings comes twice."""

WAYS = {
    "ring": ("whole-ring", lambda members: 2 * members - 1),
    "tree": ("whole-tree", lambda members: 3 * math.ceil(math.log2(members))),
    "chunked ring": ("ring", lambda members: 2 * (members - 1) / members),
}
"""What the page calls it: the virtual cluster's name for it, and its cost among so many members. A tree has whole levels, where
Table 1 has log W: at 9 workers 4 and 2 for 3.2 and 1.6, whose ratio is 2 either way."""


def server(workers: int, servers: int = 1) -> dict[str, float]:
    """Averages through parameter servers: Table 1's hops, held to a worker's share of their bandwidth and simulated so; and what
    is simulated where all links work at once."""
    table, chunked = whole_through_server(workers, 1.0), through_server(workers, 1.0, servers)
    return {
        "formula": 2 * workers**2 / servers,
        "hops": _seconds(table, workers + 1, limit=servers / workers),
        "all links at once": _seconds(chunked, workers + servers),
    }


def through_server(workers: int, size: float, servers: int = 1) -> list[Transfer]:
    """Chunked: everyone sends its share to every server (nodes W, W + 1, ...) and gets it back; servers are the bottleneck."""
    up = [
        (np.array([worker]), np.array([workers + server]), size / servers)
        for worker in range(workers)
        for server in range(servers)
    ]
    down = [(receiver, sender, share) for sender, receiver, share in up]
    return [*up, *down]


def whole_through_server(workers: int, size: float) -> list[Transfer]:
    """2 W transfers one after the other: W pulls and W pushes; each is held to a worker's share of the servers' bandwidth."""
    one, server = np.array([0]), np.array([workers])
    return [step for _ in range(workers) for step in ((one, server, size), (server, one, size))]


def costs(seeds: Iterable[int], worlds: Sequence[int] = WORLDS) -> tuple[pd.DataFrame, list[Run]]:
    """Each way's cost in runs of all-reduce and DS-Sync, both over their formulas, and DS-Sync's gain over all-reduce's."""
    rules = {"bsp": AllReduce(), "ds": DSSync()}

    def job(way: str, workers: int, seed: int, rule: str) -> dict:
        cluster = vector.cluster(workers, UNIT, collective=WAYS[way][0], latency=1e-6)
        return vector.job(rules[rule], cluster, seed, seconds=STEP, steps=STEPS)

    cases = study.grid(way=WAYS, workers=worlds, seed=seeds, rule=rules)
    flat, runs = study.run_grid(job, cases, units=lambda run: (run.summary["virtual_seconds"] / STEPS - STEP) / UNIT)
    found = flat.pivot(index=["way", "workers", "seed"], columns="rule", values="units").reset_index()
    for rule, members in (("bsp", int), ("ds", math.isqrt)):
        found[f"{rule}, formula"] = [WAYS[each.way][1](members(each.workers)) for each in found.itertuples()]
    found["gain"] = found["bsp"] / found["ds"]
    found["over formula"] = found["gain"] / (found["bsp, formula"] / found["ds, formula"])
    found["subject"] = found["way"] + ", " + found["workers"].astype(str)
    return found, runs


def gain(workers: int, size: float, latency: float = 50e-6) -> float:
    """DS-Sync's gain with chunked rings over links of the paper's, where each of a ring's steps takes a latency too."""
    crews = (workers, math.isqrt(workers))
    all_, group = (_seconds(ring(range(n), size), n, bandwidth=1.25e9, latency=latency) for n in crews)
    return all_ / group


def _seconds(steps, members: int, *, bandwidth: float = 1.0, latency: float = 0.0, limit: float = float("inf")):
    interfaces = [idle_interface(bandwidth, latency) for _ in range(members)]
    return float(schedule_transfers(steps, interfaces, np.zeros(members), limit).max())


EACH = 4
"""Nodes behind an uplink: GPUs of a machine that share its interface, or a rack's. Sixteen nodes in rank order."""

UPLINK_RULES: dict[str, Rule] = {"bsp": AllReduce(), "ds-sync": DSSync(), "ds-sync, crews": DSSync(crew=EACH)}

UPLINK_COSTS = {
    "flat": {"bsp": 15 / 8, "ds-sync": 3 / 2, "ds-sync, crews": 7 / 4},
    "machines": {"bsp": 15 / 8, "ds-sync": (0 + 6) / 2, "ds-sync, crews": 7 / 4},
    "racks": {"bsp": 15 / 8, "ds-sync": (3 / 2 + 6) / 2, "ds-sync, crews": 7 / 4},
}
"""A ring of N carries 2 (N - 1) / N over each uplink that it crosses; four of equal remainder cross it at the same time."""


def uplink_costs(seeds: Iterable[int]) -> tuple[pd.DataFrame, list[Run]]:
    """Each rule's cost on each network, over its formula, and its gain over BSP's."""

    def job(network: str, protocol: str, seed: int) -> dict:
        own = vector.cluster(16, UNIT / (1e4 if network == "machines" else 1), latency=1e-6)
        ways = [[f"worker{rank}" for rank in range(first, first + EACH)] for first in range(0, 16, EACH)]
        uplinks = [Uplink(nodes=tuple(nodes), bandwidth=4 * vector.PARAMETERS / UNIT) for nodes in ways]
        cluster = replace(own, uplinks=() if network == "flat" else tuple(uplinks))
        return vector.job(UPLINK_RULES[protocol], cluster, seed, seconds=STEP, steps=STEPS)

    cases = study.grid(network=UPLINK_COSTS, protocol=UPLINK_RULES, seed=seeds)
    found, runs = study.run_grid(job, cases, cost=lambda run: (run.summary["virtual_seconds"] / STEPS - STEP) / UNIT)
    found["over formula"] = [each.cost / UPLINK_COSTS[each.network][each.protocol] for each in found.itertuples()]
    found["gain"] = study.baseline(found, "cost", ["network", "seed"], protocol="bsp") / found["cost"]
    return found.assign(subject=found["protocol"] + " on " + found["network"]), runs
