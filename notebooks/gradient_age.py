"""How old gradients are: the node of a worker under which they are so many updates old on average, found by timing runs alone.

`lib.cluster.spec.Node` says what an age is made of. One number decides here: of the seconds of a step, the share for which a
worker holds the parameters that it has read (`flops`); for the others it makes its batch and holds none (`reading`).
"""

from dataclasses import dataclass, replace

import lib
from lib import BadOption, Pair, Rule, VirtualCluster, Workload

UPDATES = 100
"""For each worker, batches of a timing run."""
LEAST, TRIES = 1e-3, 12
"""The smallest share, and halvings of what lies above it."""


@dataclass(frozen=True)
class AgedCluster:
    """A cluster whose gradients have an age, and what it took."""

    cluster: VirtualCluster
    age: float
    """Updates that came between reading and applying, as the last timing run has them on average."""
    held: float
    """Share of a step's own seconds for which parameters are held."""

    def __str__(self) -> str:
        worker = self.cluster.worker
        held = f"parameters held for {self.held:.3g} of a step"
        return f"age {self.age:.3g} updates: {held}, flops {worker.flops:.3g}, reading {worker.reading:.3g} s a sample"


def cluster_of_age(
    workload: Workload,
    protocol: str | Rule | Pair,
    cluster: VirtualCluster,
    age: float,
    *,
    seconds: float = 0.01,
    within: float = 0.02,
) -> AgedCluster:
    """That cluster with workers whose gradients are `age` updates old, give or take the share `within`.

    `seconds` is what a step takes a worker in addition to its arithmetic and the network: the longer, the less these matter.
    """
    brief = replace(workload, samples=UPDATES * cluster.workers * workload.batch_size)

    def tried(held: float) -> AgedCluster:
        flops, reading = workload.work().flops / (held * seconds), (1 - held) * seconds / workload.batch_size
        aged = replace(cluster, worker=replace(cluster.worker, flops=flops, reading=reading))
        run = lib.train(brief, protocol, aged, gradients=False, save=False)
        return AgedCluster(aged, run.summary["staleness_mean"], held)

    least, most = tried(LEAST), tried(1.0)
    if not least.age <= age <= most.age:
        raise BadOption(
            f"age: {age} updates are not to be had here, where steps of {seconds} s give {least.age:.3g} to {most.age:.3g}; more "
            "workers, or another protocol, have others"
        )
    low, high = LEAST, 1.0
    for _ in range(TRIES):
        found = tried((low + high) / 2)
        if abs(found.age - age) <= within * age:
            return found
        low, high = (found.held, high) if found.age < age else (low, found.held)
    raise BadOption(
        f"age: nearest to {age} updates was {found.age:.3g}; within={within} asks for more than a run can tell"
    )
