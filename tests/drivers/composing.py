"""Compositions of a replica rule, and what they end with."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import lib
from lib import Node, VirtualCluster, workloads
from lib.protocols.baselines import Async
from lib.protocols.mixing import Background
from lib.protocols.replica_rule import ReplicaRule
from lib.store.optim import SGD
from tests.toys import clicks, finals, records

CLICKS = clicks(800, 20, vocabulary=30, dim=2, hidden=(4,), evaluation_samples=100)
BOWL = workloads.get("quadratic", dim=6, batch_size=4, samples=4 * 40, dense_optimizer=SGD(lr=0.1))
STEP = CLICKS.work().flops / 1e6
UNEVEN = {"workers": 4, "slowdown": 0.8, "worker": Node(flops=1e6)}


@dataclass(frozen=True, kw_only=True)
class Toy(ReplicaRule):
    """The mean of all, every step."""

    name: ClassVar = "toy"
    cite: ClassVar = "none"
    blocks: ClassVar = True
    drops: ClassVar = False


def rule(worker_threads=1, **values):
    """A composition of these values and hooks."""
    kind = dataclass(frozen=True, kw_only=True)(type("Composed", (Toy,), values))
    return kind(worker_threads=worker_threads)


SHADOWS = [rule(when=Background(until=until), data="queue", rows=Async()) for until in ("own", "all")]


def train(protocol, workload=CLICKS, cluster=None, **options):
    return lib.train(workload, protocol, cluster or VirtualCluster(**UNEVEN), save=False, **options)


def ends(workload, protocol, cluster):
    final = finals(records(workload, protocol, cluster))
    return np.stack([final[f"worker{rank}/replica"]["values"] for rank in range(cluster.workers)]), final
