"""What an advice depends on: clusters that differ from a given one in one thing, and which protocol is fastest there.

Timing runs give the speed there; the samples that a protocol needs to reach the goal are taken from the given cluster.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from lib import Cluster, Lognormal, VirtualCluster, sweep
from lib.cluster.slowdowns import Product
from notebooks.advisor.trial import Trial

STEP = 4
"""A condition's network or steps are so many times the given ones; of a pass, one sample in so many is timed."""

LEAST = 8
"""Updates that are timed, at least, or all of a shorter pass: protocols that mix seldom cannot be timed in fewer."""

GIVEN = "all is as given"


def conditions(cluster: Cluster) -> dict[str, Cluster]:
    """Condition -> the cluster; none where time is not simulated."""
    if not isinstance(cluster, VirtualCluster):
        return {}
    workers = cluster.workers or 4
    even = replace(cluster, workers=workers, slowdown=Lognormal(), speeds=())
    if cluster in (even, replace(even, workers=None)):
        slow = max(1, workers // 4)
        speeds = (*[1.0] * (workers - slow), *[0.5] * slow)
        found = {"one worker in four takes twice as long": replace(even, speeds=speeds)}
    else:
        twice = Product(parts=(cluster.slowdown, cluster.slowdown))
        unlike = replace(cluster, slowdown=twice, speeds=tuple(speed**2 for speed in cluster.speeds))
        found = {"no worker is slow": even, "workers differ twice as much": unlike}
    for name, factor in (("a quarter", 1 / STEP), ("four times", STEP)):
        wires = {
            role: replace(node, bandwidth=node.bandwidth * factor)
            for role, node in (("worker", cluster.worker), ("server", cluster.server))
        }
        node = cluster.worker
        longer = {
            "flops": node.flops / factor,
            "core_memory": node.core_memory / factor,
            "launch": node.launch * factor,
        }
        found[f"the network is {name} as fast"] = replace(cluster, **wires)
        found[f"a worker's steps take {name} as long"] = replace(cluster, worker=replace(node, **longer))
    return found


def seconds(trials: Mapping[str, Trial], known: Mapping[str, float], seed: int, label: str = "") -> pd.DataFrame:
    """Seconds to the goal of each protocol (columns) in each condition (rows), from the `known` ones of the given cluster, which
    is the first row."""
    first = next(iter(trials.values()))
    cases = {GIVEN: first.cluster, **conditions(first.cluster)}
    samples = min(first.samples, max(LEAST * first.update, first.samples // STEP))
    timed = {"gradients": False, "evaluations": 1, "samples": samples}
    pairs = [(name, trial) for name in cases for trial in trials.values()] if len(cases) > 1 else []
    runs = sweep([replace(trial, cluster=cases[name]).job(1.0, seed, **timed) for name, trial in pairs], label=label)
    speeds = np.reshape([run.summary["qps"] for run in runs], (-1, len(trials)))
    found = np.array([known[name] for name in trials]) * speeds[:1] / speeds
    return pd.DataFrame(found, [*cases][: len(found)], [*trials])
