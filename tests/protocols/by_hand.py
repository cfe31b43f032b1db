"""Replicas on a quadratic, and the same in numpy: what the recursions of replica rules are compared with."""

import numpy as np

from lib import Node, VirtualCluster, workloads
from lib.store.optim import SGD
from lib.tasks.flat_model import FlatModel
from tests.toys import finals, records

RATE = 0.1
SLOW = Node(flops=1e4)
"""Computing takes much longer than any message: what is sent when a step begins is there before it ends."""


def bowl(steps, workers, optimizer=None):
    optimizer = optimizer or SGD(lr=RATE)
    return workloads.get("quadratic", dim=5, batch_size=4, samples=4 * steps * workers, dense_optimizer=optimizer)


def replicas(workload, rule, workers, seed=0, **cluster):
    """All replicas at the end, one a row, and the parts."""
    parts = records(workload, rule, VirtualCluster(workers=workers, worker=SLOW, **cluster), seed)
    final = finals(parts)
    return np.stack([final[f"worker{rank}/replica"]["values"] for rank in range(workers)]), final


class Serial:
    """The same by hand: a row of `x` for each worker, whose steps are in step."""

    def __init__(self, workload, workers, seed=0):
        self._model, self._workers = FlatModel(workload.model(seed)), workers
        self._workload, self._seed = workload, seed
        self.x = np.tile(self._model.vector.numpy(), (workers, 1))

    def gradients(self, step):
        """Each worker's at its own row."""
        rows = []
        for rank, row in enumerate(self.x):
            self._model.load(row)
            batch = self._workload.batch(self._seed, step * self._workers + rank)
            rows.append(self._model.step(batch, {}).dense.numpy().copy())
        return np.stack(rows)

    def train(self, *steps):
        """Each worker by itself."""
        for step in steps:
            self.x -= RATE * self.gradients(step)


def both(rule, steps, workers, seed=0, optimizer=None, **cluster):
    """The replicas that a run ends with, the same workers by hand before their first step, and the parts."""
    workload = bowl(steps, workers, optimizer)
    ours, final = replicas(workload, rule, workers, seed, **cluster)
    return ours, Serial(workload, workers, seed), final


def same(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
