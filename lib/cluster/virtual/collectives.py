"""How a group of W nodes on known machines averages a vector of D bytes, as steps of transfers.

Each algorithm comes in two ways of counting. `whole`: the vector travels as one piece, hop after hop, as DS-Sync's Table 1
counts it. `chunked`: it travels in W pieces, so that all links work at the same time, as NCCL and gloo run it; there a ring
costs 2 (W - 1) / W x D / B plus 2 (W - 1) latencies, and making groups smaller saves little but latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from lib.cluster.virtual.network import Transfer


def ring(machines: Sequence[int], size: float) -> list[Transfer]:
    """Chunked: reduce-scatter, then all-gather, each of W - 1 steps in which every node sends a chunk to the next."""
    workers = len(machines)
    everyone = np.arange(workers)
    step = everyone, (everyone + 1) % workers, size / workers
    return [step] * (2 * (workers - 1))


def whole_ring(machines: Sequence[int], size: float) -> list[Transfer]:
    """W hops to gather the sum and come back to its owner, W - 1 to show it to the others."""
    workers = len(machines)
    return [_hop(hop % workers, (hop + 1) % workers, size) for hop in range(2 * workers - 1)]


def tree(machines: Sequence[int], size: float) -> list[Transfer]:
    """Chunked: halving and doubling over pairs at distances 1, 2, 4, ...; D (1 - 1/W) each way in log W steps.

    Ranks beyond the largest power of two hand their vector to a partner first, and get the result last.
    """
    workers = len(machines)
    power = 1 << (workers.bit_length() - 1)
    spare, ranks = np.arange(power, workers), np.arange(power)
    first = [(spare, spare - power, size)] if spare.size else []
    last = [(spare - power, spare, size)] if spare.size else []
    distances = [1 << level for level in range(power.bit_length() - 1)]
    halving = [(ranks, ranks ^ distance, size / (2 * distance)) for distance in distances]
    return [*first, *halving, *reversed(halving), *last]


def whole_tree(machines: Sequence[int], size: float) -> list[Transfer]:
    """A binary tree, level by level: a parent takes its two children one after the other (2 hops a level), and shows both
    the result at once (1 hop). Levels are whole numbers: log W is rounded up."""
    levels = math.ceil(math.log2(len(machines)))
    # Any pair may represent its level: a level ends when its last parent is served, and all parents take equally long.
    return [_hop(hop % 2, (hop + 1) % 2, size) for hop in range(3 * levels)]


def hierarchical(machines: Sequence[int], size: float) -> list[Transfer]:
    """Chunked: reduce-scatter inside each machine, a ring between machines for each chunk, all-gather
    inside. A ring of all nodes where machines differ in size: then no chunk has an owner on each."""
    places, counts = np.unique(machines, return_counts=True)
    if (counts != counts[0]).any():
        return ring(machines, size)
    crews = np.argsort(machines, kind="stable").reshape(places.size, counts[0])
    inside = crews.ravel(), np.roll(crews, -1, axis=1).ravel(), size / counts[0]
    between = crews.ravel(), np.roll(crews, -1, axis=0).ravel(), size / crews.size
    scatter = [inside] * (counts[0] - 1)
    return [*scatter, *[between] * (2 * (places.size - 1)), *scatter]


Algorithm = Callable[[Sequence[int], float], list[Transfer]]
"""Of the machine of each node, and of bytes."""

ALGORITHMS: dict[str, Algorithm] = {
    "ring": ring,
    "tree": tree,
    "whole-ring": whole_ring,
    "whole-tree": whole_tree,
    "hierarchical": hierarchical,
}
"""The values of `VirtualCluster.collective`."""


def _hop(sender: int, receiver: int, size: float) -> Transfer:
    return np.array([sender]), np.array([receiver]), size
